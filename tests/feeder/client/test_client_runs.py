"""Weights of a training script that was started again, beside those of one that goes on."""

from __future__ import annotations

import numpy as np
from test_client_shared import replay, serving

from async_loader.feeder import connect


def weights(value):
    return {"w": np.full(3, value)}


def value(published):
    return published.version, int(published.tensors["w"][0])


def test_a_script_that_is_started_again_begins_a_run_that_actors_see(tmp_path):
    with serving(tmp_path, replay()) as (feeder, actor):
        with connect(feeder.address) as first:
            assert [first.publish("policy", weights(v), v) for v in (0, 1, 5, 5, 3)] == [
                True,
                True,
                True,
                False,
                False,
            ]
        old = actor.latest("policy")
        assert value(old) == (5, 5)
        assert actor.latest("policy", newer_than=5) is None
        with connect(feeder.address) as second:
            assert second.publish("policy", weights(100), 0)
            assert value(actor.latest("policy", newer_than=5)) == (0, 100)
            new = actor.latest("policy")
            assert new.run != old.run
            assert value(actor.latest("policy", newer_than=old)) == (0, 100)
            assert actor.latest("policy", newer_than=new) is None
            assert actor.latest("policy", newer_than=5) is None, (
                "a number is a version of the run that came last"
            )
            assert second.publish("policy", weights(101), 1)
            assert value(actor.latest("policy", newer_than=new)) == (1, 101)


def test_an_actor_that_waits_gets_the_weights_of_a_new_run(tmp_path):
    with (
        serving(tmp_path, replay()) as (feeder, actor),
        connect(feeder.address) as first,
        connect(feeder.address) as second,
    ):
        first.publish("policy", weights(1), 9)
        old = actor.latest("policy")
        call = actor._connection.ask
        asked = []

        def then_publish(body, **how):
            asked.append(call(body, **how))
            second.publish("policy", weights(2), 0)
            return asked[-1]

        actor._connection.ask = then_publish
        assert value(actor.latest("policy", newer_than=old, timeout_s=30.0)) == (0, 2)
