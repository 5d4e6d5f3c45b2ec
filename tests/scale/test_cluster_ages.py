"""How old the rows of a shard may be that is asked seldom, also after a reconnect."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader.scale.draws import BatchMaker
from async_loader.scale.shard_rows import ShardRows
from async_loader.schema import Schema
from async_loader.source import Ready

SCHEMA = Schema.of({"index": np.int64, "asked": np.int64})
CHUNK, MOST_AGE = 4, 16


class FakeSource:
    """Chunks whose rows say before which batch they were asked for."""

    leased, end_has_come, server, schema = False, False, 0, SCHEMA

    def __init__(self, ahead):
        self.ahead, self.opened, self.now = ahead, (0, 0), 0
        self.coming, self.gave = deque(), []

    def open(self, kept=0):
        """Open the reader, or open it again when some chunks are here that came before."""
        while len(self.coming) > kept:
            self.coming.pop()
        self.opened = self.opened[0] + 1, len(self.coming)
        self.coming.extend([self.now] * (self.ahead - len(self.coming)))

    def draw_now(self, chunk):
        if not self.coming:
            return None
        asked = self.coming.popleft()
        self.coming.append(self.now)
        self.gave.append(asked)
        return Ready({"index": np.arange(chunk), "asked": np.full(chunk, asked)}, lent=True)


def rows_of(source):
    shard = SimpleNamespace(
        number=0, name="shard-0", answers=True, connection=SimpleNamespace(servers=0)
    )
    rows = ShardRows(shard, lambda: source, CHUNK, np.random.default_rng(0), BatchMaker())
    rows.most_age = MOST_AGE
    return rows


def took(rows, source, count):
    """When the next rows were asked for."""
    assert rows.fill(count, source.now)
    return [
        int(asked)
        for part in rows.take(count)
        for asked in part.arrays[1][part.start : part.start + part.rows]
    ]


STEP = st.tuples(st.integers(0, 12), st.integers(0, 6), st.one_of(st.none(), st.integers(0, 8)))


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(STEP, max_size=30))
def test_rows_are_as_old_as_promised_and_none_that_is_younger_is_dropped(ahead, steps):
    source = FakeSource(ahead)
    rows = rows_of(source)
    source.open()
    rows.fill(0, 0)
    used = set()
    for batches, count, kept in steps:
        source.now += batches
        if kept is not None:
            source.open(kept)
        found = took(rows, source, count)
        assert all(source.now - asked <= MOST_AGE for asked in found)
        used |= {*found}
        there = {part.asked for part in rows._parts}
        for asked in source.gave:
            assert asked in used | there or source.now - asked > MOST_AGE
            used.add(asked)


def test_rows_that_come_after_a_reconnect_are_fresh():
    source = FakeSource(ahead=4)
    rows = rows_of(source)
    source.open()
    took(rows, source, 6 * CHUNK)
    source.now = 100
    source.open()
    assert took(rows, source, 1) == [100]
    assert source.gave == [0] * 6 + [100]
