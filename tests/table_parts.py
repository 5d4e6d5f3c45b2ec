"""What a table holds inside, for tests: its objects, not copies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from async_loader.replay.buffer import ReplayBuffer, shared_table


def debug_state(buffer: ReplayBuffer) -> Any:
    """Return the parts of a buffer. Steps that were gathered are written before; those that are
    added later may be gathered. Other threads change the parts under ``state.lock``.
    """
    state = shared_table(buffer)
    if state.ready and state.lock.acquire(blocking=False):
        try:
            state.catch_up()
        finally:
            state.lock.release()
    return SimpleNamespace(state=state, saver=buffer._saver)
