"""A table as bytes, for pickles."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from async_loader.replay import ReplayBuffer as Table

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
        return self.into(Table.from_checkpoint)

    def into(self, load: Callable[[Path], T]) -> T:
        """Return what ``load`` makes of the checkpoint's folder."""
        with tempfile.TemporaryDirectory(prefix="async_loader-") as name:
            folder = Path(name)
            for path, content in self.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            return load(folder / "table")
