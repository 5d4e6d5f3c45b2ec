"""A table that was loaded is the table that was saved: the same contents, the same ids next, the
same draws.
"""

from __future__ import annotations

import threading
from collections import namedtuple

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
from async_loader.errors import ConfigError, Unsupported
from async_loader.replay.checkpoint import settings
from async_loader.replay.rate_limiter import Queue
from async_loader.testing.debug import debug_state

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
        key: settings._decoded(settings.sampler_json(one))
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
    assert buffer.save(tmp_path).kind == "full"
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


def test_a_loaded_table_is_saved_incrementally_on_top_of_what_it_came_from(tmp_path):
    buffer = filled(5000, 12000)
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path)
    loaded.add(obs=np.zeros(3, np.float32), reward=1.0, done=True)
    report = loaded.save(tmp_path)
    # the step, the one before it, the one that made room
    assert (report.kind, report.rows) == ("incremental", 3)
    assert same(contents(ReplayBuffer.from_checkpoint(tmp_path)), contents(loaded))


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, RankPrioritized, Fifo])
def test_after_one_percent_of_the_rows_changed_a_save_writes_little_but_all_priorities(
    sampler, tmp_path
):
    buffer = ReplayBuffer(
        200_000, {"obs": ((40,), "float32"), "reward": "float32"}, sampler=sampler(), seed=0
    )
    rng = np.random.default_rng(0)
    for _ in range(3):
        buffer.extend(
            obs=rng.random((80_000, 40), np.float32), reward=rng.random(80_000, np.float32)
        )
    buffer.sample(256)
    full = buffer.save(tmp_path)
    for change in range(4):
        if change == 0:
            buffer.extend(
                obs=rng.random((2000, 40), np.float32), reward=rng.random(2000, np.float32)
            )
        elif change == 1:
            buffer.update(
                rng.choice(np.arange(60_000, 240_000), 2000, replace=False),
                reward=np.ones(2000, np.float32),
            )
        elif change == 2:
            buffer.delete(rng.choice(np.arange(60_000, 240_000), 2000, replace=False))
        elif debug_state(buffer).state.prioritized:
            buffer.update_priorities(
                rng.choice(np.arange(60_000, 240_000), 2000, replace=False), rng.random(2000)
            )
        report = buffer.save(tmp_path)
        assert report.kind == "incremental"
        columns = 2 * 8 * 200_000 * debug_state(buffer).state.prioritized
        assert report.nbytes <= 0.03 * full.nbytes + columns
    assert same(contents(ReplayBuffer.from_checkpoint(tmp_path)), contents(buffer))


def test_increments_follow_a_full_save_until_they_are_half_as_large(tmp_path):
    buffer = filled(2000, 5000)
    kinds = []
    for _ in range(12):
        for i in range(250):
            buffer.add(obs=np.full(3, i, np.float32), reward=0, done=False)
        kinds.append(buffer.save(tmp_path).kind)
        assert same(contents(ReplayBuffer.from_checkpoint(tmp_path)), contents(buffer))
    assert kinds[0] == "full"
    assert 1 < kinds.count("full") < 6
    kept = sorted(path.name for path in tmp_path.iterdir())
    last_full = len(kinds) - 1 - kinds[::-1].index("full")
    assert kept == [f"save-{number + 1:08}" for number in range(last_full, len(kinds))]


def test_two_folders_are_saved_to_in_turn(tmp_path):
    buffer = filled()
    for turn in range(3):
        for name in "ab":
            buffer.add(obs=np.zeros(3, np.float32), reward=turn, done=False)
            assert buffer.save(tmp_path / "in" / "new folders" / name).kind == "full"
            assert same(
                contents(ReplayBuffer.from_checkpoint(tmp_path / "in" / "new folders" / name)),
                contents(buffer),
            )


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
    who, count, block, check, _ = table.storage.cells
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
    reports = []
    with Writers(buffer):
        while len(buffer) < 3000:
            threading.Event().wait(0.001)
        for _ in range(6):
            reports.append(buffer.save(tmp_path))
            before = int(debug_state(buffer).state.table.g[7])
            loaded = ReplayBuffer.from_checkpoint(tmp_path)
            check_cut(loaded)
            assert loaded.stats().inserted <= before + 5000
    assert reports[0].kind == "full"
    check_cut(buffer)
    buffer.save(tmp_path)
    assert same(contents(ReplayBuffer.from_checkpoint(tmp_path)), contents(buffer))


