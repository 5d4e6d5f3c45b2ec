"""Sequences of steps, against a list of episodes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    AsyncDataLoader,
    Field,
    Lifo,
    Prioritized,
    RateLimiter,
    ReplayBuffer,
    Sequences,
    Uniform,
    errors,
)
from tests.sequence_rig import MOVES, PLAIN, VIEWS, Episodes, buffered, play


def played(moves: list[Any], linked: bool, **settings: Any) -> Episodes:
    model = buffered(linked, **settings)
    play(model, moves)
    return model


@settings(deadline=None, max_examples=200)
@given(view=VIEWS, moves=MOVES, linked=st.booleans(), room=st.sampled_from([3, 9, 20]))
def test_draws_show_the_sequences_of_a_list_of_episodes_and_no_others(view, moves, linked, room):
    each_once = Uniform(replacement=False)
    model = played(moves, linked, capacity=view.span + room, view=view, sampler=each_once)
    wanted, buffer = model.sequences(view), model.table
    if not wanted:
        with pytest.raises(errors.NotEnoughData, match="sequences"):
            buffer.sample(1)
        return
    batch = buffer.sample(len(wanted))
    assert sorted(batch["index"].tolist()) == sorted(wanted)
    model.check(batch, view)


@settings(deadline=None, max_examples=60)
@given(view=VIEWS, moves=MOVES, linked=st.booleans())
def test_a_view_that_comes_after_the_steps_shows_the_same_sequences(view, moves, linked):
    model = played(moves, linked, capacity=300)
    wanted = model.sequences(view)
    if wanted:
        batch = model.table.sample(20 * len(wanted), view=view)
        assert set(batch["index"].tolist()) <= set(wanted)
        model.check(batch, view)
        model.check(model.table.get(list(wanted), view=view), view)


def episodes_of(lengths: list[int], **settings: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(1000, PLAIN, seed=0, **settings)
    for length in lengths:
        for t in range(length):
            buffer.add(obs=float(t), h=np.full(2, t), terminated=t == length - 1)
    return buffer


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_show_sequences(num_workers):
    view = Sequences(4, burn_in=1, boundary="pad", state="h")
    buffer = episodes_of([9, 3, 12], view=view)
    with AsyncDataLoader(buffer, 16, num_workers=num_workers, seed=1) as loader:
        for _ in range(3):
            batch = next(loader)
            assert batch["obs"].shape == (16, 5)
            assert batch["h"].shape == (16, 2)
            there = batch["mask"]
            steps = batch["h"][:, :1] + torch.arange(5)
            assert (batch["obs"] == steps * there).all()


def test_an_update_writes_the_state_of_a_sequence_back():
    view = Sequences(4, state="h")
    buffer = episodes_of([8], view=view)
    with AsyncDataLoader(buffer, 4, prefetch=1) as loader:
        batch = next(loader)
        index = batch["index"].numpy()
        assert loader.update(index, h=np.full((4, 2), 7.0)).applied == 4
    assert (buffer.get(index, view=view)["h"] == 7.0).all()


def test_the_priority_of_a_sequence_mixes_the_largest_error_and_the_mean():
    view = Sequences(4, boundary="pad", eta=0.5)
    sampler = Prioritized(alpha=1.0, eps=0.0, new_priority="max_ever")
    buffer = episodes_of([4, 2], sampler=sampler, view=view)
    errors_of = np.array([[0.0, 0.0, 0.0, 8.0], [2.0, 2.0, np.nan, np.nan]])
    assert buffer.update_priorities([0, 4], errors_of).applied == 2
    # 0.5 * 8 + 0.5 * 2 = 5, and 2
    index = buffer.sample(7000)["index"]
    assert np.mean(index == 0) == pytest.approx(5 / 7, abs=0.02)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whole_episodes_come_as_values_and_offsets(num_workers):
    view = Sequences(9, whole="ragged", state="h")
    buffer = episodes_of([3, 9, 1, 10], view=view)
    with AsyncDataLoader(buffer, 8, num_workers=num_workers, seed=0, transform=_add_sum) as loader:
        batches = [{k: v.numpy() for k, v in next(loader).items()} for _ in range(3)]
    for batch in [buffer.sample(8), *batches]:
        offsets, lengths = batch["offsets"], {0: 3, 3: 9, 12: 1}
        assert (offsets.dtype, offsets.shape, offsets[0]) == (np.int64, (9,), 0)
        assert [lengths[one] for one in batch["index"].tolist()] == np.diff(offsets).tolist()
        assert batch["h"].shape == (8, 2)
        assert "mask" not in batch
        for i, first in enumerate(batch["index"]):
            steps = slice(offsets[i], offsets[i + 1])
            assert batch["obs"][steps].tolist() == list(range(offsets[i + 1] - offsets[i]))
            assert (batch["step_index"][steps] == first + batch["obs"][steps]).all()
        assert batch["is_first"].nonzero()[0].tolist() == offsets[:-1].tolist()
        assert len(batch["obs"]) == offsets[-1]
    assert all(batch["sum"] == batch["obs"].sum() for batch in batches)
    assert np.diff(buffer.get([0, 12], view=view)["offsets"]).tolist() == [3, 1]


def _add_sum(batch):
    return {**batch, "sum": batch["obs"].sum()}


def test_no_sequence_is_torn_while_a_thread_overwrites_its_steps():
    # 16 MB a batch, out of 3 MB that are overwritten several times meanwhile
    schema = {"obs": Field((4096,), "int64")}
    buffer = ReplayBuffer(96, schema, view=Sequences(32, stride=4), seed=0)
    done = threading.Event()

    def write() -> None:
        value = 0
        while not done.is_set():
            buffer.extend(obs=np.arange(value, value + 16)[:, None].repeat(4096, 1), stream=0)
            value += 16

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(6):
            obs = buffer.sample(16, timeout_s=30)["obs"]
            assert (obs == obs[:, :1, :1] + np.arange(32)[None, :, None]).all()
    finally:
        done.set()
        thread.join()


@settings(deadline=None, max_examples=40)
@given(view=VIEWS, moves=MOVES, more=MOVES, linked=st.booleans(), in_place=st.booleans())
def test_a_loaded_table_shows_the_sequences_of_the_saved_one_with_their_priorities(
    view, moves, more, linked, in_place, tmp_path_factory
):
    sampler = Prioritized(alpha=1.0, eps=0.0)
    model = played(moves, linked, capacity=40, view=view, sampler=sampler)
    wanted = sorted(model.sequences(view))
    chosen = wanted[::2]
    if chosen:
        model.table.update_priorities(wanted, np.isin(wanted, chosen) * 3.0)
    folder = tmp_path_factory.mktemp("saved")
    model.table.save(folder)
    if in_place:
        model.table.clear()
        model.table.load(folder)
    model.reopen(model.table if in_place else ReplayBuffer.from_checkpoint(folder))
    if chosen:
        batch = model.table.sample(8 * len(wanted))
        assert set(batch["index"].tolist()) <= set(chosen)
        model.check(batch, view)
    play(model, more)
    wanted = model.sequences(view)
    if wanted:
        model.table.update_priorities(list(wanted), np.ones(len(wanted)))
        batch = model.table.sample(20 * len(wanted))
        assert set(batch["index"].tolist()) <= set(wanted)
        model.check(batch, view)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length=0"),
        ({"length": 4, "stride": 0}, "stride=0"),
        ({"length": 4, "boundary": "wrap"}, "'stop', 'pad'"),
        ({"length": 4, "whole": "flat"}, "True, False or 'ragged'"),
        ({"length": 4, "eta": 2.0}, "eta=2.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(errors.ConfigError, match=message):
        Sequences(**settings)


def test_a_table_that_cannot_show_sequences_says_why():
    with pytest.raises(errors.ConfigError, match="no such field"):
        ReplayBuffer(100, PLAIN, view=Sequences(4, state="cell"))
    with pytest.raises(errors.ConfigError, match="does not fit"):
        ReplayBuffer(10, PLAIN, view=Sequences(40))
    with pytest.raises(errors.ConfigError, match="out of order"):
        ReplayBuffer(100, PLAIN, view=Sequences(4), remover=Lifo())
    with pytest.raises(errors.ConfigError, match="max_times_sampled"):
        ReplayBuffer(100, PLAIN, view=Sequences(4), max_times_sampled=2)
    with pytest.raises(errors.ConfigError, match="queue"):
        ReplayBuffer.queue(100, PLAIN, view=Sequences(4))
    few = ReplayBuffer(100, PLAIN, sampler=Uniform(replacement=False), view=Sequences(4))
    with pytest.raises(
        errors.ConfigError, match="200 items are asked for at once, and the table keeps 100"
    ):
        few.sample(200)
    with pytest.raises(errors.ConfigError, match="min_size_to_sample=5"):
        ReplayBuffer(
            100, PLAIN, view=Sequences(4), limiter=RateLimiter(samples_per_insert=1, error_buffer=2)
        )
    with pytest.raises(errors.ConfigError, match="stream"):
        ReplayBuffer(100, PLAIN, view=Sequences(4)).extend(
            obs=np.zeros(2), h=np.zeros((2, 2)), terminated=np.zeros(2, bool)
        )


def test_a_new_sequence_has_the_priority_that_its_steps_came_with():
    view = Sequences(2, burn_in=1, eta=1.0, stride=3)
    sampler = Prioritized(alpha=1.0, eps=0.0)
    buffer = ReplayBuffer(100, PLAIN, sampler=sampler, view=view, seed=0)
    for t, priority in enumerate([9.0, 1.0, 3.0, 9.0, 1.0, 1.0]):
        buffer.add(obs=float(t), h=np.zeros(2), terminated=t == 5, priority=priority)
    index = buffer.sample(4000)["index"]  # burn-in steps do not count: 3 against 1
    assert np.mean(index == 0) == pytest.approx(3 / 4, abs=0.03)


def test_a_sequence_goes_on_into_the_streams_next_episode():
    view = Sequences(4, boundary="cross")
    buffer = ReplayBuffer(100, PLAIN, view=view, seed=0)
    for stream in range(70):  # more than a table has numbers for at first
        for t in range(3):
            buffer.add(obs=float(t), h=np.zeros(2), terminated=t == 2, stream=stream % 7)
        buffer.stats()  # forgets streams that have ended, where no sequence goes on
    batch = buffer.sample(64)
    assert batch["mask"].all()
    assert (batch["is_first"] == (batch["obs"] == 0)).all()
    assert (np.diff(batch["obs"], axis=1) % 3 == 1).all()
    assert (np.diff(batch["step_index"], axis=1).max(1) == 19).all()


@pytest.mark.parametrize("own", [True, False])
def test_an_episode_that_stood_still_begins_no_other(own):
    view = Sequences(2, stride=1)
    table = ReplayBuffer(16, {"x": "int64", "terminated": "bool"}, view=view if own else None)
    for x in range(3):
        table.add(x=x, terminated=False, stream="still")
    table.get([0], view=view)
    for x in range(100, 130):  # the steps of the first stream leave
        table.add(x=x, terminated=False, stream="other")
    table.stats()
    for x in range(3, 6):
        table.add(x=x, terminated=False, stream="still")
    found = table.get(np.arange(60), view=view)
    assert 3 in found["x"][:, 0]
    assert not found["is_first"].any()
