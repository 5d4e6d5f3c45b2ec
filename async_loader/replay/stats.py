"""A table in numbers. Counts nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from async_loader.replay.waiting import Waiting


@dataclass(frozen=True, slots=True)
class TableStats:
    """A table in numbers, at one moment.

    Attributes
    ----------
    size, capacity : int
        Items that can be drawn; steps that are kept.
    inserted, sampled, deleted : int
        Items, since the table was made; deleted counts those that made room too.
    nbytes : int
        Shared memory of a full table.
    streams : int
        Streams whose episode is open, and those that writers in other processes have named. Others are forgotten.
    waiting : tuple of Waiting
        The calls and writers that wait for the table, and for what.
    interrupted : int
        Rows that were drawn by `sample` calls which Ctrl-C interrupted, in a table with ``max_times_sampled``. They come
        with the next batch of the same view; until then they are neither among the items nor saved.
    """

    size: int
    capacity: int
    inserted: int
    sampled: int
    deleted: int
    nbytes: int
    streams: int
    waiting: tuple[Waiting, ...]
    interrupted: int = 0
