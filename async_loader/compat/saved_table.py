"""A table as bytes, for pickles."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.buffer import shared_table

T = TypeVar("T")


class SavedTable(NamedTuple):
    """The files of a checkpoint, and what belongs to it.

    Attributes
    ----------
    files : dict of str to bytes
        By their paths within the checkpoint's folder.
    extra : object
    """

    files: dict[str, bytes]
    extra: Any

    @classmethod
    def of(cls, table: Table, extra: Any) -> SavedTable:
        """Save a table."""
        with tempfile.TemporaryDirectory(prefix="async_loader-") as name:
            folder = Path(name)
            table.save(folder / "table")
            files = {
                str(path.relative_to(folder)): path.read_bytes()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
        return cls(files, extra)

    def table(self) -> Table:
        """Make the table that was saved."""
        table = self.into(Table.from_checkpoint)
        go_on(table)
        return table

    def into(self, load: Callable[[Path], T]) -> T:
        """Return what ``load`` makes of the checkpoint's folder."""
        with tempfile.TemporaryDirectory(prefix="async_loader-") as name:
            folder = Path(name)
            for path, content in self.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            return load(folder / "table")


def go_on(table: Table) -> None:
    """Have the open episodes of a loaded table go on, as those of other libraries' buffers do."""
    state = shared_table(table)
    if state.ready:
        with state.lock:
            state.table.go_on()


def column_of(table: Table, name: str, ids: Ids) -> Array:
    """Return a copy of one stored field by id; zeros where an id is not in the table."""
    state = shared_table(table)
    with state.lock:
        state.check_open()
        state.catch_up()
        storage = state.table.storage
        fields = storage.layout.schema.fields
        place: Any = next(i for i, field in enumerate(fields) if field.name == name)
        rows = ids % storage.layout.rows
        values: Array = storage.cell(place)[rows]
        values[(storage.heads()[rows, 0] != ids + 1) | (ids < 0)] = 0
    return values
