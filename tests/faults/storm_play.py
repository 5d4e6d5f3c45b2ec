"""A storm of Ctrl-C: real signals at seeded random moments of next, close, the constructor, add,
sample and save, and of append and flush of writers over a feeder
(storm_writers.py).

As a script: ``storm_play.py SEED SIGNALS`` plays until that many have come, and prints what was
seen as one line of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import struct
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from storm_writers import feeder, strike_feeder

LONGEST_S = 60.0
"""No call takes longer, however often it is interrupted: then it is wedged."""

_DELAY = struct.Struct("d")


class Storm:
    """Sends SIGINT to this process, from another one, a random moment after it is asked to."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent = self.come = 0
        self.seen: Counter[str] = Counter()
        ours, theirs = os.pipe()
        self._pid, self._ask = os.fork(), theirs
        if self._pid == 0:
            self._send(ours, os.getppid())
        os.close(ours)
        self._before = signal.signal(signal.SIGINT, self._handle)

    def _send(self, asked: int, pid: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(self._ask)
        while record := os.read(asked, _DELAY.size):
            time.sleep(_DELAY.unpack(record)[0])
            os.kill(pid, signal.SIGINT)
        os._exit(0)

    def _handle(self, *_: object) -> None:
        self.come += 1
        raise KeyboardInterrupt

    def strike(self, call: Callable[[], Any], longest_s: float = 2e-3) -> tuple[bool, Any]:
        """Call, with one signal on its way: whether the call came to its end, and what it
        returned.
        """
        began = time.monotonic()
        self.sent += 1
        ended, result, delay = False, None, _DELAY.pack(self.chance.uniform(0.0, longest_s))
        try:
            os.write(self._ask, delay)
            result = call()
            ended = True
            while self.come < self.sent:  # it comes behind the call
                time.sleep(1e-4)
        except KeyboardInterrupt:
            pass
        except BaseException:
            with contextlib.suppress(KeyboardInterrupt):
                while self.come < self.sent:
                    time.sleep(1e-4)
            raise
        assert self.come == self.sent, f"{self.come} of {self.sent} signals were handled"
        assert time.monotonic() - began < LONGEST_S, "wedged"
        self.seen["after the call" if ended else "within the call"] += 1
        return ended, result

    def close(self) -> None:
        signal.signal(signal.SIGINT, self._before)
        os.close(self._ask)
        os.waitpid(self._pid, 0)


# -- what is struck --------------------------------------------------------------------------------


class Numbers:
    """A source of jobs that return 0, 1, 2, ..."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self, batch_size: int) -> list[Any]:
        first, self.drawn = self.drawn, self.drawn + batch_size
        return [Number(i) for i in range(first, first + batch_size)]


class Number:
    def __init__(self, i: int) -> None:
        self.i = i

    def __call__(self) -> dict[str, Any]:
        return {"i": self.i, "x": np.full(2048, self.i, np.float32)}


class Squares:
    """A dataset."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, i: int) -> Any:
        return np.full(2048, i, np.int64)


def strike_next(storm: Storm, workers: int, times: int) -> None:
    """Every job is delivered once and in order, but for the batch that an interrupted call
    holds.
    """
    from async_loader import AsyncDataLoader

    source, taken = Numbers(), []

    def one() -> None:
        # What a call has returned is the program's: this loop takes it before any signal is
        # handled.
        for batch in loader:
            taken.append(batch)
            return

    with AsyncDataLoader(
        source, 4, num_workers=workers, multiprocessing_context="fork", timeout_s=LONGEST_S
    ) as loader:
        for _ in range(times):
            storm.strike(one)
        held = loader.stats().interrupted
        one()
        assert loader.stats().interrupted == 0
    numbers = [n for batch in taken for n in batch["i"].tolist()]
    assert numbers == list(range(len(numbers))), f"lost, doubled or out of order: {numbers}"
    assert all((batch["x"][:, 0].int() == batch["i"]).all() for batch in taken)
    storm.seen["batches taken"] += len(taken)
    storm.seen["batches held by an interrupted call"] += held


def strike_epoch(storm: Storm, workers: int, kind: str, times: int) -> None:
    """An epoch that is struck gives each of its batches once, in order."""
    from async_loader import DataLoader

    taken: list[int] = []
    with DataLoader(
        Squares(),
        4,
        num_workers=workers,
        worker_type=kind,
        multiprocessing_context="fork",
        timeout_s=LONGEST_S,
    ) as loader:
        epoch = iter(loader)

        def one() -> None:
            for batch in epoch:
                taken.append(batch)
                return

        for _ in range(min(times, 90)):
            storm.strike(one)
        for batch in epoch:
            taken.append(batch)
    numbers = [int(row[0]) for batch in taken for row in batch]
    assert numbers == list(range(400)), f"lost, doubled or out of order: {numbers}"
    storm.seen["batches taken"] += len(taken)


def strike_life(storm: Storm, workers: int) -> None:
    """A constructor that is struck leaves nothing; a close() that is struck can be repeated."""
    from async_loader import AsyncDataLoader

    kept: list[Any] = []
    how = {"num_workers": workers, "multiprocessing_context": "fork"}
    make = lambda: kept.append(AsyncDataLoader(Numbers(), 4, **how))  # noqa: E731
    with warnings.catch_warnings():
        # struck behind the constructor, before it was kept
        warnings.simplefilter("ignore", ResourceWarning)
        storm.strike(make, 3e-2)
    for loader in kept:
        storm.strike(loader.close)
        loader.close()
        assert list(loader) == []
    storm.seen["loaders built"] += len(kept)


def strike_buffer(storm: Storm, folder: Path, times: int) -> None:
    """What was added is there, what was struck is there or not; samples and saves go on."""
    from async_loader import ReplayBuffer

    buffer = ReplayBuffer(10_000, {"x": "int64"}, seed=0)
    added = struck = 0
    for n in range(times):
        what = storm.chance.choice(("add", "add", "sample", "save"))
        if what == "add" or not added:
            ended, _ = storm.strike(lambda n=n: buffer.add(x=n), 2e-4)
            added, struck = added + ended, struck + (not ended)
        elif what == "sample" and len(buffer):
            storm.strike(lambda: buffer.sample(16), 4e-4)
        else:
            storm.strike(lambda: buffer.save(folder / "table"), 2e-2)
        assert added <= len(buffer) <= added + struck
        if len(buffer):
            buffer.sample(4)
    buffer.save(folder / "table")
    again = ReplayBuffer.from_checkpoint(folder / "table")
    assert len(again) == len(buffer)
    again.close()
    buffer.close()
    storm.seen["rows added"] += added


# -- all of it -------------------------------------------------------------------------------------


@contextlib.contextmanager
def beside(threads: int) -> Iterator[None]:
    """Other threads of the program, which do some work: the kernel may give them the signal."""
    end = threading.Event()

    def work() -> None:
        while not end.wait(1e-3):
            sum(range(100))

    running = [threading.Thread(target=work, name=f"users-{n}") for n in range(threads)]
    for one in running:
        one.start()
    try:
        yield
    finally:
        end.set()
        for one in running:
            one.join()


def children() -> list[int]:
    return [
        one.pid
        for one in psutil.Process().children()
        if "resource_tracker" not in " ".join(_command(one))
    ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def play(seed: int, signals: int, each: int = 40) -> dict[str, int]:
    """Strike until ``signals`` signals have come; return the counts. Raises AssertionError for a
    promise that was not kept.
    """
    import torch  # noqa: F401  (a second of it would be struck each time, and is held back)

    _load_kernels()
    storm = Storm(seed)
    gc.collect()
    known, fds = set(children()), len(os.listdir("/proc/self/fd"))
    try:
        with tempfile.TemporaryDirectory() as folder, feeder() as client:
            while storm.come < signals:
                _round(storm, Path(folder), client, min(each, signals - storm.come))
                gc.collect()
    finally:
        storm.close()

    def left() -> dict[str, int]:
        return {
            "processes left": len(set(children()) - known),
            # the storm's own is closed by now
            "descriptors left": max(0, len(os.listdir("/proc/self/fd")) + 1 - fds),
            "threads left": sum(
                one.name.startswith("async-loader") for one in threading.enumerate()
            ),
        }

    deadline = time.monotonic() + LONGEST_S
    while any(left().values()) and time.monotonic() < deadline:
        time.sleep(0.05)
        gc.collect()
    return {"signals": storm.come, **storm.seen, **left()}


def _load_kernels() -> None:
    """Signals are held back while they are compiled, which may take long: what is struck is what
    comes after.
    """
    from async_loader import ReplayBuffer

    with tempfile.TemporaryDirectory() as folder:
        buffer = ReplayBuffer(10_000, {"x": "int64"}, seed=0)
        buffer.add(x=1)
        buffer.sample(4)
        buffer.save(Path(folder) / "table")
        buffer.close()


def _round(storm: Storm, folder: Path, client: Any, times: int) -> None:
    what = storm.chance.choice(("next", "next", "epoch", "epoch", "life", "buffer", "feeder"))
    workers = storm.chance.choice((0, 2))
    with beside(storm.chance.choice((0, 2))):
        if what == "next":
            strike_next(storm, workers, times)
        elif what == "epoch":
            strike_epoch(storm, workers, storm.chance.choice(("process", "thread")), times)
        elif what == "life":
            for _ in range(max(1, times // 8)):
                strike_life(storm, workers)
        elif what == "buffer":
            strike_buffer(storm, folder, times)
        else:
            strike_feeder(storm, client, times)


if __name__ == "__main__":
    print(json.dumps(play(int(sys.argv[1]), int(sys.argv[2]))))
