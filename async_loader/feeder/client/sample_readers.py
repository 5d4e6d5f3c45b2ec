"""Readers of `TableClient.sample`: each call has one to itself, with a credit of one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from async_loader.feeder.client.source import RemoteSource
from async_loader.replay.views import View

_MOST_IDLE = 16
Kind = tuple[int, View | None]
"""A batch size and a view."""


class SampleReaders:
    """Readers of one table that are kept open between calls. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Kind, RemoteSource]] = []

    def take(self, kind: Kind, make: Callable[[], RemoteSource]) -> RemoteSource:
        """Return a reader that no other call uses until `give_back` has it."""
        with self._lock:
            for i in reversed(range(len(self._idle))):
                if self._idle[i][0] == kind:
                    return self._idle.pop(i)[1]
        return make()

    def give_back(self, kind: Kind, source: RemoteSource, usable: bool) -> None:
        """Keep a reader for later calls, if it is ``usable``."""
        oldest = source
        with self._lock:
            if usable:
                self._idle.append((kind, source))
                if len(self._idle) <= _MOST_IDLE:
                    return
                _, oldest = self._idle.pop(0)
        oldest.drop()
