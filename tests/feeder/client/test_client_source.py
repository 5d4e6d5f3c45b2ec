"""A source against a feeder that sends what it is told: credits, ends, errors, leases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from client_rig import PATIENCE_S

from async_loader.errors import Broken, Closed, ConfigError, Timeout
from async_loader.feeder import wire
from async_loader.feeder.wire import Type
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.views import Transitions
from async_loader.source import END, Applied, Foresighted, Source


def patience(seconds=30.0):
    return Patience(deadline=Deadline(seconds))


def plan(source, batch_size=4):
    return source.plan(batch_size, patience())


def test_batches_come_as_far_as_they_were_granted(feeder, client):
    source = client.table("replay").source(
        prefetch=2, view=Transitions(n_steps=3, gamma=0.5), seed=7, timeout_s=5.0
    )
    assert isinstance(source, Source)
    assert isinstance(source, Foresighted)
    with pytest.raises(Timeout, match="batches of table 'replay'"):
        source.plan(4, patience(0.05))
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: [feeder.batch(1, i, 4 * i) for i in range(2)])
    first = plan(source)
    assert first.lent
    assert list(first.batch) == ["obs", "reward", "index"]
    assert first.batch["index"].tolist() == [0, 1, 2, 3]
    assert first.batch["obs"].shape == (4, 2)
    assert all(array.flags.c_contiguous for array in first.batch.values())
    feeder.until(lambda: feeder.granted[1] == 3)
    assert plan(source).batch["reward"].tolist() == [4, 5, 6, 7]
    opened = feeder.readers[1].body
    assert opened.view["n_steps"] == 3
    assert (opened.batch_size, opened.seed, opened.timeout_s) == (4, 7, 5.0)
    with pytest.raises(ConfigError, match="was opened for 4"):
        source.plan(8, patience())
    source.close()
    source.close()
    with pytest.raises(Closed):
        plan(source)
    assert client.stats().batches == 2


def test_the_end_comes_after_the_last_batch(feeder, client):
    source = client.table("replay").source()
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1])
    feeder.do(
        lambda feeder: (feeder.batch(1, 0), feeder.tell(1, wire.End(reason="drained", count=1)))
    )
    assert plan(source) is not END
    assert plan(source) is END
    assert plan(source) is END


def test_a_timeout_of_the_feeder_is_ours_and_credits_stay(feeder, client):
    source = client.table("replay").source(timeout_s=1.0, prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(plan, source)
        feeder.until(lambda: source._channel.bell is not None)
        feeder.do(complain)
        with pytest.raises(Timeout, match="no actor inserts"):
            waits.result(PATIENCE_S)
    feeder.do(lambda feeder: feeder.batch(1, 0))
    assert plan(source).batch["index"].tolist() == [0, 1, 2, 3]


def complain(feeder):
    feeder.tell(1, wire.Error.of(wire.ErrorCode.TIMEOUT, "no actor inserts"))


def test_an_unknown_table_is_said(feeder, client):
    def unknown(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.UNKNOWN_TABLE)
        return True

    feeder.hooks[Type.OPEN_READER] = unknown
    with pytest.raises(ConfigError, match="UNKNOWN_TABLE"):
        plan(client.table("replay").source())


def test_a_lost_session_opens_the_reader_again(feeder, client):
    source = client.table("replay").source(prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    feeder.do(lambda feeder: feeder.batch(1, 0, 100))
    assert plan(source).batch["index"][0] == 100
    feeder.forget_sessions()
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2 and feeder.granted[1] == 4)
    feeder.do(lambda feeder: feeder.batch(1, 0, 200))
    assert plan(source).batch["index"][0] == 200


def test_batches_that_were_here_before_a_session_was_lost_are_asked_for_anew_when_they_are_used(
    feeder, client
):
    source = client.table("replay").source(prefetch=2)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: [feeder.batch(1, i, 100 * i) for i in range(2)])
    feeder.until(lambda: client.stats().batches == 2)  # heartbeats go on, so that it is looked at
    feeder.forget_sessions()
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2)
    assert [plan(source).batch["index"][0] for _ in range(2)] == [0, 100]
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: feeder.batch(1, 0, 200))
    assert plan(source).batch["index"][0] == 200


def test_rows_of_a_feeder_that_is_no_more_are_stale_whatever_the_next_one_calls_by_their_ids(
    feeder, client
):
    sent = []

    def priorities(feeder, plane, route, message):
        both = np.frombuffer(message.data, np.int64), np.frombuffer(message.data, np.float64)
        count = message.body.count
        sent.append((both[0][:count].tolist(), both[1][count:].tolist()))
        feeder.say(plane, route, message.reply(wire.Applied(count, 0)))
        return True

    feeder.hooks[Type.PRIORITIZE] = priorities
    source = client.table("replay").source(prefetch=1)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 1)
    feeder.do(lambda feeder: feeder.batch(1, 0))
    first = plan(source).batch["index"]
    assert source.update_priorities(first, np.full(4, 1.0)) == Applied(4, 0)
    feeder.do(
        lambda feeder: (
            setattr(feeder, "incarnation", b"another" + bytes(9)),
            feeder.sessions.clear(),
        )
    )
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2 and feeder.granted[1] == 1)
    feeder.do(lambda feeder: feeder.batch(1, 0, 2))
    second = plan(source).batch["index"]
    assert not set(first) & set(second)
    both = np.concatenate([first, second])
    assert source.update_priorities(both, np.arange(8.0)) == Applied(4, 4)
    assert source.update_priorities(first, np.ones(4)) == Applied(0, 4)
    assert sent == [([0, 1, 2, 3], [1.0] * 4), ([2, 3, 4, 5], [4.0, 5.0, 6.0, 7.0])]


def test_priorities_under_way_to_a_feeder_that_dies_are_not_sent_to_the_next(feeder, client):
    source = client.table("replay").source(prefetch=1)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 1)

    def dies(feeder, plane, route, message):
        feeder.incarnation = b"another" + bytes(9)
        feeder.sessions.clear()
        return True

    feeder.hooks[Type.PRIORITIZE] = dies
    assert source.update_priorities(np.arange(4), np.ones(4)) == Applied(0, 4)
    assert feeder.seen[Type.PRIORITIZE] == 1


def test_more_readers_or_writers_than_a_session_can_have_are_refused_at_once(feeder, client):
    def full(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.LIMIT)
        return True

    feeder.hooks.update({Type.OPEN_READER: full, Type.OPEN_WRITER: full})
    with pytest.raises(Broken, match="scripted LIMIT"):
        plan(client.table("replay").source())
    with pytest.raises(Broken, match="scripted LIMIT"):
        client.table("replay").writer().append({"obs": np.zeros(2, np.float32), "reward": 0.0})
