"""A feeder's process with kept tables, which is killed at random moments under load."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from async_loader import ReplayBuffer
from async_loader.errors import AsyncLoaderError
from async_loader.feeder import connect
from async_loader.feeder.settings import ServerSettings
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.buffer import shared_table

WRITERS, PATIENCE_S = 8, 60.0
_CONFIG = """
bind: ipc://{folder}/f
tables:
  small: {{capacity: 400000, schema: {{x: int64, y: int64}}, keep: {kept}}}
  frames:
    {{capacity: 6000, schema: {{x: int64, y: {{dtype: uint8, shape: [40, 40]}}}}, keep: {kept}}}
  compressed:
    {{capacity: 6000, schema: {{x: int64, y: {{dtype: uint8, shape: [40, 40], codec: lz4}}}},
     keep: {kept}}}
  sequences:
    {{capacity: 100000, view: {{kind: sequences, length: 4}}, keep: {kept},
     schema: {{x: int64, y: {{dtype: int64, shape: [3], next: next_y}}, terminated: bool}}}}
  prioritized:
    {{capacity: 100000, sampler: prioritized, schema: {{x: int64, y: int64}}, keep: {kept}}}
  queue: {{queue: 256, schema: {{x: int64, y: int64}}, keep: {kept}}}
"""
TABLES = ("small", "frames", "compressed", "sequences", "prioritized", "queue")
SHIFT = 1 << 32
"""A value is that of its writer times this, and its number."""


class Feeder:
    """The process, which is started again where it was."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self.config, self.address = folder / "config.yaml", f"ipc://{folder}/f"
        self.config.write_text(_CONFIG.format(folder=folder, kept=kept))
        self.process: subprocess.Popen[str] | None = None
        self.started_s = 0.0

    def start(self) -> None:
        began = time.monotonic()
        command = [sys.executable, "-m", "async_loader", "serve", "--config", str(self.config)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if ": serving " in line:
                break
        else:
            raise AssertionError("".join(said))
        self.started_s = time.monotonic() - began

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()


class Load:
    """Writers of every table, a learner of the queue, one of the prioritized table."""

    def __init__(self, address: str) -> None:
        self.address, self.end, self.learned = address, threading.Event(), threading.Event()
        self.failed: list[BaseException] = []
        self.acknowledged = {name: [0] * WRITERS for name in TABLES}
        self.last_s = {name: [0.0] * WRITERS for name in TABLES}
        self.written = {name: [0] * WRITERS for name in TABLES}
        self.updated: dict[int, int] = {}
        self.drawn: dict[int, list[bool]] = {}
        calls: list[Callable[[], None]] = [self._draw, self._prioritize]
        calls += [lambda n=n: self._write(n) for n in range(WRITERS)]  # type: ignore[misc]
        self.threads = [
            threading.Thread(target=self._safely, args=(one,), daemon=True) for one in calls
        ]

    def _safely(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            if not self.learned.is_set():
                self.failed.append(error)
                raise

    def _write(self, n: int) -> None:
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(connect(self.address))
            writers = {name: stack.enter_context(client.table(name).writer()) for name in TABLES}
            rng = random.Random(n)
            while not self.end.is_set():
                for name, writer in writers.items():
                    first = self.written[name][n]
                    count = rng.randint(1, 4) if name == "queue" else rng.randint(1, 12)
                    self.written[name][n] += count
                    for i in range(first, first + count):
                        writer.append(**row(name, n, i))
                for name, writer in writers.items():
                    done = self.written[name][n]
                    writer.flush(PATIENCE_S)
                    self.acknowledged[name][n] = done
                    self.last_s[name][n] = time.monotonic()

    def _draw(self) -> None:
        with connect(self.address) as client:
            source = client.table("queue").source()
            while not self.learned.is_set():
                with contextlib.suppress(TimeoutError):
                    plan = source.plan(8, Patience(deadline=Deadline(5.0)))
                    batch = plan.batch
                    if not source.hand_out(plan.lease):
                        continue
                    again = batch.get("redelivered", np.zeros(8, np.bool_))
                    for x, y, mark in zip(
                        batch["x"].tolist(), batch["y"].tolist(), again.tolist(), strict=True
                    ):
                        assert y == -x
                        self.drawn.setdefault(x, []).append(mark)
                    source.settle(plan.lease)
            source.close()

    def _prioritize(self) -> None:
        with connect(self.address) as client:
            table = client.table("prioritized")
            while not self.learned.is_set():
                with contextlib.suppress(TimeoutError, AsyncLoaderError):
                    batch = table.sample(8, timeout_s=5.0)
                    done = table.update_priorities(batch["index"], 1e6 + batch["x"] % 997)
                    if done.stale:  # the feeder was killed since the draw: the answer says so
                        continue
                    self.updated |= dict(
                        zip(batch["index"].tolist(), batch["x"].tolist(), strict=True)
                    )

    def __enter__(self) -> Load:
        for one in self.threads:
            one.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.end.set()
        if kind is not None:
            self.learned.set()
        deadline = Deadline(2 * PATIENCE_S if kind is None else 10.0)
        for one in reversed(self.threads):  # the queue's learner ends when its writers have
            if one in self.threads[:2]:
                self.learned.set()
            one.join(deadline.left())


def row(name: str, writer: int, number: int) -> dict[str, Any]:
    """A row of a writer, whose other field follows from its number."""
    x = writer * SHIFT + number
    if name == "sequences":
        end = {"terminated": number % 10 == 9}
        return {"x": x, "y": np.full(3, x), **end}
    given = {"priority": 1.0 + number % 7} if name == "prioritized" else {}
    if name in ("frames", "compressed"):
        return {"x": x, "y": np.full((40, 40), number % 251, np.uint8)}
    return {"x": x, "y": -x, **given}


def check(load: Load, kept: Path) -> None:
    """Compare what is kept with what was acknowledged and written."""
    settings = ServerSettings.load(kept.parent / "config.yaml")
    del settings.tables["sequences"]["view"]  # each step is looked at
    tables = settings.make_tables()
    for name, buffer in tables.items():
        with buffer:
            _check(name, buffer, load)


def _check(name: str, buffer: ReplayBuffer, load: Load) -> None:
    table = shared_table(buffer).table
    ids = np.sort(table.ids[table.ids >= 0])
    rows = ids % len(table.ids)
    heads = table.storage.heads()[rows]
    steps = heads[:, 3] & 4 == 0
    x = table.storage.column("x")[rows][steps]
    found = {n: (x[x // SHIFT == n] % SHIFT).tolist() for n in range(WRITERS)}
    for n, numbers in found.items():
        acknowledged, written = load.acknowledged[name][n], load.written[name][n]
        if name == "queue":
            drawn = [one % SHIFT for one in load.drawn if one // SHIFT == n]
            lost = set(range(acknowledged)) - set(numbers) - set(drawn)
            assert not lost, (name, n, sorted(lost)[:5])
            continue
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), (name, n)
        assert acknowledged <= numbers[-1] + 1 <= written, (name, n, acknowledged, written)
    if name == "queue":
        twice = [one for one, marks in load.drawn.items() if marks.count(False) > 1]
        assert not twice, twice[:5]
        return
    alive = table.ids[table.items.alive != 0]
    for part in np.array_split(np.sort(alive), max(1, len(alive) // 512)):
        batch = buffer.get(part)
        for one, value in zip(batch["x"].tolist(), batch["y"], strict=True):
            np.testing.assert_array_equal(value, row(name, one // SHIFT, one % SHIFT)["y"])
        if name == "sequences":
            goes_on = ~batch["terminated"]
            np.testing.assert_array_equal(batch["next_y"][goes_on][:, 0], batch["x"][goes_on] + 1)
    if name == "prioritized":
        for one, value in load.updated.items():
            if table.ids[one % len(table.ids)] == one:
                assert abs(table.given[one % len(table.ids)]) == 1e6 + value % 997


def rounds(folder: Path, kept: Path, count: int, seed: int = 0) -> Iterator[tuple[float, float]]:
    """Kill the feeder ``count`` times; the seconds until it served again, and until all went on."""
    feeder, rng = Feeder(folder, kept), random.Random(seed)
    feeder.start()
    try:
        with Load(feeder.address) as load:
            for _ in range(count):
                time.sleep(0.3 + rng.random())
                feeder.kill()
                feeder.start()
                served = time.monotonic()
                deadline = Deadline(PATIENCE_S)
                while min(min(one) for one in load.last_s.values()) < served:
                    assert not load.failed, load.failed
                    assert not deadline.expired, "writers do not go on"
                    time.sleep(0.01)
                yield feeder.started_s, time.monotonic() - served
            feeder.kill()
            load.end.set()
            try:
                check(load, kept)
            finally:
                feeder.start()  # for the threads that wait for it
    finally:
        feeder.kill()
