"""Writers in other processes do what writers in the owner's process do; their handles, their waits,
their ends.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from async_loader import Field, Prioritized, RateLimiter, ReplayBuffer, Transitions
from async_loader.errors import (
    Broken,
    CannotSend,
    Closed,
    ConfigError,
    SchemaError,
    Timeout,
    Unsupported,
)
from async_loader.lifecycle import Deadline
from async_loader.replay.base import ring_format
from async_loader.replay.multiprocess import WriterHandle, row_grants
from async_loader.replay.samplers import Lifo
from async_loader.testing.debug import debug_state

PATIENCE_S = 60.0
LINKED = {
    "obs": Field((2,), np.float32, stack=3, next="next_obs"),
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
}
PLAIN = {"x": np.int64, "y": ((4,), np.float32)}


def plain(i: int) -> dict[str, Any]:
    return {"x": i, "y": np.full(4, i, np.float32)}


def run(handle: WriterHandle, method: str, target: Any, *args: Any) -> None:
    process = multiprocessing.get_context(method).Process(target=target, args=(handle, *args))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    process.close()


# -- the same as in-process ------------------------------------------------------------------------


def episodes(into: Any) -> None:
    """Some of each kind: terminated, truncated with a final observation, ended afterwards, given
    up, open.
    """
    obs = iter(np.arange(200, dtype=np.float32).reshape(100, 2))
    for length, last in (
        (5, {"terminated": True}),
        (4, {"truncated": True, "final_obs": np.array([900, 901], np.float32)}),
    ):
        for k in range(length):
            into.append(obs=next(obs), reward=float(k), **(last if k == length - 1 else {}))
    for k in range(3):
        into.append(obs=next(obs), reward=float(k))
    into.end_episode(final_obs=np.array([910, 911], np.float32), truncated=True)
    for k in range(4):
        into.append({"obs": next(obs), "reward": float(k)})
    into.end_episode()
    into.append(
        obs=next(obs), reward=7.0, terminated=True, final_obs=np.array([920, 921], np.float32)
    )


def write_episodes(handle: WriterHandle) -> None:
    with handle.open(stream="actor") as into:
        episodes(into)


def contents(buffer: ReplayBuffer, view: Transitions | None = None) -> dict[float, Any]:
    """Every item, by its own observation."""
    source = buffer.source(view=view)
    table = debug_state(buffer).state.table
    ids = np.sort(table.ids[np.flatnonzero(table.items.alive)])
    reader = source.reader()
    assert reader is not None
    out = reader.fresh(len(ids))
    assert not len(reader.fill(ids, out))
    batch = reader.schema.rebuild(out.fields)
    del batch["index"]
    keys = batch["obs"][:, -1, 0].tolist()
    return {
        key: {name: column[i].tolist() for name, column in batch.items()}
        for i, key in enumerate(keys)
    }


@pytest.mark.parametrize("view", [None, Transitions(n_steps=1), Transitions(n_steps=3, gamma=0.5)])
def test_episodes_of_another_process_are_those_of_this_one(
    start_method: str, view: Transitions | None
) -> None:
    here, there = (ReplayBuffer(1000, LINKED, seed=0) for _ in range(2))
    for buffer in (here, there):
        buffer.source(view=view)  # so that steps wait for as many successors
    episodes(here.writer("actor"))
    run(there.writer_handle(), start_method, write_episodes)
    assert contents(here, view) == contents(there, view)
    last = [debug_state(one).state.table.last[0] for one in (here, there)]
    assert last[0] == last[1] < 0, "the next step continues no episode"


def write_interrupted(handle: WriterHandle) -> None:
    with handle.open() as into:
        ring = into._row_grants._kernels
        publish = ring.publish

        def interrupted(*args: Any) -> None:
            publish(*args)
            raise KeyboardInterrupt

        for i in range(20):
            ring.publish = interrupted if i % 3 == 2 else publish
            try:
                into.append(plain(i))
            except KeyboardInterrupt:
                continue
        ring.publish = publish
        into.flush()


def test_rows_are_filled_once_whenever_an_interrupt_comes() -> None:
    buffer = ReplayBuffer(100, PLAIN, seed=0)
    run(buffer.writer_handle(), "fork", write_interrupted)
    table = debug_state(buffer).state.table
    ids = np.sort(table.ids[np.flatnonzero(table.items.alive)])
    cells = table.storage.cells
    assert cells[0][table.find(ids)].tolist() == list(range(20))
    assert cells[1][table.find(ids)][:, 0].tolist() == list(range(20))


def write_many(handle: WriterHandle) -> None:
    with handle.open() as into:
        names = ["a", "b", "c", "d"]
        for t in range(50):
            ends = np.array([t % 10 == 9, t % 7 == 6, False, False])
            obs = np.full((4, 2), t, np.float32) + 100 * np.arange(4, dtype=np.float32)[:, None]
            into.extend(
                obs=obs,
                reward=np.ones(4, np.float32),
                terminated=ends,
                truncated=np.zeros(4, np.bool_),
                stream=names,
            )
        into.extend(
            obs=np.arange(600, dtype=np.float32).reshape(300, 2) + 1000,
            reward=np.arange(300, dtype=np.float32),
            terminated=np.zeros(300, np.bool_),
            truncated=np.arange(300) % 20 == 19,
            final_obs=np.full((300, 2), 5000, np.float32),
            stream="long",
        )
        into.flush()
        for name in ["a", "b", "c", "d", "long"]:
            into.end_episode(stream=name, terminated=True)


def test_rows_of_many_streams_and_many_rows_of_one_are_linked_as_in_this_process() -> None:
    here, there = (ReplayBuffer(2000, LINKED, seed=0) for _ in range(2))

    class Here:
        """A writer's methods, on the buffer."""

        extend = here.extend

        def open(self) -> Any:
            return self

        def flush(self) -> None: ...

        def end_episode(self, stream: str, terminated: bool) -> None:
            here.end_episode(stream=stream, terminated=terminated)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

    write_many(Here())  # type: ignore[arg-type]
    run(there.writer_handle(), "fork", write_many)
    assert contents(here) == contents(there)


