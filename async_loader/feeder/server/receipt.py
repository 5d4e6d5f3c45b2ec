"""What becomes of an INSERT that is received. See NOTE [exactly once] in insert_queue.py."""

from __future__ import annotations

from enum import Enum


class Receipt(Enum):
    """What became of an insert."""

    NEW = "new"
    AGAIN = "again"
    """A duplicate."""
    GAP = "gap"
    """Earlier ones are missing, and the writer has to be told."""
    AFTER_GAP = "after gap"
    """As GAP, but the writer was told before it sent this one."""
