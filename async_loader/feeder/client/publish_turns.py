"""Publications of one client under one name go one after the other.

# NOTE [publications one after the other]
A feeder puts the parts of a version together by client and name: parts of two publications that are
under way at once would be mixed, or refused. So a publication has its turn from its first part to
its last answer. A signal handler may publish while the publication of its own thread is
interrupted; it cannot wait for that one, so it goes first, and the interrupted one begins again
with its first part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.notifier import Notifier
from async_loader.interrupts import SignalsAllowed, SignalsDeferred
from async_loader.lifecycle import Deadline

R = TypeVar("R")


class BeginAgain(AsyncLoaderError):
    """A signal handler has published under the same name: the feeder forgot the first parts."""


class Turn:
    """The turn of one publication.

    Attributes
    ----------
    disturbed : bool
        A publication of a signal handler came in between.
    """

    __slots__ = ("disturbed", "thread")

    def __init__(self) -> None:
        self.thread, self.disturbed = threading.get_ident(), False


class PublishTurns:
    """Whose turn it is to publish, by name. Threads: any.

    Parameters
    ----------
    news : Notifier
        Rung when a turn ends.
    """

    def __init__(self, news: Notifier) -> None:
        self._news = news
        self._lock = threading.Lock()  # signals are deferred while it is held
        self._taken: dict[str, list[Turn]] = {}  # the last one publishes; all are of one thread

    def run(self, name: str, deadline: Deadline, publish: Callable[[Turn], R]) -> R:
        """Call ``publish`` when it is the turn of the calling thread, and return its result.

        Not in a forked process: the thread whose turn it is may not exist there.

        Raises
        ------
        Timeout
            The turn of another thread takes longer than the deadline.
        """
        turn = Turn()
        with SignalsDeferred():  # a turn ends, wherever Ctrl-C comes
            try:
                if not self._begin(name, turn):
                    with SignalsAllowed():
                        self._news.until(
                            lambda: self._begin(name, turn),
                            deadline,
                            lambda: (
                                f"weights {name!r} are still being published by another thread: "
                                "the call may be made again"
                            ),
                        )
                with SignalsAllowed():
                    return publish(turn)
            finally:
                self._end(name, turn)

    def _begin(self, name: str, turn: Turn) -> bool:
        with SignalsDeferred(), self._lock:
            taken = self._taken.setdefault(name, [])
            if taken and taken[0].thread != turn.thread:
                return False
            for interrupted in taken:
                interrupted.disturbed = True
            taken.append(turn)
            return True

    def _end(self, name: str, turn: Turn) -> None:
        with SignalsDeferred():
            with self._lock:
                taken = self._taken.get(name, [])
                if turn in taken:
                    taken.remove(turn)
                if not taken:
                    self._taken.pop(name, None)
            self._news.ring()
