"""Sequences of steps through a feeder, against a list of episodes."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_rig import Feeder, serving

from async_loader import AsyncDataLoader, Prioritized, ReplayBuffer, Sequences, Uniform
from async_loader.errors import ConfigError, NotEnoughData
from async_loader.feeder import connect
from async_loader.feeder.client.batch_structure import SERVER_BITS
from async_loader.feeder.client.row_packer import StreamNumbers
from async_loader.lifecycle import Deadline, Patience
from tests.sequence_rig import LINKED, MOVES, PLAIN, VIEWS, Episodes, play


@contextlib.contextmanager
def played(moves, linked, memory=True, **made):
    """A model of a feeder's table, whose writer has made these moves."""
    buffer = ReplayBuffer(schema=LINKED if linked else PLAIN, seed=0, **made)
    with serving(buffer, memory) as client, client.table("t").writer() as writer:
        table = client.table("t")
        model = Episodes(table, linked, writer.append, writer.end_episode, writer.flush)
        play(model, moves)
        yield model


def patience():
    return Patience(deadline=Deadline(60.0))


def planned(source, batch_size):
    """A batch of a source, whose ids are checked like those of a sample."""
    batch = source.plan(batch_size, patience()).batch
    return {name: np.array(value) for name, value in batch.items()}


@settings(max_examples=40)
@given(view=VIEWS, moves=MOVES, linked=st.booleans(), memory=st.booleans(), own=st.booleans())
def test_draws_show_the_sequences_of_a_list_of_episodes_and_no_others(
    view, moves, linked, memory, own
):
    each_once = Uniform(replacement=False)
    made = {"view": view} if own else {}
    asked = None if own else view
    with played(moves, linked, memory, capacity=40, sampler=each_once, **made) as model:
        table = model.table
        # A view that comes after the steps counts from the oldest step there is.
        wanted = model.sequences(view) if own or model.cursor <= 40 else {}
        if not wanted:
            if own:
                with pytest.raises(NotEnoughData, match="sequences"):
                    table.sample(1)
            return
        for _ in range(2):  # over the socket, then in memory where that is taken
            batch = table.sample(len(wanted), view=asked)
            assert sorted(batch["index"].tolist()) == sorted(wanted)
            model.check(batch, view)
        source = table.source(view=asked, transport="auto" if memory else "tcp")
        model.check(planned(source, len(wanted)), view)
        assert source.transport == ("shm" if memory else "tcp")
        source.close()
        model.check(table.get(list(wanted), view=asked), view)


@settings(max_examples=15)
@given(view=VIEWS, moves=MOVES, linked=st.booleans(), memory=st.booleans())
def test_prioritized_draws_follow_the_errors_of_steps(view, moves, linked, memory):
    sampler = Prioritized(alpha=1.0, eps=0.0)
    with played(moves, linked, memory, capacity=40, sampler=sampler, view=view) as model:
        wanted = model.sequences(view)
        if len(wanted) < 2:
            return
        chosen, *others = wanted
        ids = np.array([chosen, *others])
        errors = np.full((len(ids), view.steps + 1), np.nan)  # never one error for each sequence
        errors[:, 0] = 0.0
        errors[0, :2] = 4.0
        source = model.table.source()
        model.check(planned(source, 8), view)
        for update in (model.table.update_priorities, source.update_priorities):
            assert update(ids, errors).applied == len(ids)
            batch = model.table.sample(32)
            assert set(batch["index"].tolist()) == {chosen}
            model.check(batch, view)
            assert model.table.update_priorities(ids, np.ones(len(ids))).applied == len(ids)
            assert len(set(model.table.sample(256)["index"].tolist())) > 1
        source.close()


def episodes_of(lengths, **made):
    made = {"capacity": 1000, **made}
    buffer = ReplayBuffer(schema={**PLAIN, "policy_version": "int64"}, seed=0, **made)
    for length in lengths:
        for t in range(length):
            h, last = np.full(2, t), t == length - 1
            buffer.add(obs=float(t), h=h, terminated=last, policy_version=t)
    return buffer


@pytest.mark.parametrize(("transport", "num_workers"), [("shm", 0), ("tcp", 2)])
def test_a_loader_shows_sequences_and_sets_their_priorities(transport, num_workers):
    view = Sequences(4, burn_in=1, boundary="pad", state="h", eta=0.5)
    buffer = episodes_of([9, 3, 12], sampler=Prioritized(alpha=1.0, eps=0.0))
    with serving(buffer) as client:
        table = client.table("t")
        source = table.source(view=view, transport=transport, prefetch=1)
        with AsyncDataLoader(source, 16, num_workers=num_workers) as loader:
            for _ in range(3):
                batch = {name: value.numpy() for name, value in next(loader).items()}
                there = batch["mask"]
                steps = batch["h"][:, :1] + np.arange(5)
                assert (batch["obs"] == steps * there).all()
                errors = np.where(there, 1.0, np.nan)
                assert loader.update_priorities(batch["index"], errors).applied == 16
            new = np.full((2, 5), np.nan)
            new[0, :2], new[1, 0] = (8.0, 0.0), 2.0  # 0.5 * 8 + 0.5 * 4 = 6, and 2
            everything = table.sample(200, view=view)["index"]
            rest = np.setdiff1d(everything, [0, 9])
            assert table.update_priorities(rest, np.zeros(len(rest))).stale == 0
            assert loader.update_priorities(np.array([0, 9]), new).applied == 2
            assert loader.update(np.array([0, 9]), h=np.full((2, 2), 7.0)).applied == 2
            drawn = table.sample(4000, view=view)
            assert np.mean(drawn["index"] == 0) == pytest.approx(6 / 8, abs=0.03)
            assert (drawn["h"] == 7.0).all()


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"kind": "sequence", "length": 3}, "did you mean 'sequences'"),
        ({"kind": "sequences"}, "it needs 'length'"),
        ({"kind": "sequences", "length": 0}, "length=0"),
        ({"kind": "sequences", "length": 3, "boundary": "wrap"}, "boundary"),
        ({"length": 3, "burn": 1}, "did you mean 'burn_in'"),
        (Sequences(400), "does not fit"),
    ],
)
def test_settings_of_views_that_cannot_be_are_refused(view, message):
    with pytest.raises(ConfigError, match=message):
        connect(
            "embedded", tables={"t": {"capacity": 100, "schema": {"x": "float32"}, "view": view}}
        )


