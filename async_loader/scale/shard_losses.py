"""Which rows a shard has lost, over all its processes: a file in its folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TypedDict

from async_loader.scale.shard_process import About

MOST = 100
"""Entries that are kept, the newest ones; `ShardLosses.total` has all rows."""


class Loss(TypedDict):
    """What one restart has lost of one table.

    Attributes
    ----------
    table : str
    rows : int
        That were acknowledged, and are in no checkpoint.
    save : int | None
        The save that was restored; ``None``: there was none.
    incarnation : int
        The one that began without the rows.
    at : float
        Seconds since 1970.
    """

    table: str
    rows: int
    save: int | None
    incarnation: int
    at: float


class ShardLosses:
    """The losses of one shard.

    Parameters
    ----------
    folder : Path
        The shard's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "losses"
        self.total: dict[str, int] = {}
        self.entries: list[Loss] = []
        self._seen = 0
        self._sums: dict[str, int] = {}  # of losses, by table, as a process said them last
        try:
            saved = json.loads(self._path.read_text())
            self.total, self.entries, self._seen = saved["total"], saved["entries"], saved["seen"]
            self._sums = saved.get("sums", {})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return

    def note(self, about: About) -> None:
        """Note the rows that an incarnation, and earlier ones that were never heard of, began
        without. Once for each incarnation.
        """
        if about.incarnation <= self._seen:
            return
        self._seen = about.incarnation
        for table, one in about.restored.items():
            before = self._sums.get(table, 0)
            self._sums[table] = one["lost"]
            if one["lost"] < before:  # its folder is a new one
                before = 0
            self.add(table, one["lost"] - before, one["save"], about.incarnation)
        self._write()

    def add(self, table: str, rows: int, save: int | None, incarnation: int) -> None:
        """Add a loss, unless it is of 0 rows."""
        if rows:
            loss = Loss(table=table, rows=rows, save=save, incarnation=incarnation, at=time.time())
            self.total[table] = self.total.get(table, 0) + rows
            self.entries = [*self.entries, loss][-MOST:]

    def _write(self) -> None:
        temporary = self._path.with_suffix(".new")
        text = {
            "total": self.total,
            "entries": self.entries,
            "seen": self._seen,
            "sums": self._sums,
        }
        temporary.write_text(json.dumps(text))
        temporary.rename(self._path)
