"""Where one shard is, as its connection's IO thread asks it."""

from __future__ import annotations

from collections.abc import Callable

from async_loader.held_locks import held_lock
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import EventFd
from async_loader.scale.shard_map import Shard


class ShardPlace:
    """A shard as the newest map has it: a `Whereabouts` of its connection.

    Threads: any.

    Parameters
    ----------
    shard : Shard
    report : callable
        `Directory.report_lost`.

    Attributes
    ----------
    shard : Shard
        Replaced when there is a newer map.
    """

    def __init__(self, shard: Shard, report: Callable[[str, int], None]) -> None:
        self.shard, self._report = shard, report
        self._lock = held_lock()
        self._bells: list[EventFd] = []
        self._incarnations: list[int] = []

    def now(self) -> str:
        """See `Whereabouts`."""
        return self.shard.address

    def reached(self, server: int) -> None:
        """See `Whereabouts`."""
        while len(self._incarnations) <= server:
            self._incarnations.append(self.shard.incarnation)
        self.ring()

    def lost(self) -> None:
        """See `Whereabouts`. A loss that the map shows is not reported again."""
        shard = self.shard
        if shard.state != "lost":
            self._report(shard.name, shard.incarnation)
        self.ring()

    def ended(self) -> None:
        """See `Whereabouts`."""
        self.ring()

    def incarnation_of(self, server: int) -> int:
        """Return the incarnation of the server of this number, counted from 0 by the connection.

        Where the directory tells none apart it is that number.
        """
        if server >= len(self._incarnations):
            return server
        return max(self._incarnations[server], server)

    def listen(self, bell: EventFd) -> None:
        """Ring a bell when the shard is lost or reached."""
        with SignalsDeferred(), self._lock:
            self._bells.append(bell)

    def unlisten(self, bell: EventFd) -> None:
        """Ring it no more: from here on it may be closed."""
        with SignalsDeferred(), self._lock:
            self._bells = [one for one in self._bells if one is not bell]

    def ring(self) -> None:
        """Ring all bells."""
        with SignalsDeferred(), self._lock:
            for bell in self._bells:
                bell.ring()
