"""Measures what the simulation needs: a real directory on Ray, and real feeders, on this host.

A cost is the processor time of the measured process, all its threads together: this host's other
work does not count, and a server of one thread cannot be faster than it.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from async_loader.feeder import connect
from async_loader.feeder.settings import ServerSettings
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.buffer import ReplayBuffer
from async_loader.scale import Cluster, ray_library
from async_loader.scale.directory_actor import DirectoryActor
from async_loader.scale.operations import _CALLS as MOST_CALLS
from async_loader.scale.shard_plan import ShardPlan, encoded
from async_loader.scale.shard_process import ShardProcess
from benchmarks.feeder import ours
from benchmarks.feeder.processes import Child
from benchmarks.feeder.workloads import Work

Measured = dict[str, dict[str, Any]]
CALLS, TRIPS = 1_000, 200
CLIENTS, BEATS_S = 100, 8.0
FEW, MANY = 4, 64
"""Shards in the directory's map."""
CHUNKS = {"small": (16, 512), "atari": (4, 64)}
BATCHES = {"small": (32, 512), "atari": (8, 64)}
ROUNDS_S = 2.0
SEVERAL = 8


def measure(say: Callable[[str], None]) -> Measured:
    """Measure everything; about a minute."""
    found: Measured = {}

    def note(name: str, value: float, how: str) -> None:
        found[name] = {"value": float(f"{value:.4g}"), "how": how}

    for step in (_directory, _sessions, _start, _rows, _learner):
        say(step.__name__.strip("_"))
        step(note)
    return found


Note = Callable[[str, float, str], None]


class FilledDirectory(DirectoryActor):
    """A directory that knows some shards, without their actors.

    Parameters
    ----------
    shards : int
    """

    def __init__(self, shards: int) -> None:
        super().__init__("measured")
        self._begun = True
        for number in range(shards):
            self._members.describe(_described(number))

    async def change(self) -> None:
        """Make a newer map."""
        self._members.forget(())
        self._note(True)

    async def cpu_s(self) -> float:
        """Return the processor time of this process."""
        return time.process_time()


def _described(number: int) -> dict[str, Any]:
    return {
        "name": f"shard-{number}", "number": number, "address": f"tcp://10.0.0.{number}:41000",
        "host": f"node-{number}", "incarnation": 1, "state": "serving", "reason": "", "retired": [],
    }  # fmt: skip


def _directory(note: Note) -> None:
    ray = ray_library.load_ray()
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        object_store_memory=80 << 20, configure_logging=False,
    )  # fmt: skip
    try:
        few, many = _answers(ray, FEW), _answers(ray, MANY)
    finally:
        ray.shutdown()
    shard_us = max(0.0, (many["answer"] - few["answer"]) / (MANY - FEW))
    how = f"{CALLS:,} {{}}, a directory actor on Ray: its processor time"
    note("report_us", few["report"], how.format("calls of report_lost at once"))
    note("hold_us", few["hold"], how.format("calls of shard_map that wait for news"))
    note("answer_us", few["answer"] - FEW * shard_us, how.format("of these answered by news"))
    note("answer_shard_us", shard_us, f"the same, of {MANY} shards less that of {FEW}")
    note("map_shard_bytes", many["bytes"] / MANY, f"a pickled map of {MANY} shards")
    how = f"seconds from a change until {CALLS:,} questions have an answer, {{}} shards: a check"
    note("news_few_s", few["news"], how.format(FEW))
    note("news_many_s", many["news"], how.format(MANY))
    note("ray_us", few["ray"], f"median of {TRIPS} calls of report_lost, one after the other")


def _answers(ray: Any, shards: int) -> dict[str, float]:
    actor = ray.remote(FilledDirectory).options(max_concurrency=MOST_CALLS).remote(shards)
    call = ray_library.ask

    def cost_us(work: Callable[[], object]) -> float:
        before = ray.get(call(actor, "cpu_s"))
        work()
        return float(ray.get(call(actor, "cpu_s")) - before) / CALLS * 1e6

    said = ray.get(call(actor, "shard_map", -1, 0.0))
    trips = []
    for _ in range(TRIPS):
        begin = time.perf_counter()
        ray.get(call(actor, "report_lost", "shard-0", 0))
        trips.append((time.perf_counter() - begin) * 1e6)
    held: list[Any] = []
    walls: list[float] = []

    def change() -> None:
        begin = time.perf_counter()
        ray.get(call(actor, "change"))
        ray.get(held)
        walls.append(time.perf_counter() - begin)

    found = {
        "ray": statistics.median(trips),
        "bytes": float(len(pickle.dumps(said))),
        "report": cost_us(
            lambda: ray.get([call(actor, "report_lost", "shard-0", 0) for _ in range(CALLS)])
        ),
        "hold": cost_us(
            lambda: held.extend(
                call(actor, "shard_map", said["version"], 60.0) for _ in range(CALLS)
            )
        ),
        "answer": cost_us(change),
    }
    found["news"] = walls[0]
    ray.kill(actor)
    return found


@contextmanager
def _feeder(kind: str) -> Iterator[tuple[Child, str, Work]]:
    work = Work("small" if kind == "small" else "atari", linked=True)
    with ours.serving(work, "tcp") as (server, address):
        yield server, address, work


