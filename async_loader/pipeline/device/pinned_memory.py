"""Which slots are page-locked, where several streamers copy from one ring. Copies nothing."""

from __future__ import annotations

from dataclasses import dataclass

from async_loader.held_locks import held_lock
from async_loader.interrupts import SignalsDeferred
from async_loader.pipeline.device.backend import Bytes, DeviceBackend


@dataclass(slots=True)
class _PinnedRange:
    backend: DeviceBackend
    users: int = 1


class PinnedMemory:
    """Page-locks memory for the first streamer that asks, and gives it back with the last: one that
    has ended must not take the pages from under the copies of another. Any thread.
    """

    def __init__(self) -> None:
        self._lock = held_lock()
        self._held: dict[int, _PinnedRange] = {}

    def register(self, backend: DeviceBackend, memory: Bytes, unit: int) -> bool:
        """As `DeviceBackend.register`."""
        with SignalsDeferred(), self._lock:
            held = self._held.get(memory.ctypes.data)
            if held is not None:
                held.users += 1
                return True
            pinned = backend.register(memory, unit)
            if pinned:
                self._held[memory.ctypes.data] = _PinnedRange(backend)
            return pinned

    def unregister(self, memory: Bytes) -> None:
        """The counterpart of a `register` that returned True."""
        with SignalsDeferred(), self._lock:
            held = self._held[memory.ctypes.data]
            held.users -= 1
            if held.users:
                return
            del self._held[memory.ctypes.data]
            held.backend.unregister(memory)
