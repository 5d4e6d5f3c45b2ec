"""What a table holds inside, for tests: its objects, not copies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from async_loader.replay.buffer import ReplayBuffer, parts_of


def debug_state(buffer: ReplayBuffer) -> Any:
    """Return the parts of a buffer. Steps that were gathered are written before; those that are
    added later may be gathered. Other threads change the parts under ``state.lock``.
    """
    parts = parts_of(buffer)
    lock = parts.state.lock
    if parts.state.ready and lock.acquire(blocking=False):
        try:
            parts.state.catch_up()
        finally:
            lock.release()
    return SimpleNamespace(
        state=parts.state,
        inserter=parts.inserter,
        table_sampler=parts.table_sampler,
        saver=buffer._saver,
    )
