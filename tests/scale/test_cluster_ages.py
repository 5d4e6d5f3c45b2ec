"""How old the rows of a shard may be that is asked seldom, also after a reconnect."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader.feeder.client.batch_structure import BatchStructure
from async_loader.scale.shard_rows import BatchMaker, ShardRows
from async_loader.schema import Schema
from async_loader.source import Ready

SCHEMA = Schema.of({"index": np.int64, "asked": np.int64})
CHUNK, MOST_AGE = 4, 16


class FakeSource:
    """Chunks whose rows say before which batch they were asked for."""

    structure = BatchStructure(SCHEMA)

    def __init__(self, ahead):
        self.ahead, self.now = ahead, 0
        self.coming = deque()

    def open(self, kept=0):
        """Open the reader, or open it again when some chunks are here that came before."""
        while len(self.coming) > kept:
            self.coming.pop()
        self.coming.extend([self.now] * (self.ahead - len(self.coming)))

    def draw_now(self, chunk):
        if not self.coming:
            return None
        asked = self.coming.popleft()
        self.coming.append(self.now)
        return Ready({"index": np.arange(chunk), "asked": np.full(chunk, asked)}, lent=True)


def rows_of(source):
    shard = SimpleNamespace(number=0, name="shard-0", connection=SimpleNamespace(servers=0))
    return ShardRows(shard, source, CHUNK, MOST_AGE)


def took(rows, source, count):
    """When the next rows were asked for."""
    assert rows.fill(count, source.now, BatchMaker())
    return [
        int(asked)
        for part in rows.take(count)
        for asked in part.arrays[1][part.start : part.start + part.rows]
    ]


STEP = st.tuples(st.integers(0, 12), st.integers(0, 6), st.one_of(st.none(), st.integers(0, 8)))


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(STEP, max_size=30))
def test_rows_are_no_older_than_promised(ahead, steps):
    source = FakeSource(ahead)
    rows = rows_of(source)
    source.open()
    rows.fill(0, 0, BatchMaker())
    for batches, count, kept in steps:
        source.now += batches
        if kept is not None:
            source.open(kept)
        assert all(source.now - asked <= MOST_AGE for asked in took(rows, source, count))
