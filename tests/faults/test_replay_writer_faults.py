"""Writers that are killed or stopped at any point: no torn row is read, and no other process
stops.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import types

import numpy as np
import pytest
from fault_rig import SLACK_S, Script, until

from async_loader.errors import Timeout
from async_loader.replay import ReplayBuffer
from async_loader.replay.multiprocess import row_grants, writer
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.schema import Field
from async_loader.testing.debug import debug_state

WORDS = 64
SCHEMA = {"number": np.int64, "words": ((WORDS,), np.int64)}
CAPACITY = 963  # with its spare rows: 1,024
POINTS = ("reserved", "half", "written", "published")
fork = multiprocessing.get_context("fork")


def row(number):
    """A row of which every word follows from its number."""
    return {"number": number, "words": number * 1_000_003 + np.arange(WORDS)}


def torn(number, words):
    return int((words != number[:, None] * 1_000_003 + np.arange(WORDS)).any(axis=1).sum())


def killed_at(point, after):
    """From now on this process ends there, the ``after``th time."""
    times = itertools.count(1)

    def die():
        if next(times) >= after:
            os.kill(os.getpid(), signal.SIGKILL)

    if point != "half":
        writer._at = lambda here: die() if here == point else None
        return
    names = row_grants.RowGrants.names

    def half_a_row(self, count):
        ids = names(self, count)
        if ids[0] % 3 == 0:
            cell = killed_at.storage.cell(1)
            cell[ids[0] % len(cell)][: WORDS // 2] = -1
            die()
        return ids

    row_grants.RowGrants.names = half_a_row


def write(handle, counts, place, point=None, after=0):
    """Rows without end; how many so far stands in ``counts``."""
    killed_at.storage = handle._storage
    if point is not None:
        killed_at(point, after)
    with handle.open() as into:
        for number in itertools.count(place << 36):
            into.append(row(number))
            counts[place] += 1


def read(reader, target, careless, tell):
    """Draw rows out of shared memory until ``target`` were read; how many of them were torn, and
    how many gone.
    """
    storage, kernels = reader._storage, reader._kernels
    rng, ids = np.random.default_rng(os.getpid()), np.empty(1024, np.int64)
    if careless:
        reader._kernels = types.SimpleNamespace(read=careless_read())
    done = bad = gone = 0
    while done < target:
        kernels.names_of(storage.geometry, rng.integers(0, storage.layout.rows, len(ids)), ids)
        there = ids[ids >= 0]
        into = reader.fresh(len(there))
        lost = reader.fill(there, into)
        good = np.ones(len(there), np.bool_)
        good[lost] = False
        number, words = into.fields[:2]
        bad += torn(number[good], words[good])
        done += int(good.sum())
        gone += len(lost)
    tell.send((done, bad, gone))


def careless_read():
    """`kernels.read`, believing what it has copied."""
    from async_loader.replay.base.compiled import kernel
    from async_loader.replay.base.row_format import ROWS
    from async_loader.replay.kernels.machine import copy
    from async_loader.replay.kernels.row_address import at, holds

    @kernel(keeps_gil=True)
    def read_once(g, ids, fields, taken):
        gone = 0
        for i in range(len(ids)):
            taken[i] = 1 if holds(at(g, ids[i]), ids[i]) else 0
            gone += 1 - taken[i]
            if taken[i]:
                for f in range(len(fields)):
                    source = fields[f, 0] + (ids[i] % g[ROWS]) * fields[f, 1]
                    copy(fields[f, 3] + i * fields[f, 4], source, fields[f, 2])
        return gone

    return read_once


@contextlib.contextmanager
def processes():
    """What `start` starts is killed at the end."""
    started = []

    def start(target, *args):
        process = fork.Process(target=target, args=args, daemon=True)
        process.start()
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            with contextlib.suppress(ValueError):
                process.kill()
                process.join(SLACK_S)
                process.close()


def counter(places):
    return fork.RawArray("q", places)


def reap(process):
    process.join(SLACK_S)
    assert process.exitcode == -signal.SIGKILL
    process.close()


def ring(**settings):
    buffer = ReplayBuffer(CAPACITY, SCHEMA, seed=0, **settings)
    assert debug_state(buffer).state.table.storage.layout.rows == 1024
    return buffer


@pytest.fixture(scope="module", autouse=True)
def _kernels_are_loaded():
    """Before processes are forked: loading them takes longer than most of these tests."""
    with ring() as buffer, buffer.writer_handle().open() as into:
        into.append(row(1))
        into.flush()
        buffer.sample(1)
    careless_read()


READ_S = 400.0
"""For all rows of a storm to be read, beside four processes that write without end."""


def storm(target, careless, kills=12):
    """Four writers, of which one after the other is killed and replaced; what was read by
    another process meanwhile.
    """
    with ring() as buffer, processes() as start:
        buffer.extend(
            {"number": np.arange(8), "words": np.stack([row(n)["words"] for n in range(8)])}
        )
        counts = counter(4 + kills)
        places = itertools.count()
        points = itertools.cycle(POINTS)

        def more(point=None, after=0):
            place = next(places)
            return place, start(write, buffer.writer_handle(), counts, place, point, after)

        lasting = [more() for _ in range(3)]
        until(lambda: all(counts[place] > 0 for place, _ in lasting))
        hears, tells = fork.Pipe(False)
        start(read, buffer.source().reader(), target, careless, tells)
        for n in range(kills):
            before = [counts[place] for place, _ in lasting]
            _, doomed = more(next(points), 20 + 37 * n)
            reap(doomed)
            until(
                lambda before=before: all(
                    counts[place] > was for (place, _), was in zip(lasting, before, strict=True)
                )
            )
            batch = buffer.sample(64)
            assert torn(batch["number"], batch["words"]) == 0
        assert hears.poll(READ_S)
        done, bad, gone = hears.recv()
        hears.close()
        tells.close()
        assert all(process.is_alive() for _, process in lasting)
        before = [counts[place] for place, _ in lasting]
        until(
            lambda: all(
                counts[place] > was for (place, _), was in zip(lasting, before, strict=True)
            )
        )
        until(lambda: len(debug_state(buffer).state.writers._peers) == 3)
        assert buffer.stats().inserted > 10 * CAPACITY
        return done, bad, gone


@pytest.mark.timeout(600)
def test_no_row_is_torn_and_no_process_stops_when_writers_are_killed_anywhere():
    done, bad, _ = storm(10_000_000, careless=False)
    assert done >= 10_000_000
    assert bad == 0


@pytest.mark.soak
def test_a_reader_that_does_not_look_again_sees_torn_rows():
    assert any(storm(10_000_000, careless=True)[1] for _ in range(5))


# -- with revalidation removed, made certain -------------------------------------------------------


def careless_copy(real):
    """`kernels.copy_items`, believing what it has copied."""

    def copy_items(g, fields, names, stamps, taken, *rest):
        before = taken.copy()
        real(g, fields, names, stamps, taken, *rest)
        taken[:] = before
        return int((taken == 0).sum())

    return copy_items


@pytest.mark.parametrize("careless", [False, True])
def test_a_row_that_is_overwritten_half_way_while_it_is_read_is_found_out(monkeypatch, careless):
    linked = {"number": Field((), np.int64, next="after"), "words": Field((WORDS,), np.int64)}
    with ReplayBuffer(CAPACITY, linked, seed=0) as buffer, buffer.writer_handle().open() as into:
        first = [into.append(row(n)) for n in range(64)]
        into.flush()
        reader, storage = buffer.source().reader(), debug_state(buffer).state.table.storage
        kernels = reader._kernels

        class Paused(Exception):
            pass

        def half(self, count, names=row_grants.RowGrants.names):
            ids = names(self, count)
            if ids[0] >= storage.layout.rows and ids[0] % storage.layout.rows in first[:32]:
                storage.cell(1)[ids[0] % storage.layout.rows][: WORDS // 2] = -1
                raise Paused
            return ids

        def walk(*args):
            kernels.walk(*args)
            with monkeypatch.context() as patch, contextlib.suppress(Paused):
                patch.setattr(row_grants.RowGrants, "names", half)
                for n in itertools.count(64):
                    into.append(row(n))

        copy_items = careless_copy(kernels.copy_items) if careless else kernels.copy_items
        reader._kernels = types.SimpleNamespace(
            walk=walk, copy_items=copy_items, copy_many_items=copy_items
        )
        ids = np.array(first[:32])
        out = reader.fresh(len(ids))
        gone = set(reader.fill(ids, out).tolist())
        good = [i for i in range(len(ids)) if i not in gone]
        number, words = out.fields[0][good], out.fields[1][good]
        assert (torn(number, words) > 0) is careless


# -- deaths and stops, one by one ------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_what_a_killed_writer_did_not_publish_is_given_back_and_its_episode_ends(point):
    with ring() as buffer, processes() as start:
        counts = counter(1)
        reap(start(write, buffer.writer_handle(), counts, 0, point, 10))
        until(lambda: not debug_state(buffer).state.writers._peers)
        table = debug_state(buffer).state.table
        published = counts[0] + (point == "published")
        assert len(buffer) == published
        assert table.granted == 0
        assert not table.held.any()
        assert [last < 0 for last in table.last[: len(table.streams)].tolist()] == [True]
        batch = buffer.sample(256)
        assert torn(batch["number"], batch["words"]) == 0


def test_a_stopped_writer_blocks_no_other_and_goes_on_with_rows_of_its_own():
    with ring() as buffer, processes() as start:
        counts = counter(3)
        one, *_ = (start(write, buffer.writer_handle(), counts, place) for place in range(3))
        until(lambda: min(counts) > 100)
        os.kill(one.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WNOWAIT)
        at, before = counts[0], buffer.stats().inserted
        until(lambda: buffer.stats().inserted > before + 5 * CAPACITY)
        assert counts[0] == at
        assert debug_state(buffer).state.table.granted > 0
        os.kill(one.pid, signal.SIGCONT)
        until(lambda: counts[0] > at + 1000)
        batch = buffer.sample(256)
        assert torn(batch["number"], batch["words"]) == 0


def test_a_stopped_writer_keeps_no_permits_from_others():
    limiter = RateLimiter(min_size_to_sample=1, samples_per_insert=1.0, error_buffer=50)
    with ring(limiter=limiter) as buffer, processes() as start:
        counts = counter(2)
        one = start(write, buffer.writer_handle(), counts, 0)
        until(lambda: counts[0] >= 40)  # and then the limiter stops it
        os.kill(one.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WNOWAIT)
        start(write, buffer.writer_handle(), counts, 1)
        for _ in range(100):
            buffer.sample(10, timeout_s=SLACK_S)
        until(lambda: counts[1] > 900)
        assert buffer.stats().inserted <= buffer.stats().sampled + 51


OWNER = """\
    from async_loader import ReplayBuffer
    import multiprocessing

    def write(handle):
        with handle.open() as into:
            say("writing", os.getpid())
            os.write(opened[1], b"x")
            try:
                n = 0
                while True:
                    n += 1
                    into.append(x=n)
            except Exception as error:
                say("ended", type(error).__name__)

    if __name__ == "__main__":
        buffer = ReplayBuffer(1000, {{"x": np.int64}}{settings})
        foreign, opened = os.pipe(), os.pipe()
        handle = buffer.writer_handle()
        process = multiprocessing.get_context("fork").Process(target=write, args=(handle,))
        process.start()
        if os.fork() == 0:  # a foreign process that holds every descriptor
            os.close(foreign[1])
            os.read(foreign[0], 1)
            os._exit(0)
        say("ready")
        {end}
