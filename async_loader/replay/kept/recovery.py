"""Has a table go on where its process was killed. See __init__.py, NOTE [what a kill leaves].

Each step may be repeated: a process that is killed here leaves what the next one reads.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.kept.file import KeptFile
from async_loader.replay.kept.pages import CARRIED, LOOKAHEAD, SAMPLED
from async_loader.replay.table import rebuild
from async_loader.replay.table.step_packer import end_fields
from async_loader.replay.table.table import Table


def recover(table: Table, file: KeptFile) -> None:
    """Make a table of the rows that count. Under its lock, when it has its samplers."""
    g, words, commit = table.g, file.pages.words, file.pages.commit
    streams = file.pages.streams()
    heads = table.storage.heads()
    ids = heads[:, r.ID // 8] - 1
    _unwind(file.pages.marks, ids, heads[:, r.PREV // 8], commit.cursor)
    _cut_links(heads, commit.cursor)
    heads[ids >= commit.cursor, r.ID // 8] = 0
    ids[ids >= commit.cursor] = -1
    _patch(table, file, ids)
    _take_ends_back(table, file.pages.marks, ids)
    g[r.CURSOR] = commit.cursor
    g[r.LOOKAHEAD] = max(g[r.LOOKAHEAD], words[LOOKAHEAD])
    table.inserted, table.cleared = commit.inserted, commit.cleared
    table.sampled, table.carried = words[SAMPLED], words[CARRIED]
    if commit.leases:
        table.sampled -= _requeue(table, file.told, ids)
    table.go_on_with(
        {name: number for name, number in streams.items() if file.pages.marks[number] != -1},
        {number for name, number in streams.items() if not _of_producer(name, file)},
    )
    file.restore_samplers()
    rebuild.derive(table)
    file.in_sequences()[table.items.alive == 0] = np.nan
    if table.ring is not None:
        table.ring.resume(table.ids)
    rebuild.rebuild(table)
    file.restore_samplers()  # what one gave by itself is not the largest that was given
    table.storage.ready = table.items.top
    alive = table.ids[table.items.alive != 0]
    file.seen = alive[file.told[alive % len(ids)] == -1 - alive]
    file.held = False
    file.note_counts()


def _of_producer(name: object, file: KeptFile) -> bool:
    """Return whether a stream is that of a feeder's writer, whose environment goes on."""
    if not isinstance(name, tuple) or len(name) != 2 or not isinstance(name[0], str):
        return False
    return name[0] in {key.hex() for key in file.pages.slots}


def _unwind(marks: Ids, ids: Ids, before: Ids, cursor: int) -> None:
    """Have no stream end with a row that does not count."""
    named = np.where(marks >= 0, marks, -2 - marks)
    for number in np.flatnonzero((marks != -1) & (named >= cursor)).tolist():
        mark = int(marks[number])
        while mark != -1 and (name := mark if mark >= 0 else -2 - mark) >= cursor:
            row = name % len(ids)
            mark = int(before[row]) if ids[row] == name and before[row] < name else -1
        marks[number] = mark


def _cut_links(heads: Ids, cursor: int) -> None:
    after = heads[:, r.NEXT // 8]
    named = np.where(after >= 0, after, -2 - after)
    after[(after != -1) & (named >= cursor)] = -1


def _patch(table: Table, file: KeptFile, ids: Ids) -> None:
    """Make an update good that was cut; a step whose end was being noted has not ended."""
    flags = table.storage.heads()[:, r.FLAGS // 8]
    odd = np.flatnonzero((ids >= 0) & (flags & r.VERSION_ONE != 0) & (flags & r.ENDS == 0))
    _clear_ends(table, odd)
    patch = file.patch()
    if patch is not None:
        named, columns = patch
        there = np.flatnonzero(ids[named % len(ids)] == named)
        for i, column in columns.items():
            table.storage.cell(i)[named[there] % len(ids)] = column[there]
        file.patched()


def _take_ends_back(table: Table, marks: Ids, ids: Ids) -> None:
    """Take back the ends of episodes whose rows do not count; finish those that only flags tell."""
    flags = table.storage.heads()[:, r.FLAGS // 8]
    before = table.storage.heads()[:, r.PREV // 8]
    for number in np.flatnonzero(marks >= 0).tolist():
        name = int(marks[number])
        row = name % len(ids)
        if ids[row] != name:
            continue
        if flags[row] & r.FINAL:  # it was given up for the one before it
            last = int(before[row])
            if last >= 0 and ids[last % len(ids)] == last:
                flags[last % len(ids)] |= r.TRUNCATED
            marks[number] = -2 - name
        elif flags[row] & r.ENDS and not flags[row] & r.AWAITS:
            _clear_ends(table, (row,))
            flags[row] &= ~r.ENDS


def _clear_ends(table: Table, rows: Iterable[int]) -> None:
    for i in end_fields(table.storage.layout.schema):
        if i >= 0:
            table.storage.cell(i)[np.asarray(rows, np.int64)] = 0


def _requeue(table: Table, told: Ids, ids: Ids) -> int:
    """Make items of the rows that learners had and did not confirm. Return how many."""
    flags = table.storage.heads()[:, r.FLAGS // 8]
    drawn = (ids >= 0) & (table.times >= table._most) & (flags & r.FINAL == 0) & (told != ids + 1)
    rows = np.flatnonzero(drawn)
    if table.free is None:
        rows = rows[rebuild.oldest_shown(table, ids, rows) >= int(table.g[r.CURSOR]) - table.window]
    told[rows] = -1 - ids[rows]  # first: a kill leaves them marked
    flags[rows] &= ~r.DELETED
    table.times[rows] = 0
    return len(rows)
