"""Servers and actors as processes of their own, told what to do through pipes.

Knows neither library.

All are forked from one process that has imported the library and done nothing with it: sixteen
actors that each import TensorFlow take longer to start than anything takes to measure.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil

START_LIMIT_S = 60.0
END_LIMIT_S = 5.0

Open = Callable[..., Any]
"""Makes a context manager of ``(write, flush)``: ``write()`` adds some rows and says how many,
``flush()`` returns when all that were added are acknowledged.
"""


class Child:
    """Run ``run(pipe, *arguments)`` in a process
    that imports none of the modules in ``preload`` again.
    """

    def __init__(self, preload: Sequence[str], run: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))  # read when the first child starts
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(run, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def say(self, what: Any) -> None:
        self._pipe.send(what)

    def hear(self, limit_s: float = START_LIMIT_S) -> Any:
        if not self._pipe.poll(limit_s):
            raise RuntimeError(f"{self._process.name} has said nothing for {limit_s:.0f} s")
        said = self._pipe.recv()
        if isinstance(said, _Failure):
            raise RuntimeError(f"{self._process.name}: {said.text}")
        return said

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def memory_bytes(self) -> int:
        """Return the resident memory of the process."""
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def end(self) -> None:
        """Wait for the end of the process after its pipe is closed, then kill it."""
        self._pipe.close()
        self._process.join(END_LIMIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class _Failure:
    """Return the error that ended a child."""

    def __init__(self, text: str) -> None:
        self.text = text


def _run(run: Callable[..., None], pipe: Any, arguments: tuple[Any, ...]) -> None:
    try:
        run(pipe, *arguments)
    except (EOFError, BrokenPipeError):
        pass  # the requesting process has ended
    except BaseException as error:
        pipe.send(
            _Failure(
                f"{type(error).__name__}: {error} {traceback.format_exc()}".replace("\n", " | ")
            )
        )


@contextmanager
def child(preload: Sequence[str], run: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    one = Child(preload, run, *arguments)
    try:
        yield one
    finally:
        one.end()


class Crew:
    """Actors that are ready to write. Made by `crew`."""

    def __init__(self, actors: Sequence[Child]) -> None:
        self._actors = actors

    def begin(self, count: int, seconds: float) -> None:
        """Let `count` actors write for `seconds`, all from the same moment on,
        and flush.
        """
        at = time.monotonic() + 0.05
        for actor in self._actors[:count]:
            actor.say((at, seconds))

    def written(self, count: int, seconds: float) -> tuple[int, float]:
        """Return the result: rows, and rows a second from the first to be written
        to the last acknowledgement.
        """
        rows, begins, ends = zip(
            *(actor.hear(seconds + START_LIMIT_S) for actor in self._actors[:count]), strict=True
        )
        return sum(rows), sum(rows) / (max(ends) - min(begins))


@contextmanager
def crew(preload: Sequence[str], count: int, open_writer: Open, *arguments: Any) -> Iterator[Crew]:
    """Start `count` processes, each with a writer of its own that has written something already."""
    with ExitStack() as stack:
        actors = [
            stack.enter_context(child(preload, _act, open_writer, arguments)) for _ in range(count)
        ]
        for actor in actors:
            actor.hear()
        yield Crew(actors)


def _act(pipe: Any, open_writer: Open, arguments: tuple[Any, ...]) -> None:
    with open_writer(*arguments) as (write, flush):
        write()
        flush()
        pipe.send("ready")
        while True:
            at, seconds = pipe.recv()
            time.sleep(max(0.0, at - time.monotonic()))
            rows, begin = 0, time.monotonic()
            while time.monotonic() - begin < seconds:
                rows += write()
            flush()
            pipe.send((rows, begin, time.monotonic()))