def _sessions(note: Note) -> None:
    with _feeder("small") as (server, address, _), ExitStack() as stack:
        for _ in range(CLIENTS):  # the first ones pay for what is loaded and compiled once
            stack.enter_context(connect(address))
        before, memory = server.cpu_s(), server.memory_bytes()
        for _ in range(CLIENTS):
            stack.enter_context(connect(address))
        opened, grown = server.cpu_s() - before, server.memory_bytes() - memory
        how = f"{CLIENTS} clients connect beside {CLIENTS} others: the feeder's processor time"
        note("session_us", opened / CLIENTS * 1e6, how)
        note("session_bytes", max(0.0, grown / CLIENTS), "the same: its memory")
        before = server.cpu_s()
        time.sleep(BEATS_S)
        beats_s = server.cpu_s() - before
        how = f"{2 * CLIENTS} clients at rest for {BEATS_S:g} s: the feeder's processor time"
        note("heartbeat_us", beats_s / (2 * CLIENTS * BEATS_S) * 1e6, how)
    with _feeder("small") as (server, address, work):
        ours.fill(address, work)
        with connect(address) as client:
            table = client.table(ours.TABLE)
            trips = []
            for _ in range(TRIPS):
                begin = time.perf_counter()
                table._calls.balance(timeout_s=5.0)
                trips.append((time.perf_counter() - begin) * 1e6)
            calls = table._calls
            begin = time.perf_counter()
            for asked in [calls.ask_balance() for _ in range(TRIPS)]:
                calls.balance_of(asked, Deadline(5.0))
            each_us = (time.perf_counter() - begin) / TRIPS * 1e6
        note("round_trip_us", statistics.median(trips),
             f"median of {TRIPS} calls of balance, one after the other")  # fmt: skip
        note("call_us", each_us, f"{TRIPS} calls of balance at once, until all have an answer")


def _start(note: Note) -> None:
    settings = ServerSettings.from_plain({"t": {"capacity": 1000}})
    took = []
    for _ in range(3):
        with TemporaryDirectory() as folder:
            plan = ShardPlan(
                cluster="c", number=0, folder=str(Path(folder) / "f"), feeder=encoded(settings),
                listen="ipc", allow_insecure=False,
            )  # fmt: skip
            begin = time.perf_counter()
            process = ShardProcess(plan, "127.0.0.1")
            with connect(process.about.address, timeout_s=60.0):
                took.append(time.perf_counter() - begin)
            process.stop(5.0)
            process.close()
    note(
        "shard_start_s", statistics.median(took), "median of 3 starts, until a client is connected"
    )


def _rows(note: Note) -> None:
    for kind in ("small", "atari"):
        with _feeder(kind) as (server, address, work):
            ours.fill(address, work)
            _fit(note, f"{kind}_insert", CHUNKS[kind], "rows that are acknowledged before the next",
                 lambda rows: _insert_us(server, address, work, rows))  # fmt: skip
            _fit(note, f"{kind}_sample", BATCHES[kind], "rows to a learner over tcp",
                 lambda rows: _sample_us(server, address, rows))  # fmt: skip
            with ours.taking(address, batch=256, transport="tcp") as take:
                batch = take()
            size = sum(value.nbytes for value in batch.values()) / 256
            note(f"{kind}_row_bytes", size, "the arrays of a batch of 256, for each row")
        schema = ours.table(work).schema
        assert schema is not None
        step = ReplayBuffer.nbytes_for(1_000_000, schema) / 1e6
        note(f"{kind}_step_bytes", step, "ReplayBuffer.nbytes_for of 1,000,000 steps")


def _learner(note: Note) -> None:
    one, several = _learner_us(1), _learner_us(SEVERAL)
    shard_us = max(0.0, (several - one) / (SEVERAL - 1))
    how = f"batches of 256 small rows of 1 and of {SEVERAL} shards: the learner's processor time"
    note("learner_us", max(0.0, one - shard_us), how)
    note("learner_shard_us", shard_us, how)


def _learner_us(shards: int) -> float:
    with ExitStack() as stack:
        addresses = []
        for _ in range(shards):
            _, address, work = stack.enter_context(_feeder("small"))
            ours.fill(address, work)
            addresses.append(address)
        client = stack.enter_context(Cluster.static(addresses))
        source, patience = client.table(ours.TABLE).source(), Patience()
        stack.callback(source.close)
        for _ in range(50):
            source.plan(256, patience)
        return _cost_us(lambda: source.plan(256, patience), time.process_time)


def _cost_us(call: Callable[[], object], cpu_s: Callable[[], float]) -> float:
    """Call for `ROUNDS_S`; return the processor time that one call costs."""
    count, begin, before = 0, time.perf_counter(), cpu_s()
    while time.perf_counter() - begin < ROUNDS_S:
        call()
        count += 1
    return (cpu_s() - before) / count * 1e6


def _fit(
    note: Note, name: str, sizes: tuple[int, int], what: str, cost_us: Callable[[int], float]
) -> None:
    """Note the cost of a message and of each of its rows, from two sizes."""
    few, many = sizes
    low, high = cost_us(few), cost_us(many)
    row = max(0.0, (high - low) / (many - few))
    how = f"messages of {few} and of {many} {what}: the feeder's processor time"
    note(f"{name}_us", max(0.0, low - few * row), how)
    note(f"{name}_row_us", row, how)


def _insert_us(server: Child, address: str, work: Work, rows: int) -> float:
    with connect(address) as client:
        writer = client.table(ours.TABLE).writer()
        chunk = {name: column[:rows] for name, column in next(work.chunks()).items()}

        def insert() -> None:
            writer.extend(chunk)
            writer.flush(ours.LIMIT_S)

        return _cost_us(insert, server.cpu_s)


def _sample_us(server: Child, address: str, rows: int) -> float:
    with ours.taking(address, batch=rows, transport="tcp") as take:
        take()
        return _cost_us(take, server.cpu_s)