def test_saves_of_several_threads_come_one_after_the_other(tmp_path):
    buffer = filled()
    numbers = []
    threads = [
        threading.Thread(target=lambda: numbers.append(buffer.save(tmp_path).number))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [1, 2, 3, 4]


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


def test_another_seed_draws_otherwise_and_the_same_one_twice_alike(tmp_path):
    buffer = filled(sampler=Prioritized())
    buffer.sample(10)
    buffer.save(tmp_path)
    here = buffer.sample(30)["index"]
    drawn = [
        ReplayBuffer.from_checkpoint(tmp_path, seed=seed).sample(30)["index"] for seed in (5, 5, 6)
    ]
    assert same(drawn[0], drawn[1])
    assert not same(drawn[0], drawn[2])
    assert not same(drawn[0], here)


def test_a_sampler_made_as_the_saved_one_goes_on_where_that_was(tmp_path):
    buffer = filled(sampler=Prioritized(0.8))
    buffer.sample(10)
    buffer.save(tmp_path)
    loaded, other = (
        ReplayBuffer.from_checkpoint(tmp_path, sampler=Prioritized(0.8)),
        ReplayBuffer.from_checkpoint(tmp_path, sampler=Prioritized(0.5)),
    )
    assert same(loaded.sample(20), buffer.sample(20))
    assert debug_state(other).state.sampler.alpha == 0.5
    assert len(other.sample(20)["index"]) == 20


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


def test_a_sampler_of_the_users_own_has_to_be_passed_and_goes_on(tmp_path):
    buffer = filled(sampler=Mine())
    buffer.sample(10)
    buffer.save(tmp_path)
    with pytest.raises(
        ConfigError, match=r"Mine is no class of async_loader.replay.samplers: pass sampler="
    ):
        ReplayBuffer.from_checkpoint(tmp_path)
    assert same(
        ReplayBuffer.from_checkpoint(tmp_path, sampler=Mine()).sample(20), buffer.sample(20)
    )


def test_an_unknown_setting_is_refused(tmp_path):
    filled().save(tmp_path)
    with pytest.raises(TypeError, match="sampels: did you mean 'sampler'"):
        ReplayBuffer.from_checkpoint(tmp_path, sampels=3)


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
        debug_state(run.buffer).table_sampler.read_plan(view, debug_state(run.buffer).state.sampler)
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


def test_a_smaller_table_delivers_what_the_larger_one_did(tmp_path):
    buffer, _ = made("linked")
    Run(buffer, 5).step(600)
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path, capacity=60)
    small = {
        int(i): (o, n, r)
        for i, o, n, r in zip(
            *map(loaded.sample(300).get, ("index", "obs", "next_obs", "reward")), strict=True
        )
    }
    large = {
        int(i): (o, n, r)
        for i, o, n, r in zip(
            *map(buffer.sample(3000).get, ("index", "obs", "next_obs", "reward")), strict=True
        )
    }
    both = set(small) & set(large)
    assert len(both) > 20
    assert all(same(small[one], large[one]) for one in both)


def test_bytes_in_place_of_a_capacity(tmp_path):
    filled(1000, 2500).save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path, max_bytes="80KiB")
    assert loaded.nbytes <= 80 << 10
    assert 50 < loaded.capacity < 1000
    assert len(loaded) == loaded.capacity


def test_rows_out_of_order_keep_their_capacity_and_their_kind_of_remover(tmp_path):
    filled(remover=MinHeap()).save(tmp_path)
    with pytest.raises(ConfigError, match="there is no newest part of it"):
        ReplayBuffer.from_checkpoint(tmp_path, capacity=50)
    with pytest.raises(ConfigError, match="overwrites them in order: pass another remover"):
        ReplayBuffer.from_checkpoint(tmp_path, remover=Fifo())
    loaded = ReplayBuffer.from_checkpoint(tmp_path, remover=Lifo())
    newest = debug_state(loaded).state.remover.draw(1).rows
    loaded.add(obs=np.zeros(3, np.float32), reward=0, done=False)
    assert len(loaded) == 100
    assert debug_state(loaded).state.table.items.alive[newest] == 0


