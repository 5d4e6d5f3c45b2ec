"""What the fault tests share: jobs that misbehave, a source that hands them out, and scripts whose
process may die.

Jobs tell the test where they are through a named pipe, so that no test has to guess when something
happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from waiting_rig import until
from zygote import Zygote

from async_loader import END

SLACK_S = 60.0
"""For waits that end at once unless something is broken; two shared cores may be busy with other
things.
"""

WIDTH = 8192
"""float32 per row of `wide`: four rows are more than what is copied out because it is small."""


# -- jobs ------------------------------------------------------------------------------------------


def plain(i):
    return {"x": np.full(4, i, np.float32), "i": i}


def wide(i):
    return {"x": np.full(WIDTH, i, np.float32), "i": i}


def die(signum, i=0):
    os.kill(os.getpid(), signum)
    signal.pause()


def segfault(i=0):
    ctypes.string_at(0)


def leave(code, i=0):
    os._exit(code)


def fail(error, i=0):
    raise error


def tell(path):
    """Say through the named pipe that this process is here."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, f"{os.getpid()}\n".encode())
    os.close(fd)


def block(path, i=0):
    tell(path)
    threading.Event().wait()


def stop_then(path, job, i):
    """Stop this process as Ctrl-Z does; it returns the sample when it is continued."""
    tell(path)
    os.kill(os.getpid(), signal.SIGSTOP)
    return job(i)


class Loud(Exception):
    """Pickles, and does not unpickle: its arguments are not those of __init__."""

    def __init__(self, fact, number):
        super().__init__(f"{fact} {number}")
        self.number = number


class Silent(Loud):
    """Pickles, and cannot be made from the arguments that it has."""

    def __new__(cls, fact, number):
        return super().__new__(cls, fact, number)


# -- a source --------------------------------------------------------------------------------------


class Batches:
    """Jobs ``make(0)``, ``make(1)``, ... in batches, but for those that are replaced, until
    ``last`` batches are out.

    Parameters
    ----------
    faults : dict
        Number of the job to a function of that number.
    """

    last_number = 0

    def __init__(self, faults=None, make=plain, last=None):
        self.faults = {} if faults is None else faults
        self.make = make
        self.last = last
        self.numbers = itertools.count()

    def __call__(self, batch_size):
        if self.last is not None and next(self.numbers) >= self.last:
            return END
        first = self.last_number
        self.last_number += batch_size
        return [
            functools.partial(self.faults.get(i, self.make), i)
            for i in range(first, first + batch_size)
        ]


def first(batch):
    """The number of a batch's first job, and a check that all rows are what their job made."""
    numbers = batch["i"].tolist()
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all((row == i).all() for row, i in zip(batch["x"], numbers, strict=True))
    return numbers[0]


# -- seeing things happen --------------------------------------------------------------------------


class NamedPipe:
    """Lines of all processes that call `tell`."""

    def __init__(self, folder: Path):
        self.path = str(folder / "told")
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR)
        self._buffer = b""

    def pid(self) -> int:
        while b"\n" not in self._buffer:
            assert select.select([self._fd], [], [], SLACK_S)[0], "no process told anything"
            self._buffer += os.read(self._fd, 4096)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return int(line)

    def close(self):
        os.close(self._fd)


class Warned(logging.Handler):
    """Lets a test wait for the package to warn."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []
        self._count = threading.Semaphore(0)

    def emit(self, record):
        self.texts.append(record.getMessage())
        self._count.release()

    def wait(self, times=1):
        for _ in range(times):
            assert self._count.acquire(timeout=SLACK_S), (
                f"warned {len(self.texts)} times only: {self.texts}"
            )


@contextlib.contextmanager
def warned() -> Iterator[Warned]:
    handler, logger = Warned(), logging.getLogger("async_loader")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def resume(pid):
    """Continue a process that stops itself; a signal that comes before it has stopped would be
    lost.
    """
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    os.kill(pid, signal.SIGCONT)


def pids(loader):
    """Of all workers. One that is being started has none yet: 0 would send a signal to our own
    process group.
    """
    found = []

    def known():
        found[:] = [handle.pid for handle in loader._engine.core.pool.handles]
        return all(found)

    until(known)
    return found


@contextlib.contextmanager
def thread(target, *args):
    """A thread of the user's; the block gets a function that waits for its result."""
    results = []
    runner = threading.Thread(
        target=lambda: results.append(_outcome(target, args)), name="users-own"
    )
    runner.start()

    def result():
        runner.join(SLACK_S)
        assert results, "the thread is still at work"
        return results[0]

    try:
        yield result
    finally:
        runner.join(SLACK_S)