"""


@pytest.mark.parametrize("waits", [False, True], ids=["writing", "waiting"])
def test_a_writer_sees_that_its_owner_was_killed_also_beside_a_foreign_process(tmp_path, waits):
    settings = (
        ", limiter=__import__('async_loader').RateLimiter(samples_per_insert=1.0, error_buffer=2.0)"
        if waits
        else ""
    )
    body = OWNER.format(settings=settings, end="threading.Event().wait()")
    with Script(tmp_path, body) as script:
        script.read("ready")
        script.read("writing")
        script.process.kill()
        assert script.read("ended") == ["Broken"]
        script.wait_until_gone()


def test_an_owner_that_exits_closes_its_writers(tmp_path):
    end = "os.read(opened[0], 1); multiprocessing.process._children.clear()"
    with Script(tmp_path, OWNER.format(settings="", end=end)) as script:
        script.read("writing")
        assert script.read("ended") == ["Closed"]


def test_a_limiter_keeps_its_word_across_a_kill():
    limiter = RateLimiter(min_size_to_sample=1, samples_per_insert=1.0, error_buffer=20)
    with ring(limiter=limiter) as buffer, processes() as start:
        counts = counter(2)
        reap(start(write, buffer.writer_handle(), counts, 0, "written", 10))
        until(lambda: not debug_state(buffer).state.writers._peers)
        assert buffer.stats().inserted == counts[0] == 9
        start(write, buffer.writer_handle(), counts, 1)
        until(lambda: sum(counts) == 21)
        with pytest.raises(Timeout, match="ahead of sampling"):
            buffer.add(row(0), timeout_s=0.05)
        # once it has asked for the next one
        until(lambda: any("writer 1" in one.reason for one in buffer.stats().waiting))
        buffer.sample(5, timeout_s=SLACK_S)
        until(lambda: sum(counts) == 26)
