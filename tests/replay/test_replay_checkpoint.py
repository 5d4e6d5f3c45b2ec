"""A table that was loaded is the table that was saved: the same contents, the same ids next, the
same draws.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from checkpoint_rig import LINKED, PLAIN, Run, contents, same

from async_loader import (
    Field,
    Fifo,
    Lifo,
    Linear,
    MaxHeap,
    MinHeap,
    MinSize,
    Prioritized,
    RankPrioritized,
    RateLimiter,
    Recency,
    ReplayBuffer,
    Sequences,
    Transitions,
    Uniform,
)
from async_loader.errors import ConfigError
from async_loader.replay.checkpoint import manifest
from async_loader.replay.rate_limiter import Queue
from tests.table_parts import debug_state

TABLES = {
    "uniform": (PLAIN, {}, None),
    "different": (PLAIN, {"sampler": Uniform(replacement=False)}, None),
    "deleted": (PLAIN, {"max_times_sampled": 3}, None),
    "prioritized": (PLAIN, {"sampler": Prioritized(0.7, Linear(0.4, 1.0, 30))}, None),
    "largest now": (
        PLAIN,
        {"sampler": Prioritized(new_priority="max_now", normalize="buffer", stratified=False)},
        None,
    ),
    "rank": (PLAIN, {"sampler": RankPrioritized(resort_every=40)}, None),
    "queue": (PLAIN, {"sampler": Fifo(), "max_times_sampled": 1}, None),
    "stack": (PLAIN, {"sampler": Lifo(), "remover": Lifo(), "max_times_sampled": 1}, None),
    "lowest goes": (PLAIN, {"remover": MinHeap()}, None),
    "highest first": (
        PLAIN,
        {"sampler": MaxHeap(), "remover": MinHeap(), "max_times_sampled": 2},
        None,
    ),
    "linked": (LINKED, {"sampler": Prioritized()}, None),
    "returns": (LINKED, {}, Transitions(n_steps=3, gamma=0.9)),
    "plain returns": (PLAIN, {}, Transitions(n_steps=4)),
}


def made(name: str, capacity: int = 100) -> tuple[ReplayBuffer, Transitions | None]:
    schema, given, view = TABLES[name]
    kinds = {
        key: manifest.settings_of(manifest.settings_json(one), key)
        for key, one in given.items()
        if key != "max_times_sampled"
    }
    times = given.get("max_times_sampled", 0)
    return ReplayBuffer(capacity, schema, **kinds, max_times_sampled=times, seed=11), view


def filled(capacity: int = 100, steps: int = 250, **given) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, PLAIN, seed=1, **given)
    for i in range(steps):
        buffer.add(obs=np.full(3, i, np.float32), reward=i, done=False, stream=i % 3)
    return buffer


@pytest.mark.parametrize("name", TABLES)
def test_a_loaded_table_holds_what_was_saved_and_two_of_them_go_on_alike(name, tmp_path):
    buffer, view = made(name)
    run = Run(buffer, 5, view)
    run.step(400)
    buffer.save(tmp_path)
    for more in range(3):
        run.step(40)
        report = buffer.save(tmp_path)
        assert report.nbytes == sum(
            file.stat().st_size for file in (tmp_path / f"save-{report.number:08}").iterdir()
        )
        loaded = ReplayBuffer.from_checkpoint(tmp_path)
        assert same(contents(loaded), contents(buffer))
        assert Run(loaded, 100 + more, view).step(0) == []
    other = ReplayBuffer.from_checkpoint(tmp_path)
    for stream in list(debug_state(buffer).state.table.streams):
        buffer.end_episode(stream=stream)
        other.end_episode(stream=stream)
        loaded.end_episode(stream=stream)
    assert same(contents(loaded), contents(buffer))
    assert same(contents(other), contents(buffer))
    there, back = Run(other, 9, view), Run(loaded, 9, view)
    assert same(there.step(400), back.step(400))
    assert same(contents(loaded), contents(other))


# -- while others write ----------------------------------------------------------------------------


class Writers:
    """Threads that add as fast as they can, steps that say what they are."""

    def __init__(self, buffer: ReplayBuffer, count: int = 4) -> None:
        self.buffer, self.end = buffer, threading.Event()
        self.threads = [
            threading.Thread(target=self.write, args=(number,)) for number in range(count)
        ]

    def write(self, number: int) -> None:
        count, rng = 0, np.random.default_rng(number)
        while not self.end.is_set():
            n = int(rng.integers(1, 40))
            steps = np.arange(count, count + n)
            block = np.repeat((steps * 7 + number)[:, None], 300, 1)
            self.buffer.extend(
                stream=number,
                who=np.full(n, number),
                count=steps,
                block=block,
                check=block.sum(1),
                patched=steps,
            )
            if rng.random() < 0.1:
                ids = np.unique(self.buffer.sample(20)["index"])
                self.buffer.update(ids, patched=np.full(len(ids), -1))
                self.buffer.update_priorities(ids, rng.random(len(ids)))
            count += n

    def __enter__(self) -> Writers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join()


def check_cut(buffer: ReplayBuffer) -> None:
    """No row is torn, no stream has a gap, and everything that is counted fits together."""
    table = debug_state(buffer).state.table
    who, count, block, check, _ = (table.storage.cell(i) for i in range(5))
    heads = table.storage.heads()
    names = heads[:, 0] - 1
    used = np.flatnonzero(names >= 0)
    cursor = int(table.state()["cursor"])
    assert sorted(names[used]) == list(range(max(0, cursor - len(names)), cursor))
    assert (block[used] == block[used][:, :1]).all()
    assert (block[used, 0] == count[used] * 7 + who[used]).all()
    assert (check[used] == block[used].sum(1)).all()
    # whose last step has left the table: they are forgotten
    total, unseen = 0, len(set(range(4)) - set(table.streams))
    for name, number in table.streams.items():
        last = table.last[number]
        mine = used[who[used] == name]
        # its thread was not run for so long that the others have wrapped the ring
        if not len(mine):
            unseen += 1
            continue
        mine = mine[np.argsort(names[mine])]
        assert (np.diff(count[mine]) == 1).all()
        assert (heads[mine[1:], 1] == names[mine[:-1]]).all()
        assert (heads[mine[:-1], 2] == names[mine[1:]]).all()
        assert names[mine[-1]] == last
        total += int(count[mine[-1]]) + 1
    assert cursor == table.inserted
    assert unseen or total == cursor
    assert len(table) == int(table.items.alive.sum()) == table.inserted - table.deleted
    assert (table.ids[used] == names[used]).all()


@pytest.mark.slow
def test_a_save_beside_four_writers_shows_one_moment(tmp_path):
    schema = {
        "who": "int64",
        "count": "int64",
        "block": ((300,), "int64"),
        "check": "int64",
        "patched": "int64",
    }
    buffer = ReplayBuffer(3000, schema, sampler=Prioritized(), seed=0)
    with Writers(buffer):
        while len(buffer) < 3000:
            threading.Event().wait(0.001)
        for _ in range(6):
            buffer.save(tmp_path)
            before = int(debug_state(buffer).state.table.g[7])
            loaded = ReplayBuffer.from_checkpoint(tmp_path)
            check_cut(loaded)
            assert loaded.stats().inserted <= before + 5000
    check_cut(buffer)
    buffer.save(tmp_path)
    assert same(contents(ReplayBuffer.from_checkpoint(tmp_path)), contents(buffer))


# -- other settings --------------------------------------------------------------------------------


def test_overridden_settings_hold_and_the_others_are_as_saved(tmp_path):
    buffer = filled(limiter=MinSize(7), max_times_sampled=5)
    buffer.sample(40)
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(
        tmp_path,
        limiter=RateLimiter(min_size_to_sample=10, samples_per_insert=2.0, error_buffer=1e6),
        sampler=Prioritized(),
        max_times_sampled=2,
    )
    assert loaded.limiter.samples_per_insert == 2.0
    assert (loaded.stats().inserted, loaded.stats().sampled) == (250, 40)
    table = debug_state(buffer).state.table
    assert len(loaded) == int((table.times[table.items.alive != 0] < 2).sum()) < len(buffer)
    assert "weight" in loaded.sample(10)
    plain = ReplayBuffer.from_checkpoint(tmp_path, limiter=None)
    assert plain.limiter is None
    assert debug_state(plain).state.max_times_sampled == 5
    assert repr(debug_state(plain).state.sampler) == "Uniform()"


@pytest.mark.parametrize("in_place", [False, True], ids=["from_checkpoint", "load"])
@pytest.mark.parametrize("capacity", [50, 100, 200])
@pytest.mark.parametrize("view", [None, Sequences(4)], ids=["steps", "sequences"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Prioritized(beta=Linear(0.0, 1.0, draws=40)),
        lambda: RankPrioritized(beta=Linear(0.0, 1.0, draws=40)),
        lambda: Recency(Linear(90.0, 1.0, draws=40)),
    ],
    ids=["Prioritized", "RankPrioritized", "Recency"],
)
def test_schedules_and_the_largest_priority_go_on_in_any_capacity(
    make, view, capacity, in_place, tmp_path
):
    schema = {"x": np.int64, "terminated": np.bool_}

    def drawn_from(buffer):
        table_state = debug_state(buffer).state
        if view is None:
            return table_state.sampler
        (one,) = table_state.sequence_samplers.values()
        return one.sampler

    def add(buffer, count):
        buffer.extend(x=np.arange(count), terminated=np.arange(count) % 20 == 19, stream=0)

    buffer = ReplayBuffer(100, schema, sampler=make(), view=view, seed=0)
    add(buffer, 40)
    prioritized = buffer.sampler.prioritized
    for _ in range(30):
        batch = buffer.sample(4)
        if prioritized and view is None:
            buffer.update_priorities(batch["index"], np.full(4, 50.0))
    if prioritized and view is None:
        buffer.update_priorities(np.arange(40), np.full(40, 0.5))
    add(buffer, 20)
    buffer.save(tmp_path)
    if in_place:
        loaded = ReplayBuffer(capacity, schema, sampler=make(), view=view, seed=1)
        add(loaded, 10)
        loaded.sample(1)
        loaded.load(tmp_path)
    else:
        loaded = ReplayBuffer.from_checkpoint(tmp_path, capacity=capacity)
    was, now = drawn_from(buffer).state(), drawn_from(loaded).state()
    assert was["draws"] == now["draws"] == 30
    assert was.get("largest") == now.get("largest")
    if type(buffer.sampler) is Prioritized and view is None and capacity >= 100:
        # steps without a priority have the largest of all
        left, right = buffer.sample(600), loaded.sample(600)
        for batch in (left, right):
            assert (batch["index"] >= 40).mean() > 0.7
        assert left["weight"].min() == pytest.approx(right["weight"].min())


class Mine(Uniform):
    """A class that no checkpoint can name."""


def live(buffer: ReplayBuffer) -> list[int]:
    table = debug_state(buffer).state.table
    return sorted(table.ids[table.items.alive != 0].tolist())


@pytest.mark.parametrize("capacity", [6, 17, 99, 250, 2000])
@pytest.mark.parametrize("name", ["uniform", "prioritized", "linked", "returns", "deleted"])
def test_another_capacity_holds_what_a_table_of_that_capacity_would(name, capacity, tmp_path):
    buffer, view = made(name)
    other, _ = made(name, capacity)
    runs = [Run(one, 5, view) for one in (buffer, other)]
    for run in runs:
        debug_state(run.buffer).state.read_plan(view, debug_state(run.buffer).state.sampler)
        for _ in range(400):
            run.add()
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path, capacity=capacity)
    still_there = set(debug_state(buffer).state.table.ids.tolist())
    assert set(live(loaded)) <= set(live(other))
    assert [one for one in live(other) if one in set(live(buffer)) or capacity < 100] == live(
        loaded
    )
    assert set(live(loaded)) <= still_there
    stats = loaded.stats()
    assert (stats.capacity, stats.size) == (capacity, stats.inserted - stats.deleted)
    runs[0].buffer = loaded
    for run in runs:
        for _ in range(3 * capacity):
            run.add()
    assert live(loaded) == live(other)
    assert runs[0].log == runs[1].log


def test_a_folder_above_a_save_is_told_where_the_save_is(tmp_path):
    with filled() as buffer:
        buffer.save(tmp_path / "table" / "newest")
    for folder, found in ((tmp_path, "table/newest"), (tmp_path / "table", "newest")):
        with pytest.raises(ConfigError, match=f"no checkpoint in this folder: .* {found}$"):
            ReplayBuffer.from_checkpoint(folder)
    with pytest.raises(ConfigError, match=r"no checkpoint in this folder$"):
        ReplayBuffer.from_checkpoint(tmp_path / "other")


# -- what a table may be ---------------------------------------------------------------------------


def test_streams_keep_their_names_and_new_ones_are_new(tmp_path):
    buffer = ReplayBuffer(100, LINKED, seed=0)
    names = [3, "actor", ("host", 2, ("env", 1.5)), -1, True, None, np.int64(9), 2.5]
    obs = np.zeros((4, 300), np.uint8)
    for name in names:
        buffer.add(obs=obs, reward=1.0, terminated=False, truncated=False, stream=name)
    own = buffer.writer()
    own.append(obs=obs, reward=1.0)
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path)
    assert len(loaded) == len(buffer) == 0
    assert loaded.stats().streams == buffer.stats().streams == len(names) + 1
    for name in names:
        # the observation after the last step is known after all
        loaded.end_episode(stream=name, final_obs=obs)
    assert len(loaded) == len(names)
    assert loaded.writer().stream != own.stream
    loaded.end_episode(stream=own.stream, final_obs=obs)
    assert len(loaded) == len(names) + 1
    assert loaded.stats().streams == 0


def test_large_fields_and_complex_ones_come_back(tmp_path):
    schema = {
        "image": Field((40, 40), np.uint8),
        "wave": ((3,), "complex128"),
        "none": ((0,), "float32"),
    }
    buffer = ReplayBuffer(50, schema, seed=0)
    rng = np.random.default_rng(0)
    for _ in range(80):
        buffer.add(
            image=rng.integers(0, 255, (40, 40), np.uint8),
            wave=rng.random(3) * 1j,
            none=np.zeros(0, np.float32),
        )
    buffer.save(tmp_path)
    assert same(contents(ReplayBuffer.from_checkpoint(tmp_path)), contents(buffer))


@pytest.mark.parametrize(
    "limiter",
    [
        None,
        MinSize(5),
        Queue(1),
        Queue(50),
        RateLimiter(min_size_to_sample=3, samples_per_insert=4, error_buffer=(0.0, 99.0)),
        RateLimiter(min_size_to_sample=2, samples_per_insert=0.5, error_buffer=9),
    ],
)
def test_a_limiter_comes_back(limiter, tmp_path):
    buffer = ReplayBuffer(100, PLAIN, limiter=limiter, max_times_sampled=1)
    buffer.save(tmp_path)
    assert ReplayBuffer.from_checkpoint(tmp_path).limiter == limiter


def test_a_sampler_of_the_users_own_has_to_be_passed_and_goes_on(tmp_path):
    buffer = filled(sampler=Mine())
    buffer.sample(10)
    buffer.save(tmp_path)
    with pytest.raises(
        ConfigError, match=r"Mine is no class that a checkpoint can name: pass sampler="
    ):
        ReplayBuffer.from_checkpoint(tmp_path)
    assert same(
        ReplayBuffer.from_checkpoint(tmp_path, sampler=Mine()).sample(20), buffer.sample(20)
    )


def test_what_an_item_got_in_place_of_a_priority_is_its_own_after_a_load(tmp_path):
    sampler = Prioritized(alpha=1.0, eps=0.0, new_priority="max_now")
    buffer = ReplayBuffer(10, {"x": np.int64}, sampler=sampler, remover=MinHeap(), seed=0)
    buffer.add(x=0, priority=8.0)
    buffer.update_priorities([0], [2.0])
    buffer.add(x=1)
    buffer.save(tmp_path)
    for one in (buffer, ReplayBuffer.from_checkpoint(tmp_path)):
        assert np.bincount(one.sample(400)["index"]).tolist() == [200, 200]
