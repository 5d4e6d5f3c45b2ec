"""A storm of Ctrl-C: real signals at seeded random moments of next, close and the constructor.

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
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil

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


def check(numbers: list[int], interrupted: int, size: int) -> None:
    """Batches come whole, in order and once. An interrupted call costs two at most: the one that it
    had taken, and the one that it was sending to the workers in its place.
    """
    whole = [number for first in numbers[::size] for number in range(first, first + size)]
    assert numbers == whole, numbers
    assert numbers[::size] == sorted(set(numbers[::size])), numbers
    assert numbers[-1] + 1 - len(numbers) <= 2 * interrupted * size, numbers


def strike_next(storm: Storm, workers: int, times: int) -> None:
    from async_loader import AsyncDataLoader

    taken: list[Any] = []
    with AsyncDataLoader(
        Numbers(), 4, num_workers=workers, multiprocessing_context="fork", timeout_s=LONGEST_S
    ) as loader:
        for _ in range(times):
            storm.strike(lambda: taken.append(next(loader)))
        taken.append(next(loader))
    check([n for batch in taken for n in batch["i"].tolist()], times, 4)
    assert all((batch["x"][:, 0].int() == batch["i"]).all() for batch in taken)
    storm.seen["batches taken"] += len(taken)


def strike_epoch(storm: Storm, workers: int, kind: str, times: int) -> None:
    from async_loader import DataLoader

    taken: list[Any] = []
    with DataLoader(
        Squares(),
        4,
        num_workers=workers,
        worker_type=kind,
        multiprocessing_context="fork",
        timeout_s=LONGEST_S,
    ) as loader:
        epoch = iter(loader)
        for _ in range(min(times, 90)):
            storm.strike(lambda: taken.append(next(epoch)))
        taken += epoch
    check([int(row[0]) for batch in taken for row in batch], times, 4)
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

    storm = Storm(seed)
    gc.collect()
    known, fds = set(children()), len(os.listdir("/proc/self/fd"))
    try:
        while storm.come < signals:
            _round(storm, min(each, signals - storm.come))
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


def _round(storm: Storm, times: int) -> None:
    what = storm.chance.choice(("next", "epoch", "life"))
    workers = storm.chance.choice((0, 2))
    with beside(storm.chance.choice((0, 2))):
        if what == "next":
            strike_next(storm, workers, times)
        elif what == "epoch":
            strike_epoch(storm, workers, storm.chance.choice(("process", "thread")), times)
        else:
            for _ in range(max(1, times // 8)):
                strike_life(storm, workers)


if __name__ == "__main__":
    print(json.dumps(play(int(sys.argv[1]), int(sys.argv[2]))))
