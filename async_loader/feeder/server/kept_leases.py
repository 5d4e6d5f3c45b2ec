"""Rows of a kept queue that learners have: after a kill they come again, marked.

A drawn row stays in the table's file, where `recovery.py` finds it, until the order moves on over
it: before that the rows that are not confirmed go to a file of their own, which is written anew
with each confirmation from then on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from zipfile import BadZipFile

from async_loader.errors import CorruptCheckpoint
from async_loader.feeder.server.batch_scheduler import BatchScheduler
from async_loader.feeder.server.reader_state import RequeuedRows, RowKind
from async_loader.replay.array_types import Ids
from async_loader.replay.table.nonblocking_table import NonblockingTable


class KeptLeases:
    """Notes what learners have, and have confirmed. In the server's loop.

    Parameters
    ----------
    table : NonblockingTable
        A queue that is kept.
    scheduler : BatchScheduler
        Gets the rows that an earlier process has left in the file.

    Raises
    ------
    CorruptCheckpoint
    """

    def __init__(self, table: NonblockingTable, scheduler: BatchScheduler) -> None:
        self._table, self._scheduler = table, scheduler
        self._path = table.kept.folder / "unused.npz"
        self._drawn: deque[int] = deque()
        self._in_file = self._path.exists()
        if self._in_file:
            scheduler.forget_rows(self._left())
            self._write()
        scheduler.kept, table.before_insert = self, self._before_insert

    def _left(self) -> RequeuedRows:
        try:
            left = RequeuedRows.load(self._path.read_bytes())
        except (ValueError, KeyError, BadZipFile, EOFError) as error:
            raise CorruptCheckpoint(f"{self._path}: it has no rows: {error}") from None
        for kind in left.kinds():
            columns = left.get(kind)
            assert columns is not None
            left.keep(kind, ~self._table.holds(columns[self._index_place(kind)]))
        left.mark()
        return left

    def _index_place(self, kind: RowKind) -> int:
        view = self._scheduler.view_of(json.loads(kind[1] or "null"))
        return [field.name for field in self._table.shown(view).fields].index("index")

    def drawn(self, ids: Ids) -> None:
        """Note rows that a learner is sent."""
        self._drawn.extend(ids.tolist())

    def confirmed(self, ids: Ids) -> None:
        """Note rows that a learner has used."""
        self._table.confirm(ids)
        if self._in_file:
            self._write()

    def _before_insert(self, rows: int) -> None:
        drawn, table = self._drawn, self._table
        while drawn and table.is_confirmed(drawn[0]):
            drawn.popleft()
        if drawn and table.moves_over(drawn[0], rows):
            self._write()

    def _write(self) -> None:
        unused = self._scheduler.unused()
        self._drawn.clear()
        self._in_file = len(unused) > 0
        if not self._in_file:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            return
        new = self._path.with_name("unused.new")
        new.write_bytes(unused.dump())
        os.rename(new, self._path)

    def forget(self) -> None:
        """Note that no row comes again: the table was cleared or loaded."""
        self._table.confirm_all()
        self._write()