def _outcome(target, args):
    try:
        return target(*args)
    except BaseException as error:
        return error


# -- scripts ---------------------------------------------------------------------------------------

_PRELUDE = """\
import ctypes, functools, gc, os, signal, sys, threading
sys.path[:0] = {folders!r}
import numpy as np
import fault_rig
from fault_rig import Batches, first, plain, wide
from async_loader import END, AsyncDataLoader
from async_loader import process_hooks
signal.signal(signal.SIGINT, signal.default_int_handler)
# of a machine that stands still for a moment nothing is to be said at the exit
process_hooks._EXIT_TIMEOUT_S = 20.0

def say(*what):
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())

def busy(i=0):
    say("busy", os.getpid())
    while True:
        pass

def blocked(i=0):
    say("busy", os.getpid())
    threading.Event().wait()

"""


zygote: list[Zygote] = []
"""The one of this session, when there is one."""


class Script:
    """A Python process of its own session, with pipes for its output. ``with`` makes sure that
    nothing of it is left.

    Parameters
    ----------
    fresh : bool
        Start an interpreter for it instead of forking one that has imported torch.
    """

    def __init__(self, folder: Path, body: str, *args: str, fresh: bool = False):
        folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
        path = folder / "script.py"
        path.write_text(_PRELUDE.format(folders=folders) + textwrap.dedent(body))
        self.said: dict[str, list[str]] = {}
        # Not below `folder`: a socket's path, which the fork server makes in it, has 108 characters
        # at most.
        self.tmp = Path(tempfile.mkdtemp(prefix="al-"))
        self.process: Any = self._fresh(path, args) if fresh else self._forked(path, args)
        self._buffer = b""
        self._lines = []

    def _fresh(self, path, args):
        return subprocess.Popen(
            [sys.executable, str(path), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(self.tmp)},
            start_new_session=True,
        )

    def _forked(self, path, args):
        return zygote[0].start(str(path), args, str(self.tmp))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(SLACK_S)
        self.process.stdout.close()
        self.process.stderr.close()
        shutil.rmtree(self.tmp, ignore_errors=True)

    def read(self, word: str) -> list[str]:
        """The next line that begins with ``word``, without it; others are kept."""
        fd, deadline = self.process.stdout.fileno(), time.monotonic() + SLACK_S
        while True:
            for number, line in enumerate(self._lines):
                if line[:1] == [word]:
                    return self._lines.pop(number)[1:]
            assert select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0], (
                f"never said {word!r}"
            )
            found = os.read(fd, 65536)
            assert found, f"ended without saying {word!r}: {self.process.stderr.read().decode()}"
            *lines, self._buffer = (self._buffer + found).split(b"\n")
            self._lines += [line.decode().split() for line in lines]

    def end(self) -> tuple[int, str]:
        """Wait for the process; its exit code and what it wrote to stderr."""
        try:
            _, err = self.process.communicate(timeout=SLACK_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still alive after {SLACK_S:g} s") from None
        return self.process.returncode, err.decode()

    def end_with_output(self) -> tuple[int, str]:
        """The same, and ``said``: the first word of each line to the others."""
        try:
            out, err = self.process.communicate(timeout=SLACK_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still alive after {SLACK_S:g} s") from None
        self.said = {line.split()[0]: line.split()[1:] for line in out.decode().splitlines()}
        return self.process.returncode, err.decode()

    def members(self) -> dict[int, str]:
        """ProcessResource processes of the script's session."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                        found[int(entry)] = (
                            Path(f"/proc/{entry}/cmdline").read_text().replace("\0", " ")
                        )
        return found

    def wait_until_gone(self, *but: int) -> float:
        """Wait until no process of the session is left, but for those; the seconds it took."""
        began = time.monotonic()
        while left := {pid: command for pid, command in self.members().items() if pid not in but}:
            spent = time.monotonic() - began
            assert spent < SLACK_S, f"left behind: {left}"
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(next(iter(left)))
                select.select([fd], [], [], SLACK_S - spent)
                os.close(fd)
        return time.monotonic() - began
