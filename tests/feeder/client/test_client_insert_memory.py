"""An actor on the feeder's host: large rows lie in its memory, each is in the table once, and what
dies or is refused costs no row.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading

import numpy as np
import pytest
from test_client_shared import LARGE, Feeder, check, process, replay, rows, serving

from async_loader.feeder import connect
from async_loader.feeder.client import insert_memory
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo
from tests.waiting_rig import until


def memory_of(writer):
    return writer._channel.memory


def warmed(writer):
    """Add large messages until the feeder reads them from memory; return how many rows."""
    count = 0
    while not memory_of(writer).taken:
        writer.extend(rows(100, LARGE, count))
        writer.flush()
        count += 100
        assert count < 100_000
    return count


def free_slots(writer):
    with writer._channel.lock:
        return len(memory_of(writer).free)


def received(client):
    return client.status()["counters"]["bytes_insert_in"]


@pytest.mark.parametrize("how", ["append", "extend"])
def test_large_rows_cross_in_shared_memory_and_small_messages_do_not(tmp_path, how):
    with serving(tmp_path, replay(LARGE), filled=0, schema=LARGE) as (_, client):
        with client.table("t").writer(linger_ms=10_000) as writer:
            count = warmed(writer)
            before, data = received(client), rows(600, LARGE, count)
            if how == "extend":
                writer.extend(data)
            else:
                for x, obs in zip(data["x"], data["obs"], strict=True):
                    writer.append(x=x, obs=obs)
            writer.flush()
            crossed = received(client) - before
            assert crossed < 10_000
            assert free_slots(writer) == insert_memory.SLOTS
            before = received(client)
            writer.append(x=0, obs=np.zeros(5000, np.float32))
            writer.flush()
            assert received(client) - before > 20_000
        assert client.status()["tables"]["t"]["inserted"] == count + 601
        check(client.table("t").sample(256))


def test_rows_that_wait_for_a_full_table_keep_their_slots_until_they_are_in(tmp_path):
    tables = replay(LARGE, sampler=Fifo(), limiter=Queue(1000), max_times_sampled=1)
    with serving(tmp_path, tables, filled=0, schema=LARGE) as (_, client):
        table, got = client.table("t"), []
        with table.writer() as writer:
            count = warmed(writer)
            while sum(map(len, got)) < count:
                got.append(table.sample(100)["x"])
            count = sum(map(len, got))

            def write():
                for start in range(count, count + 3000, 50):
                    writer.extend(rows(50, LARGE, start))
                writer.flush(60)

            thread = threading.Thread(target=write)
            thread.start()
            while sum(map(len, got)) < count + 3000:
                batch = table.sample(100, timeout_s=60)
                check(batch)
                got.append(batch["x"])
            thread.join()
            assert np.concatenate(got).tolist() == list(range(count + 3000))
            assert free_slots(writer) == insert_memory.SLOTS


def test_a_lost_session_costs_no_row_and_the_memory_is_offered_again(tmp_path):
    with serving(tmp_path, replay(LARGE), filled=0, schema=LARGE) as (feeder, client):
        with client.table("t").writer() as writer:
            count = warmed(writer)
            sessions = feeder.server._server_state.sessions
            for _ in range(5):
                for session in sessions:
                    sessions.drop(session)
                writer.extend(rows(200, LARGE, count))
                count += 200
                writer.flush(60)
                while not memory_of(writer).taken:
                    writer.extend(rows(100, LARGE, count))
                    writer.flush(60)
                    count += 100
            assert client.status()["tables"]["t"]["inserted"] == count
            assert free_slots(writer) == insert_memory.SLOTS
        check(client.table("t").sample(512))


@pytest.mark.slow
def test_a_killed_feeder_costs_no_row_that_it_has_not_acknowledged(tmp_path):
    path = str(tmp_path / "f")
    with contextlib.ExitStack() as stack:
        first, address = stack.enter_context(process(path))
        client = stack.enter_context(connect(address))
        writer = client.table("t").writer()
        count = warmed(writer)
        os.kill(first.pid, signal.SIGSTOP)
        writer.extend(rows(900, LARGE, count), timeout_s=60)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        stack.enter_context(process(path))
        with pytest.warns(UserWarning, match="lost"):  # what it had acknowledged
            writer.close(60)
        table = client.table("t")
        assert client.status()["tables"]["t"]["inserted"] == 900
        found: set[int] = set()
        for _ in range(30):  # a row is missed by all of them once in 1e14 runs
            batch = table.sample(1000)
            check(batch)
            found.update(batch["x"].tolist())
        assert found == set(range(count, count + 900))


def test_a_closed_writer_leaves_no_memory_behind(tmp_path):
    def held():
        return sum("memfd:async_loader" in os.readlink(f"/proc/self/fd/{fd}") for fd in fds())

    def fds():
        found = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                os.readlink(f"/proc/self/fd/{fd}")
                found.append(fd)
        return found

    feeder = Feeder(tmp_path, replay(LARGE))
    try:
        with connect(feeder.address) as client:
            with client.table("t").writer() as first:
                first.extend(rows(10, LARGE))
            gc.collect()
            before = held()
            for _ in range(3):
                writer = client.table("t").writer()
                warmed(writer)
                writer.close()
                del writer
            gc.collect()
            until(lambda: held() == before)
    finally:
        feeder.close()
