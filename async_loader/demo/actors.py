"""The actor processes as seen by their parent: starts them, receives reports, reports deaths,
and ends them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from async_loader.demo.actor import ActorReport, Failed, act, make_envs
from async_loader.demo.settings import Episode, Settings
from async_loader.errors import AsyncLoaderError, Broken
from async_loader.lifecycle import EndFlag, readable

_PATIENCE_S = 5.0  # an actor that has not ended this long after SIGTERM is killed


@contextlib.contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """Start processes in this block with Ctrl-C blocked: their parent handles it,
    and it would break their start.
    """
    # otherwise it is started with the first process, and resets the mask
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Returns:
    """The finished episodes and the mean return of the newest `window`.

    One thread writes, any thread reads.
    """

    def __init__(self, window: int, target: float) -> None:
        self._newest: deque[float] = deque(maxlen=window)
        self._window = window
        self._target = target
        self.episodes: list[Episode] = []
        self.mean = 0.0

    @property
    def reached(self) -> bool:
        return len(self.episodes) >= self._window and self.mean >= self._target

    def add(self, episode: Episode) -> None:
        self._newest.append(episode.total_reward)
        self.mean = sum(self._newest) / len(self._newest)
        self.episodes.append(episode)


@dataclass(slots=True, eq=False)
class _Actor:
    name: str
    process: SpawnProcess
    pipe: Connection
    env_steps: int = 0
    failed: Failed | None = None


class Actors:
    """Actor processes from start to end. The first error of an actor is kept in `error`.

    Parameters
    ----------
    seconds : callable
        Returns the seconds since the run began.
    make : callable
        Like `make_envs`; importable, as actors receive it by name.

    Attributes
    ----------
    returns : Returns
        Closed to new episodes once the target is reached.
    error : AsyncLoaderError | None
        The reason why an actor is missing.
    """

    def __init__(
        self,
        settings: Settings,
        seconds: Callable[[], float],
        make: Callable[[int], Any] = make_envs,
    ) -> None:
        self.returns = Returns(settings.window, settings.target)
        self.error: AsyncLoaderError | None = None
        self._seconds, self._end = seconds, EndFlag()
        self._over: Callable[[], None] = lambda: None
        self._thread = threading.Thread(
            target=self._follow, name="async-loader-demo-actors", daemon=True
        )
        self._actors: list[_Actor] = []
        self._closed = False
        context = multiprocessing.get_context("spawn")
        for number in range(settings.num_actors):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=act,
                args=(number, settings, theirs, make),
                name=f"actor-{number}",
                daemon=True,
            )
            with _no_ctrl_c():
                process.start()
            theirs.close()
            self._actors.append(_Actor(f"actor {number}", process, ours))

    @property
    def env_steps(self) -> int:
        return sum(actor.env_steps for actor in self._actors)

    @property
    def pids(self) -> list[int | None]:
        return [actor.process.pid for actor in self._actors]

    def go(self, address: str, over: Callable[[], None]) -> None:
        """Send the feeder's address; another thread calls `over` when the target is reached
        or an actor has died.
        """
        self._over = over
        for actor in self._actors:
            try:
                actor.pipe.send(address)
            except BrokenPipeError:
                continue  # it has died; the thread reports that
        self._thread.start()

    def close(self) -> None:
        """End the actors. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._end.set()
        for actor in self._actors:
            actor.process.terminate()
        for actor in self._actors:
            actor.process.join(_PATIENCE_S)
            if actor.process.exitcode is None:
                actor.process.kill()
                actor.process.join()
        if self._thread.ident is not None:
            self._thread.join()
        for actor in self._actors:
            actor.pipe.close()
            actor.process.close()
        self._end.close()

    # -- the thread --------------------------------------------------------------------------------

    def _follow(self) -> None:
        heard = {actor.pipe.fileno(): actor for actor in self._actors}
        lives = {actor.process.sentinel: actor for actor in self._actors}
        while not self._end.is_set() and self.error is None and not self.returns.reached:
            ready = readable([self._end.fileno(), *heard, *lives], None)
            for fd in ready & heard.keys():
                if not self._hear(heard[fd]):
                    del heard[fd]
            gone = next((lives[fd] for fd in ready & lives.keys()), None)
            if gone is not None and not self._end.is_set():
                while self._hear(gone):  # its last messages
                    continue
                self.error = _death(gone)
        if not self._end.is_set():
            self._over()

    def _hear(self, actor: _Actor) -> bool:
        """Handle the actor's next message; return False if there was none."""
        try:
            said = actor.pipe.recv()
        except (EOFError, OSError):
            return False
        if isinstance(said, Failed):
            actor.failed = said
        elif isinstance(said, ActorReport):
            actor.env_steps = said.env_steps
            for total in said.returns:
                if not self.returns.reached:
                    self.returns.add(Episode(total, self.env_steps, self._seconds()))
        return True


def _death(actor: _Actor) -> AsyncLoaderError:
    actor.process.join()
    who, code = f"{actor.name} (process {actor.process.pid})", actor.process.exitcode or 0
    if actor.failed is not None:
        error = Broken(f"{who} failed: {actor.failed.what}")
        if actor.failed.where:
            error.add_note(actor.failed.where)
        return error
    how = (
        f"was killed by {signal.Signals(-code).name}"
        if code < 0
        else f"ended by itself with exit code {code}"
    )
    return Broken(f"{who} {how}")
