"""Compiled work on rows: writing, linking, reading, checking.

Kernels get addresses and numbers, and check no argument.

Import late: see compiled.py. Numbers that kernels share with Python (the words of a row's head,
flags, the positions in the geometry) are in row_format.py.

# NOTE [row lock]
A row is guarded by its own id, as a sequence lock. A writer clears the id, writes the row, and
stores the new id; a reader checks the id after it has read the row: as ids are never reused, an
unchanged id means that no write had begun. A patch in place (`update`) raises the row's version to
an odd number before and to an even one after. The stores and loads of ids are atomic, with the
fences that a sequence lock needs (Boehm, "Can seqlocks get along with programming language memory
models?", MSPC 2012, figure 6), so this also holds where the machine reorders accesses.
"""

from async_loader.replay.kernels.reading import (
    find,
    note_priorities,
    read,
    read_any,
    read_many,
    remove,
    room,
    turn_version,
    use_up,
)
from async_loader.replay.kernels.writing import retire_steps, write

__all__ = [
    "find",
    "note_priorities",
    "read",
    "read_any",
    "read_many",
    "remove",
    "retire_steps",
    "room",
    "turn_version",
    "use_up",
    "write",
]
