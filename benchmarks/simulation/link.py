"""A network link: bytes one after the other, each after the same latency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.simulation.events import EventQueue


class Link:
    """Sends messages in order.

    Parameters
    ----------
    events : EventQueue
    latency_s : float
        From the last byte sent to the last byte received.
    bytes_per_s : float
    """

    def __init__(self, events: EventQueue, latency_s: float, bytes_per_s: float) -> None:
        self._events, self._latency_s, self._bytes_per_s = events, latency_s, bytes_per_s
        self._free_at = 0.0
        self.sent_bytes = 0

    def send(self, size: int, received: Callable[..., None], *arguments: Any) -> None:
        """Queue a message; call ``received`` when its last byte is there."""
        begin = max(self._events.now, self._free_at)
        self._free_at = begin + size / self._bytes_per_s
        self.sent_bytes += size
        self._events.at(self._free_at + self._latency_s, received, *arguments)