def test_rows_in_order_may_be_taken_over_by_a_remover(tmp_path):
    buffer = filled()
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path, remover=Lifo())
    ids = [loaded.add(obs=np.zeros(3, np.float32), reward=0, done=False) for _ in range(300)]
    assert len(set(ids)) == 300
    assert len(loaded) == 100
    linked, _ = made("linked")
    linked.save(tmp_path / "linked")
    with pytest.raises(ConfigError, match="stack or a next"):
        ReplayBuffer.from_checkpoint(tmp_path / "linked", remover=MinHeap())


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


def test_a_stream_whose_name_cannot_be_written_is_refused_before_it_is_there(tmp_path):
    buffer = filled()
    before = buffer.stats()
    with pytest.raises(ConfigError, match=r"stream=\('a', b'b'\) cannot be saved: .* not by bytes"):
        buffer.add(obs=np.zeros(3, np.float32), reward=0, done=False, stream=("a", b"b"))
    assert buffer.stats() == before
    buffer.save(tmp_path)


def test_a_table_without_steps_is_saved(tmp_path):
    empty = ReplayBuffer(50, seed=4)
    assert empty.save(tmp_path).rows == 0
    loaded = ReplayBuffer.from_checkpoint(tmp_path)
    for buffer in (empty, loaded):
        buffer.add(x=1.0)
        buffer.add(x=2.0)
    assert same(empty.sample(20), loaded.sample(20))
    assert empty.save(tmp_path).kind == "full"
    assert same(ReplayBuffer.from_checkpoint(tmp_path).sample(5), empty.sample(5))
    in_bytes = ReplayBuffer("1MB")
    in_bytes.save(tmp_path / "bytes")
    for buffer in (in_bytes, ReplayBuffer.from_checkpoint(tmp_path / "bytes")):
        buffer.add(x=1.0)
        assert buffer.capacity > 1000
        assert 0.9e6 < buffer.nbytes <= 1e6
    with_schema = ReplayBuffer(50, PLAIN)
    with_schema.save(tmp_path / "schema")
    assert ReplayBuffer.from_checkpoint(tmp_path / "schema").schema == with_schema.schema


Pair = namedtuple("Pair", "left right")


def test_nested_schemas_come_back(tmp_path):
    step = {
        "obs": {"image": np.zeros((4, 4), np.uint8), "pair": Pair(np.zeros(2), np.int16(3))},
        "tuple": (1.0, (2, True)),
    }
    buffer = ReplayBuffer(20, seed=0)
    for _ in range(5):
        buffer.add(step)
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path)
    assert loaded.schema.fields == buffer.schema.fields
    assert loaded.add(step) == 5
    batch = loaded.sample(3)
    assert batch["obs"]["pair"]._fields == ("left", "right")
    assert type(batch["tuple"][1]) is tuple


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


def test_samplers_of_sources_get_new_seeds_after_loading(tmp_path):
    buffer = filled()
    buffer.source(sampler=Uniform())
    buffer.save(tmp_path)
    loaded = ReplayBuffer.from_checkpoint(tmp_path)
    assert (
        debug_state(loaded).state.seeds.n_children_spawned
        == debug_state(buffer).state.seeds.n_children_spawned
        == 3
    )
    state = [debug_state(one).state.seeds.spawn(1)[0].generate_state(4) for one in (buffer, loaded)]
    assert same(*state)


def test_a_fork_does_not_save(tmp_path):
    buffer = filled()
    debug_state(buffer).state.foreign = True
    with pytest.raises(
        Unsupported, match="only the process that made a replay buffer saves and loads it"
    ):
        buffer.save(tmp_path)


def test_a_state_that_is_no_json_is_refused(tmp_path):
    buffer = filled(sampler=Mine())
    buffer.sampler.state = lambda: {"rng": object()}
    with pytest.raises(ConfigError, match=r"the state of the sampler is no JSON"):
        buffer.save(tmp_path)
