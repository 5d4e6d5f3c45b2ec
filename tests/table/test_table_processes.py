"""Client processes that write to one table of a feeder and sample it at the same time: nothing is
lost, nothing comes twice.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from async_loader import MinSize, Prioritized
from async_loader.feeder import connect
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
ROWS, BATCH = 600, 8
"""Of each process."""
SCHEMA = {"x": "int64", "obs": ((16,), "float32")}

Work = Callable[[Any, int], Any]


def obs_of(x: Any) -> np.ndarray:
    """What the observation of this step is: a row of two steps has no meaning."""
    return np.multiply.outer(np.asarray(x), np.arange(16)).astype(np.float32)


def write(table: Any, number: int) -> None:
    """The process's rows: one by one, and many at a time."""
    with table.writer() as writer:
        x = number * ROWS
        last = x + ROWS
        while x < last:
            many = min(1 + x % 7, last - x)
            if many == 1:
                writer.append(x=x, obs=obs_of(x), timeout_s=PATIENCE_S)
            else:
                some = np.arange(x, x + many)
                writer.extend(x=some, obs=obs_of(some), terminated=x % 3 == 0, timeout_s=PATIENCE_S)
            x += many
        writer.flush(PATIENCE_S)


@contextlib.contextmanager
def beside(call: Callable[[], None]) -> Iterator[None]:
    """Another thread calls it meanwhile; what it raises is raised here."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(2 * PATIENCE_S)
    if failed:
        raise failed[0]


def use_up(table: Any, number: int) -> list[tuple[int, bool]]:
    """Write the rows, and take as many out of the queue."""
    found = []
    with beside(lambda: write(table, number)):
        for _ in range(ROWS // BATCH):
            batch = table.sample(BATCH, timeout_s=PATIENCE_S)
            assert (batch["obs"] == obs_of(batch["x"])).all()
            found += zip(batch["x"].tolist(), batch["redelivered"].tolist(), strict=True)
    return found


def use_again(table: Any, number: int) -> int:
    """Write the rows, and sample, read, and change what there is meanwhile; how many rows were
    changed.
    """
    changed = 0
    with beside(lambda: write(table, number)):
        for turn in range(ROWS // BATCH):
            batch = table.sample(BATCH, timeout_s=PATIENCE_S)
            assert (batch["obs"] == obs_of(batch["x"])).all()
            assert (batch["weight"] > 0).all()
            assert (table.get(batch["index"])["x"] == batch["x"]).all()
            changed += table.update_priorities(
                batch["index"], np.full(BATCH, 1.0 + turn % 3)
            ).applied
    return changed


def _work(pipe: Connection, address: str, work: Work, number: int) -> None:
    try:
        with connect(address, timeout_s=PATIENCE_S) as client:
            pipe.send("ready")
            pipe.recv()
            result = work(client.table("one"), number)
        pipe.send(("returned", result))
    except BaseException:
        pipe.send(("raised", traceback.format_exc()))


def together(address: str, work: Work, processes: int = 2) -> list[Any]:
    """The results of this many client processes, which begin at the same time."""
    context, pipes, started = multiprocessing.get_context("spawn"), [], []
    try:
        for number in range(processes):
            here, there = context.Pipe()
            pipes.append(here)
            process = context.Process(
                target=_work, args=(there, address, work, number), daemon=True
            )
            process.start()
            started.append(process)
            there.close()
        for pipe in pipes:
            assert pipe.poll(PATIENCE_S)
            assert pipe.recv() == "ready"
        for pipe in pipes:
            pipe.send("go")
        results = []
        for pipe in pipes:
            assert pipe.poll(PATIENCE_S), "it has not ended"
            how, result = pipe.recv()
            assert how == "returned", result
            results.append(result)
        return results
    finally:
        for process in started:
            process.join(0 if process.exitcode is not None else 10)
            process.kill()
            process.join()
            process.close()
        for pipe in pipes:
            pipe.close()


@contextlib.contextmanager
def feeder(kind: str, settings: dict[str, Any]) -> Iterator[Any]:
    """A client of a feeder with this table, which others reach at the client's address."""
    tables = {"one": {**settings, "schema": SCHEMA}}
    with contextlib.ExitStack() as stack:
        if kind == "embedded":
            yield stack.enter_context(connect("embedded", tables=tables))
            return
        serving = FeederProcess(
            replace(ServerSettings.from_plain(tables), bind="tcp://127.0.0.1:*", drain_s=0.1)
        )
        thread = threading.Thread(target=serving.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(serving.stop)
        yield stack.enter_context(connect(serving.address))


@pytest.mark.parametrize("kind", ["embedded", "tcp"])
def test_two_processes_that_write_and_sample_a_queue_have_each_row_once(kind: str) -> None:
    with feeder(kind, {"queue": 8 * BATCH}) as client:
        first, second = together(client.address, use_up)
        assert len(client.table("one")) == 0
        stats = client.table("one").stats()
        assert (stats.inserted, stats.sampled) == (2 * ROWS, 2 * ROWS)
    assert sorted(x for x, _ in [*first, *second]) == list(range(2 * ROWS))
    assert not any(again for _, again in [*first, *second])
    for found in (first, second):  # each writer's rows come in their order
        for number in range(2):
            rows = [x for x, _ in found if x // ROWS == number]
            assert rows == sorted(rows)


@pytest.mark.parametrize("kind", ["embedded", "tcp"])
def test_two_processes_that_write_and_sample_one_table_lose_nothing(kind: str) -> None:
    settings = {"capacity": 2 * ROWS, "sampler": Prioritized(0.5), "limiter": MinSize(BATCH)}
    with feeder(kind, settings) as client:
        changed = together(client.address, use_again)
        table = client.table("one")
        found = table.get(range(2 * ROWS))
        assert table.stats().sampled == 2 * (ROWS // BATCH) * BATCH
    assert changed == [(ROWS // BATCH) * BATCH] * 2
    assert sorted(found["x"].tolist()) == list(range(2 * ROWS))
    assert (found["obs"] == obs_of(found["x"])).all()
    for number in range(2):  # ids count each writer's rows in their order
        rows = found["x"][found["x"] // ROWS == number]
        assert (np.diff(rows) == 1).all()
