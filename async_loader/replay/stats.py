"""A table in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from async_loader.replay.table.waiters import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """A table in numbers, at one moment.

    Attributes
    ----------
    size : int
        Items that can be drawn.
    capacity : int | None
        Steps that are kept; ``None`` while that depends on a schema that is unknown.
    inserted, sampled, deleted : int
        Items, since the table was made or cleared; deleted counts those that made room too.
    nbytes : int | None
        Shared memory of the full table; ``None`` while the schema is unknown.
    streams : int
        Streams whose episode is open, and those that writers in other processes have named. Others
        are forgotten.
    waiting : tuple of Waiting
        The calls and writers that wait for the table, and for what.
    interrupted : int
        Rows that were drawn by `sample` calls which Ctrl-C interrupted, in a table with
        ``max_times_sampled``. They come with the next batch of the same view; until then they are
        neither among the items nor saved.
    """

    size: int
    capacity: int | None
    inserted: int
    sampled: int
    deleted: int
    nbytes: int | None
    streams: int
    waiting: tuple[Waiting, ...]
    interrupted: int = 0
