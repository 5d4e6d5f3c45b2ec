"""A learner on the feeder's host, and a feeder in a thread: batches in memory of the learner's,
and what becomes of it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace
from thread_rig import Feeder

from async_loader import ReplayBuffer
from async_loader.errors import Broken, Unsupported
from async_loader.feeder import connect
from async_loader.feeder.client.reader_batches import ReaderPhase
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo, Prioritized
from async_loader.source import END
from tests.waiting_rig import until

SMALL = {"x": np.int64, "obs": ((3,), np.float32)}
LARGE = {"x": np.int64, "obs": ((5000,), np.float32)}


def patience(seconds=60.0):
    return Patience(deadline=Deadline(seconds))


def replay(schema=SMALL, **others):
    return {"t": ReplayBuffer(1000, schema, seed=3, **others)}


def queue(schema=SMALL, size=1000):
    return replay(schema, sampler=Fifo(), limiter=Queue(size), max_times_sampled=1)


def rows(count, schema=SMALL, first=0):
    numbers = np.arange(first, first + count)
    shape = schema["obs"][0]
    return {
        "x": numbers,
        "obs": np.broadcast_to(numbers.reshape(-1, 1), (count, *shape)).astype(np.float32),
    }


def check(batch, count=None):
    assert count is None or len(batch["x"]) == count
    assert (batch["obs"] == batch["x"][:, None]).all()


@contextlib.contextmanager
def serving(folder, tables, filled=500, schema=SMALL, **settings):
    """A feeder, filled, and a client of it."""
    feeder = Feeder(folder, tables, **settings)
    try:
        with connect(feeder.address) as client:
            if filled:
                with client.table("t").writer() as writer:
                    writer.extend(rows(filled, schema))
            yield feeder, client
    finally:
        feeder.close()


def crossed(client):
    counters = client.status()["counters"]
    return sum(counters[f"bytes_pull_{way}"] for way in ("in", "out"))


@pytest.mark.parametrize("schema", [SMALL, LARGE])
def test_batches_come_in_shared_memory_by_themselves_and_stay_as_they_are(tmp_path, schema):
    with serving(tmp_path, replay(schema), schema=schema) as (_, client):
        source = client.table("t").source()
        before, kept = crossed(client), []
        for i in range(60):
            plan = source.plan(32, patience())
            assert plan.lent
            check(plan.batch, 32)
            if i % 20 < 7:  # more than there are spare slots
                kept.append(
                    (plan.batch, {name: array.copy() for name, array in plan.batch.items()})
                )
            for batch, copy in kept:
                assert all((batch[name] == copy[name]).all() for name in copy), (
                    "what is held is never written again"
                )
        assert source.transport == "shm"
        assert (crossed(client) - before) / 60 < 400, (
            "a batch is larger; who waits for each asks for each, sometimes twice"
        )
        source.close()
        check(kept[0][0])


@pytest.mark.parametrize("missing", ["not offered", "not reached"])
def test_where_memory_cannot_be_had_auto_says_so_and_goes_on_and_shm_is_an_error(
    tmp_path, caplog, missing
):
    caplog.set_level(logging.DEBUG, "async_loader")
    with serving(tmp_path, replay(), memory=missing == "not reached") as (feeder, client):
        if missing == "not reached":
            os.unlink(feeder.memory)
        source = client.table("t").source()
        check(source.plan(32, patience()).batch, 32)
        assert source.transport == "tcp"
        (said,) = [one for one in caplog.records if "shared memory" in one.getMessage()]
        assert said.levelno == (logging.WARNING if missing == "not reached" else logging.DEBUG)
        assert (
            "does not answer" if missing == "not reached" else "listens at ipc:// only"
        ) in said.getMessage()
        strict = client.table("t").source(transport="shm")
        with pytest.raises(Unsupported, match="use transport='auto' or 'tcp'"):
            strict.plan(32, patience())
        strict.close()
        source.close()


def use(source, plan):
    """As a loader whose consumer takes the batch, and then asks for another one."""
    assert source.hand_out(plan.lease)
    source.settle(plan.lease)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_queue_delivers_each_row_once_and_its_last_batch_is_short(tmp_path, transport):
    with serving(tmp_path, queue(), filled=50) as (feeder, client):
        source = client.table("t").source(transport=transport)
        plans = [source.plan(16, patience()) for _ in range(3)]
        for plan in plans:
            use(source, plan)
        seen = [plan.batch["x"].tolist() for plan in plans]
        feeder.server._settings = replace(feeder.server._settings, drain_s=60.0)
        feeder.server.stop()
        while (plan := source.plan(16, patience())) is not END:
            check(plan.batch)
            use(source, plan)
            seen.append(plan.batch["x"].tolist())
        assert [len(one) for one in seen] == [16, 16, 16, 2]
        assert [x for one in seen for x in one] == list(range(50))


def test_a_fork_keeps_what_it_has_and_slots_that_it_can_see_are_not_written_again(tmp_path):
    with serving(tmp_path, replay(LARGE), schema=LARGE) as (_, client):
        source = client.table("t").source(prefetch=2)
        batch = source.plan(8, patience()).batch
        there, here = os.pipe()
        say, told = os.pipe()
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                os.write(here, b"1")
                os.read(say, 1)
                try:
                    source.plan(8, patience())
                except Unsupported:
                    fine = (batch["obs"] == batch["x"][:, None]).all()
                    os._exit(0 if fine else 1)
            os._exit(2)
        os.read(there, 1)
        copy = batch["x"].copy()
        del batch
        for _ in range(40):
            check(source.plan(8, patience()).batch, 8)
        os.write(told, b"1")
        assert os.waitpid(pid, 0)[1] == 0
        assert len(copy) == 8
        for fd in (there, here, say, told):
            os.close(fd)
        source.close()


def test_a_source_that_is_dropped_or_closed_gives_its_memory_back(tmp_path):
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum("memfd:async_loader" in line for line in maps)

    with serving(tmp_path, replay(LARGE), schema=LARGE) as (_, client):
        before = mapped()
        for close in (True, False):
            source = client.table("t").source()
            source.plan(8, patience())
            assert mapped() == before + 2, "here, and the feeder's, which is in this process"
            line, news = source._channel, client._connection.news
            if close:
                source.close()
            del source
            gc.collect()
            news.until(
                lambda line=line: line.phase is ReaderPhase.CLOSED,
                Deadline(30),
                lambda: "it is not closed",
            )
            until(lambda: mapped() == before)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_learner_draws_from_a_feeder_what_it_would_draw_from_a_table_of_its_own(
    tmp_path, transport, prioritized
):
    def made():
        return ReplayBuffer(
            1000, SMALL, seed=11, **({"sampler": Prioritized(0.6)} if prioritized else {})
        )

    own = made()
    own.extend(**rows(700))
    with serving(tmp_path, {"t": made()}, filled=700) as (_, client):
        # With priorities, a batch that is drawn ahead would not know of those of the batch before
        # it.
        source = client.table("t").source(transport=transport, prefetch=0 if prioritized else None)
        rng = np.random.default_rng(5)
        for _ in range(40):
            batch, wanted = source.plan(32, patience()).batch, own.sample(32)
            assert set(batch) == set(wanted)
            for name, array in wanted.items():
                np.testing.assert_array_equal(batch[name], array)
            if prioritized:
                priority = rng.random(32)
                assert source.update_priorities(batch["index"], priority) == own.update_priorities(
                    wanted["index"], priority
                )
        assert source.transport == transport
        source.close()


LEARNER = """
import sys
from async_loader.feeder import connect
from async_loader.lifecycle import Patience
client = connect(sys.argv[1])
source = client.table("t").source(prefetch=2)
held = [source.plan(8, Patience()).batch for _ in range(3)]
print(source.transport, sorted(x for batch in held for x in batch["x"].tolist()), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_killed_learners_memory_and_leases_return_and_the_feeder_goes_on(tmp_path):
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum("memfd:async_loader" in line for line in maps)

    with serving(
        tmp_path, queue(LARGE), schema=LARGE, filled=64, silence_s=1.5, heartbeat_s=0.2
    ) as (feeder, client):
        before = mapped()
        learner = subprocess.Popen(
            [sys.executable, "-c", LEARNER, feeder.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = learner.stdout.readline()
        assert said.startswith("shm")
        until(lambda: mapped() == before + 1)
        learner.kill()
        learner.communicate()
        source = client.table("t").source()
        seen = set()
        # all that it had not given back; the first two batches it may have
        while not set(range(16, 64)) <= seen:
            seen |= set(source.plan(8, patience()).batch["x"].tolist())
        source.close()
        until(lambda: mapped() == before)


SERVER = """
import sys
import numpy as np
from async_loader import ReplayBuffer
from async_loader.feeder.addresses import parse
from async_loader.feeder.server import Server
from async_loader.feeder.serving import claim
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import Plane
address = "ipc://" + sys.argv[1]
claim(parse(address))
endpoints = {Plane.CONTROL: address, Plane.INSERT: address + ".insert",
        Plane.PULL: address + ".pull"}
tables = {"t": ReplayBuffer(1000, {"x": np.int64, "obs": ((5000,), np.float32)}, seed=3)}
server = Server(tables, endpoints, memory=sys.argv[1] + ".memory",
        settings=ServiceSettings(heartbeat_s=0.2, silence_s=30.0))
print(address, flush=True)
server.run()
"""


@contextlib.contextmanager
def process(path):
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, path], stdout=subprocess.PIPE, text=True
    )
    try:
        yield server, server.stdout.readline().strip()
    finally:
        server.kill()
        server.communicate()


def use_up(source):
    while True:
        check(source.plan(8, patience()).batch, 8)


@pytest.mark.slow
def test_a_killed_feeder_is_broken_or_waited_for_and_batches_that_are_held_stay(tmp_path):
    path = str(tmp_path / "f")
    with contextlib.ExitStack() as stack:
        first, address = stack.enter_context(process(path))
        waits, gives_up = connect(address), connect(address, on_disconnect="raise")
        stack.enter_context(waits), stack.enter_context(gives_up)
        with waits.table("t").writer() as writer:
            writer.extend(rows(100, LARGE))
        sources = [client.table("t").source(prefetch=2) for client in (waits, gives_up)]
        held = [source.plan(8, patience()).batch for source in sources]
        slots = sources[0]._channel.slots
        assert [source.transport for source in sources] == ["shm", "shm"]
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with pytest.raises(Broken, match="last heard"):
            use_up(sources[1])
        _, again = stack.enter_context(process(path))
        assert again == address
        with waits.table("t").writer() as writer:
            writer.extend(rows(100, LARGE, 10_000))
        while (batch := sources[0].plan(8, patience()).batch)["x"][0] < 10_000:
            check(batch, 8)
        check(batch, 8)
        assert sources[0].transport == "shm"
        assert sources[0]._channel.slots is not slots, (
            "what the first could still write into is not offered again"
        )
        for batch in held:
            check(batch, 8)
        sources[0].close()