def write_some(handle: WriterHandle, first: int, count: int) -> None:
    with handle.open() as into:
        for i in range(first, first + count):
            into.append(plain(i))


def test_writers_beside_each_other_and_beside_the_owner_lose_nothing() -> None:
    buffer = ReplayBuffer(20_000, PLAIN, seed=0)
    fork = multiprocessing.get_context("fork")
    started = [
        fork.Process(target=write_some, args=(buffer.writer_handle(), 10_000 * n, 3000))
        for n in (1, 2, 3)
    ]
    for process in started:
        process.start()
    for i in range(1000):
        buffer.add(plain(i))
    buffer.extend(
        x=np.arange(1000, 3000), y=np.repeat(np.arange(1000, 3000, dtype=np.float32)[:, None], 4, 1)
    )
    for process in started:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        process.close()
    assert len(buffer) == 12_000
    table = debug_state(buffer).state.table
    rows = np.flatnonzero(table.items.alive)
    found = table.storage.cell(0)[rows]
    assert sorted(found.tolist()) == [
        i for n in range(4) for i in range(10_000 * n, 10_000 * n + 3000)
    ]
    assert (table.storage.cell(1)[rows] == found[:, None]).all()
    for n in range(4):
        mine = found[np.argsort(table.ids[rows])]
        mine = mine[mine // 10_000 == n]
        assert (np.diff(mine) == 1).all()


def test_the_owner_goes_around_rows_that_writers_hold_and_tells_samplers_the_truth() -> None:
    with ReplayBuffer(64, {"x": ((4000,), np.int64)}, seed=0) as buffer:
        writers = [buffer.writer_handle().open() for _ in range(3)]
        for into in writers:
            into.append(x=np.zeros(4000, np.int64))
        for n in range(2000):
            buffer.add(x=np.full(4000, n))
            if n % 50 == 0:
                buffer.extend(x=np.full((7, 4000), n))
                assert len(buffer) == debug_state(buffer).state.table.items.alive.sum()
        assert (buffer.sample(32)["x"] >= 1900).all()
        for into in writers:
            into.close()


# -- priorities, schemas, names --------------------------------------------------------------------


def test_priorities_come_with_the_rows_and_are_checked_as_here() -> None:
    with (
        ReplayBuffer(1000, PLAIN, sampler=Prioritized(1.0), seed=0) as buffer,
        buffer.writer_handle().open() as into,
    ):
        for i in range(20):
            into.append(plain(i), priority=1.0 if i == 7 else 0.0)
        assert set(buffer.sample(50)["x"].tolist()) <= {7}
        for wrong in (-1.0, float("inf")):
            with pytest.raises(ConfigError, match="priorities are numbers from 0"):
                into.append(plain(0), priority=wrong)
        assert into.extend(
            x=np.arange(2), y=np.zeros((2, 4), np.float32), priority=[0.0, 0.0]
        ).tolist() == [20, 21]
        assert buffer.update_priorities([20, 21], [1.0, 2.0]).applied == 2
    with ReplayBuffer(1000, PLAIN) as buffer, buffer.writer_handle().open() as into:
        with pytest.raises(Unsupported, match="use no priorities"):
            into.append(plain(0), priority=1.0)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"x": 1}, "does not fit the schema"),
        ({"x": 1.5, "y": np.zeros(4, np.float32)}, "'x'"),
        ({"x": 1, "y": np.zeros(5, np.float32)}, "nothing is broadcast"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_as_here_and_nothing_is_written(
    step: Any, text: str
) -> None:
    with ReplayBuffer(1000, PLAIN) as buffer, buffer.writer_handle().open() as into:
        with pytest.raises(SchemaError, match=text) as there:
            into.append(step)
        with pytest.raises(SchemaError) as here:
            buffer.add(step)
        assert str(here.value) == str(there.value)
        assert len(buffer) == 0
        assert into.append(plain(3)) == 0
        assert buffer.sample(1)["x"].tolist() == [3]


def test_handles_need_a_schema_an_ordered_table_and_room() -> None:
    with pytest.raises(ConfigError, match="give the buffer a schema"):
        ReplayBuffer(100).writer_handle()
    with pytest.raises(Unsupported, match="Fifo remover"):
        ReplayBuffer(100, PLAIN, remover=Lifo()).writer_handle()
    with ReplayBuffer(16, {"x": ((9000,), np.float64)}) as buffer:
        handles = [buffer.writer_handle() for _ in range(2)]
        with pytest.raises(ConfigError, match="raise its capacity"):
            buffer.writer_handle()
        assert len(handles) == 2


def test_a_handle_is_used_once_and_one_that_is_dropped_gives_its_place_to_another() -> None:
    with ReplayBuffer(1000, PLAIN) as buffer:
        handle = buffer.writer_handle()
        with handle.open() as into:
            with pytest.raises(ConfigError, match="opened or closed already"):
                handle.open()
            into.append(plain(1))
        with pytest.raises(Closed, match="this writer was closed"):
            into.append(plain(1))
        with pytest.raises(Closed):
            pickle.dumps(handle)
        into.close()
        other = buffer.writer_handle()
        copy = WriterHandle(
            *(os.dup(fd) for fd in other._fds),
            other._ring,
            other._clock,
            other._storage,
            other._terms,
        )
        with copy.open():
            with pytest.raises(ConfigError, match=f"process {os.getpid()} has opened"):
                other.open()
        del other, copy, handle
        gc.collect()
        # a question that is answered after the thread has seen the others go
        with buffer.writer_handle().open() as into:
            into.flush(PATIENCE_S)
            state = debug_state(buffer).state
            with state.lock:  # it may answer before it has let go of the others, all under the lock
                assert len(state.writers._peers) == 1  # type: ignore[union-attr]


def test_names_of_streams_may_be_many_and_long_but_have_to_pickle() -> None:
    class Own(str):
        """A class that no other process finds."""

        __slots__ = ()

    with ReplayBuffer(5000, PLAIN) as buffer, buffer.writer_handle().open() as into:
        names = [f"{i:0100}" for i in range(2000)]
        into.extend(x=np.arange(2000), y=np.zeros((2000, 4), np.float32), stream=names)
        assert buffer.stats().streams == 2001
        with pytest.raises(CannotSend, match="does not pickle"):
            into.extend(x=np.arange(1), y=np.zeros((1, 4), np.float32), stream=[Own("a")])
        with pytest.raises(ConfigError, match="use a shorter one"):
            into.extend(x=np.arange(1), y=np.zeros((1, 4), np.float32), stream="x" * 100_000)


def test_more_episodes_may_end_than_the_lane_has_records() -> None:
    buffer = ReplayBuffer(20_000, PLAIN)
    with buffer, buffer.writer_handle().open() as into:
        count = ring_format.SIZE + 100
        into.extend(
            x=np.arange(count), y=np.zeros((count, 4), np.float32), stream=list(range(count))
        )
        into.flush(PATIENCE_S)
        with debug_state(buffer).state.lock:  # no thread commits
            helper = threading.Timer(0.05, buffer.stats)
            helper.start()
            for stream in range(ring_format.SIZE - 10):
                into.end_episode(stream=stream)
        for stream in range(ring_format.SIZE - 10, count):
            into.end_episode(stream=stream)
        into.flush(PATIENCE_S)
        helper.join(PATIENCE_S)
        assert (debug_state(buffer).state.table.last < 0).all()


def write_a_stream_for_each_episode(
    handle: WriterHandle, count: int, written: Any, end: Any
) -> None:
    with handle.open(stream="long") as into:
        no = {"terminated": False, "truncated": False}
        into.append(obs=np.full(2, -2.0), reward=0.0, **no)
        for n in range(count):
            obs = np.repeat(np.arange(3 * n, 3 * n + 3, dtype=np.float32)[:, None], 2, 1)
            ends = {
                "terminated": np.array([False, False, n % 2 == 0]),
                "truncated": np.zeros(3, np.bool_),
            }
            into.extend(obs=obs, reward=np.zeros(3, np.float32), **ends, stream=f"episode {n}")
            if n % 2:
                into.end_episode(stream=f"episode {n}", terminated=True)
        into.append(obs=np.full(2, -1.0), reward=0.0, **no)
        into.end_episode(terminated=True)
        into.flush(PATIENCE_S)
        written.set()
        assert end.wait(PATIENCE_S)


def test_streams_that_a_writer_drops_are_forgotten_and_their_numbers_link_nothing_later() -> None:
    fork, count = multiprocessing.get_context("fork"), 3000
    written, end = fork.Event(), fork.Event()
    with ReplayBuffer(20_000, LINKED, seed=0) as buffer:
        process = fork.Process(
            target=write_a_stream_for_each_episode,
            args=(buffer.writer_handle(), count, written, end),
        )
        process.start()
        assert written.wait(PATIENCE_S)
        (link,) = debug_state(buffer).state.writers._peers.values()  # type: ignore[union-attr]
        assert len(link.streams) < 600, "numbers that the writer holds"
        assert len(debug_state(buffer).state.table.last) < 1200, "numbers that there are"
        end.set()
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        process.close()
        items = contents(buffer, Transitions(n_steps=1, gamma=0.5))
    expected = {float(obs): (float(obs + 1), 0.5) for obs in range(3 * count) if obs % 3 < 2}
    expected |= {-2.0: (-1.0, 0.5)}
    found = {
        obs: (item["next_obs"][-1][0], item["discount"])
        for obs, item in items.items()
        if item["discount"]
    }
    assert found == expected
    assert sorted(items) == sorted([-2.0, -1.0, *map(float, range(3 * count))])


# -- waiting ---------------------------------------------------------------------------------------


def test_a_limiter_holds_a_writer_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    # a second may pass before the owner's thread is run
    monkeypatch.setattr(row_grants, "_ANSWER_S", PATIENCE_S)
    limiter = RateLimiter(min_size_to_sample=5, samples_per_insert=1.0, error_buffer=5)
    with (
        ReplayBuffer(1000, PLAIN, limiter=limiter) as buffer,
        buffer.writer_handle().open() as into,
    ):
        for i in range(10):
            into.append(plain(i), timeout_s=PATIENCE_S)
        with pytest.raises(
            Timeout,
            match=r"0\.05 s have passed, and still cannot insert: inserting .* sample at least",
        ):
            into.append(plain(10), timeout_s=0.05)
        assert buffer.stats().inserted == 10
        deadline = Deadline(PATIENCE_S)
        while buffer.stats().waiting:  # the owner hears of it a moment later
            assert not deadline.expired
            threading.Event().wait(0.001)
        with pytest.raises(Timeout, match="0 of 3 steps are in"):
            into.extend(x=np.arange(3), y=np.zeros((3, 4), np.float32), timeout_s=0.05)
        sampler = threading.Timer(0.05, lambda: buffer.sample(2, timeout_s=PATIENCE_S))
        sampler.start()
        assert into.append(plain(10), timeout_s=PATIENCE_S) >= 10
        sampler.join()
        with pytest.raises(Timeout, match="1 of 3 steps are in"):
            into.extend(x=np.arange(3), y=np.zeros((3, 4), np.float32), timeout_s=0.05)
        buffer.limiter = None
        for i in range(100):
            into.append(plain(i), timeout_s=PATIENCE_S)
        assert buffer.stats().inserted == 112
        buffer.limiter = limiter
        with pytest.raises(Timeout, match=r"\d of 100 steps are in"):
            into.extend(x=np.arange(100), y=np.zeros((100, 4), np.float32), timeout_s=0.05)


def test_idle_permits_are_taken_back_for_writers_that_need_them() -> None:
    limiter = RateLimiter(min_size_to_sample=1, samples_per_insert=1.0, error_buffer=200)
    with ReplayBuffer(1000, PLAIN, limiter=limiter) as buffer:
        idle, busy = (buffer.writer_handle().open() for _ in range(2))
        idle.append(plain(0), timeout_s=PATIENCE_S)
        assert debug_state(buffer).state.writers._credits.promised() > 1  # type: ignore[union-attr]
        for i in range(150):
            busy.append(plain(i), timeout_s=PATIENCE_S)
        for i in range(50):
            buffer.add(plain(i), timeout_s=PATIENCE_S)
        with pytest.raises(Timeout):
            busy.append(plain(0), timeout_s=0.05)
        assert buffer.stats().inserted == 201
        idle.close()
        busy.close()


def test_a_wait_for_rows_is_woken_by_a_writer() -> None:
    with ReplayBuffer(1000, PLAIN) as buffer, buffer.writer_handle().open() as into:
        into.flush()
        drawn: list[Any] = []
        waiting = threading.Thread(
            target=lambda: drawn.append(buffer.sample(1, timeout_s=PATIENCE_S))
        )
        waiting.start()
        while not buffer.stats().waiting:
            continue
        into.append(plain(5))
        waiting.join(PATIENCE_S)
        assert drawn[0]["x"].tolist() == [5]


def test_flush_makes_rows_visible_to_readers_of_the_memory() -> None:
    with ReplayBuffer(1000, PLAIN) as buffer, buffer.writer_handle().open() as into:
        ids = [into.append(plain(i)) for i in range(10)]
        into.flush(PATIENCE_S)
        assert debug_state(buffer).state.table.storage.heads()[ids, 0].tolist() == [
            i + 1 for i in ids
        ]
        owner = debug_state(buffer).state
        with owner.lock, pytest.raises(Timeout, match="has not answered in time"):
            into.flush(0.02)
        into.flush(PATIENCE_S)


def test_a_slow_writers_rows_are_not_old_when_they_are_added() -> None:
    with ReplayBuffer(1000, PLAIN) as buffer, buffer.writer_handle().open() as into:
        for round_ in range(10):
            new = into.append(plain(10**6 + round_))
            assert buffer.stats().size
            assert debug_state(buffer).state.table.items.alive[
                new % debug_state(buffer).state.table.storage.layout.rows
            ]
            buffer.extend(x=np.arange(700), y=np.zeros((700, 4), np.float32))
        assert debug_state(buffer).state.table.granted < 600


# -- ends ------------------------------------------------------------------------------------------


def test_a_buffer_that_is_closed_says_so_to_everyone_and_leaves_nothing() -> None:
    buffer = ReplayBuffer(1000, PLAIN)
    into = buffer.writer_handle().open()
    into.append(plain(0))
    buffer.close()
    buffer.close()
    for attempt in (
        lambda: into.append(plain(0)),
        lambda: into.flush(),
        lambda: buffer.add(plain(0)),
        lambda: buffer.sample(1),
    ):
        with pytest.raises(Closed):
            attempt()
    with pytest.raises(Closed):
        buffer.writer_handle()
    into.close()


def test_a_buffer_that_is_dropped_closes_its_writers() -> None:
    buffer = ReplayBuffer(1000, PLAIN)
    into = buffer.writer_handle().open()
    into.append(plain(0))
    thread = debug_state(buffer).state.writers._thread  # type: ignore[union-attr]
    del buffer
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    with pytest.raises(Closed, match="was closed"):
        into.append(plain(0))


def test_a_source_keeps_writers_going_when_its_buffer_is_dropped() -> None:
    buffer = ReplayBuffer(1000, PLAIN)
    source = buffer.source()
    with buffer.writer_handle().open() as into:
        del buffer
        gc.collect()
        into.append(plain(0))
        into.flush(PATIENCE_S)
    del source


def test_a_thread_that_fails_breaks_the_writers_and_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = ReplayBuffer(1000, PLAIN)
    into = buffer.writer_handle().open()
    service = debug_state(buffer).state.writers
    assert service is not None
    monkeypatch.setattr(service, "_room", lambda link: 1 // 0)
    with pytest.raises(Broken, match="thread that serves writers has failed"):
        into.append(plain(0))
    with pytest.raises(Broken, match="ZeroDivisionError"):
        buffer.writer_handle()
    into.close()


def in_child(what: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            what()
        except Unsupported:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_of_a_writer_does_not_write_and_a_fork_of_the_owner_does_not_serve() -> None:
    with ReplayBuffer(1000, PLAIN) as buffer, buffer.writer_handle().open() as into:
        into.append(plain(0))

        def drop() -> None:
            into.close()
            raise Unsupported("it came here")

        assert in_child(lambda: into.append(plain(1))) == 3
        assert in_child(lambda: into.flush()) == 3
        assert in_child(drop) == 3
        assert in_child(lambda: buffer.writer_handle()) == 3
        assert in_child(lambda: buffer.add(plain(1))) == 3
        into.append(plain(2))
        into.flush(PATIENCE_S)
        assert len(buffer) == 2