def test_policy_versions_come_with_each_step_and_the_lag_is_that_of_the_newest():
    with serving(episodes_of([12])) as client:
        client.publish("policy", {"w": np.zeros(1)}, version=20)
        with client.table("t").writer() as writer:
            for t in range(4):
                writer.append(obs=0.0, h=np.zeros(2), terminated=False, policy_version=15 + t)
            writer.flush()
            batch = client.table("t").sample(64, view=Sequences(4, stride=1))
            assert batch["policy_version"].shape == (64, 4)
            assert (np.diff(batch["policy_version"], axis=1) == 1).all()
            status = client.status()["tables"]["t"]
        assert status["policies"]["policy"]["lag"] == 2
        assert (status["inserted"], status["sampled"]) == (15, 64)  # the newest step waits


def test_a_resumed_source_shows_sequences_of_the_next_feeder_under_ids_of_its_own(tmp_path, caplog):
    caplog.set_level(logging.ERROR, "async_loader")
    view = Sequences(4, boundary="pad")
    feeder = Feeder(tmp_path, {"t": episodes_of([6], view=view)})
    with connect(feeder.address) as client:
        source = client.table("t").source(prefetch=0)
        first = planned(source, 8)
        feeder.die()
        feeder = Feeder(tmp_path, {"t": episodes_of([6], view=view)})
        try:
            while (second := planned(source, 8))["index"].max() < 1 << SERVER_BITS:
                pass
            there = second["mask"]
            assert (second["step_index"][~there] == -1).all()
            assert (second["step_index"][there] >> SERVER_BITS == 1).all()
            assert (second["step_index"][:, 0] == second["index"]).all()
            sampled = client.table("t").sample(8)
            assert (sampled["step_index"][:, 0] == sampled["index"]).all()
            got = client.table("t").get(second["step_index"][there])
            assert (got["step_index"][:, 0] == got["index"]).all()
            assert len(got["index"]) == there.sum()
            assert (first["step_index"][first["mask"]] < 1 << SERVER_BITS).all()
            assert not len(client.table("t").get(first["index"])["index"])
            source.close()
        finally:
            feeder.close()


@pytest.mark.parametrize(("transport", "num_workers"), [("shm", 0), ("tcp", 2)])
def test_whole_episodes_come_without_padding(transport, num_workers):
    view = Sequences(9, whole="ragged")
    with serving(episodes_of([3, 9, 1, 10])) as client:
        table = client.table("t")
        source = table.source(view=view, transport=transport)
        with AsyncDataLoader(source, 8, num_workers=num_workers) as loader:
            batches = [{k: v.numpy() for k, v in next(loader).items()} for _ in range(2)]
        for batch in [table.sample(8, view=view), table.get([0, 3, 12], view=view), *batches]:
            lengths = [{0: 3, 3: 9, 12: 1}[one] for one in batch["index"].tolist()]
            assert np.diff(batch["offsets"]).tolist() == lengths
            assert batch["obs"].tolist() == [t for one in lengths for t in range(one)]
        steps = table.sample(4, view=Sequences(2))["step_index"]
        assert table.update(steps, h=np.ones((4, 2, 2))).applied == 8
    settings = {"capacity": 9, "view": view}
    with pytest.raises(ConfigError, match="where the table is read"):
        connect("embedded", tables={"t": settings})


def test_sequences_that_go_on_into_the_next_episode_are_of_one_stream():
    view, envs = Sequences(4, stride=1, boundary="cross"), list(range(3))
    schema = {"env": "int64", "terminated": "bool"}
    with serving(ReplayBuffer(100, schema, view=view)) as client:
        table = client.table("t")
        with table.writer() as writer:
            for t in range(12):  # all episodes end in the same step
                writer.extend(env=np.array(envs), terminated=np.full(3, t % 3 == 2), stream=envs)
            writer.flush()
            env = table.get(np.arange(36))["env"]
    assert len(env) == 27
    assert (env == env[:, :1]).all()


def test_a_stream_keeps_its_number_unless_many_others_come():
    numbers = StreamNumbers("own")
    first = [numbers.number(name) for name in "abc"]
    numbers.ended(first)
    assert [numbers.number(name) for name in "cba"] == first[::-1]
    for name in range(10_000):  # a name for each episode
        numbers.ended([numbers.number(name)])
    assert [numbers.number(name) for name in "abc"] == first
    assert numbers.most <= 256
    assert len(numbers.numbers) <= 256
