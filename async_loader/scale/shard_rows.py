"""Rows that one shard has drawn and no batch has taken yet.

# NOTE [age of rows]
A shard draws ahead: rows that come now were asked for when the chunk ``ahead`` chunks before was
taken, and the first ones when the shard was opened, or opened again. A shard with few rows is asked
seldom, and what it drew would wait for many batches, while its rows and priorities change. So rows
that were asked for more than ``most_age`` batches ago are dropped, and drawn anew; as many as a
single feeder may have ahead. Where a draw uses rows up, none is dropped.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.feeder.client.batch_structure import SERVER_BITS
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.wire import TotalsReply
from async_loader.lifecycle import EventFd
from async_loader.scale.batch_maker import BatchMaker, Chunk, Part
from async_loader.scale.shard_connection import ShardConnection
from async_loader.schema import Schema
from async_loader.source import END, Ready

TOTALS_S = 0.05
"""How old the totals of a shard may be when a batch is drawn, plus one answer's way."""


class ShardRows:
    """Draws rows from one shard. Thread rule: that of `Source.plan`.

    Parameters
    ----------
    shard : ShardConnection
    open_source : callable
        Makes a source of the shard's table.
    rng : Generator
        For the order in which rows are taken.
    batches : BatchMaker
        Checks that the rows of all shards are alike.
    note_items : callable
        Told of how many items the shard has, when it has said it.

    Attributes
    ----------
    chunk : int
        Rows of a chunk; 0 before `begin`.
    most_age : int | None
        In batches; ``None``: rows are kept however old they are. See NOTE [age of rows].
    shuffled : bool
        Whether the order of a chunk says something of its rows, so that they are taken in another.
    """

    def __init__(
        self,
        shard: ShardConnection,
        open_source: Callable[[], RemoteSource],
        rng: np.random.Generator,
        batches: BatchMaker,
        note_items: Callable[[int], None],
    ) -> None:
        self._note_items = note_items
        self._newest: TotalsReply | None = None
        self.shard, self._open_source, self._rng = shard, open_source, rng
        self.source = open_source()
        self.chunk, self.shuffled = 0, False
        self.most_age: int | None = None
        self._known, self._batches = False, batches
        self._schema: Schema | None = None  # of the rows that came last
        self._seen: Schema | None = None
        self._parts: deque[Part] = deque()  # rows that no batch has, in the shard's order
        self._drawn = 0
        self._asked: deque[int] = deque()  # when each chunk that has not come was asked for
        self._openings = 0
        self._ended_at: int | None = None
        self._bell: EventFd | None = None
        self.held = 0

    # -- what the shard says of itself -------------------------------------------------------------

    @property
    def here(self) -> bool:
        """Whether the shard can be drawn from at this moment."""
        servers, source = self.shard.connection.servers, self.source
        if self._ended_at is not None:
            replaced = servers > self._ended_at
        else:  # of what it had nothing is asked for any more, so the END would not be taken
            replaced = source.end_has_come and not source.leased and servers > source.server
        if replaced:
            self._begin_anew()
        return self._ended_at is None and self.shard.answers

    @property
    def ended(self) -> bool:
        """Whether the shard has said that nothing more comes."""
        return self._ended_at is not None

    def totals(self) -> TotalsReply | None:
        """Return how much the shard draws from; ``None``: it has not said yet, for the first time.

        What a shard that was lost held is not known: nothing.
        """
        newest, _ = self.source.totals(self.chunk)
        if newest is None:
            return TotalsReply(items=0) if self._known else None
        self._known = True
        if newest is not self._newest:
            self._newest = newest
            self._note_items(newest.items)
        return newest

    def opened(self) -> bool:
        """Whether it was opened, or opened again, since the last call."""
        schema = self.source.schema
        if schema is None or schema is self._seen:
            return False
        self._seen = schema
        return True

    def sampler(self) -> dict[str, Any] | None:
        """Return the settings of its sampler, once it is open."""
        return self.source.totals(self.chunk)[1]

    def begin_afresh(self) -> None:
        """Forget what the shard has drawn and said, except what is leased: it comes only once."""
        self._parts = deque(one for one in self._parts if one.chunk.lease is not None)
        self.held = sum(one.rows for one in self._parts)
        self._known = False
        self.source.ask_anew()

    def listen(self, bell: EventFd | None) -> None:
        """Have a bell rung when there is something new, or no more."""
        self._bell = bell
        if bell is None or self._ended_at is None:
            self.source.listen(self.chunk, bell)

    # -- rows --------------------------------------------------------------------------------------

    def fill(self, count: int, batch: int) -> bool:
        """Take what has arrived until ``count`` rows are there; return whether they are."""
        self._forget_old(batch)
        self._note_asked(batch)
        while self.held < count and self._ended_at is None:
            plan = self.source.draw_now(self.chunk)
            if plan is None:
                return False
            if plan is END:
                # by now there may be another server, which has rows again
                self._ended_at = self.source.server
                break
            assert isinstance(plan, Ready)
            self._keep(plan, batch)
        return self.held >= count

    def _note_asked(self, batch: int) -> None:
        """Note what was asked for since the last call."""
        openings, kept = self.source.opened
        if openings != self._openings:
            self._openings = openings
            while len(self._asked) > kept:
                self._asked.pop()
        while len(self._asked) < self.source.ahead:
            self._asked.append(batch)

    def _keep(self, plan: Ready, batch: int) -> None:
        asked = self._asked.popleft() if self._asked else batch
        self._note_asked(batch)
        if self._is_old(asked, batch):
            return
        schema = self.source.schema
        assert schema is not None
        server = int(plan.batch["index"].reshape(-1)[0]) >> SERVER_BITS
        if plan.lease is None and server != self.shard.connection.servers:
            return  # it was lost with these rows
        if schema is not self._schema:
            self._agree(schema)
        arrays = list(tree.leaves(plan.batch, schema.structure))
        self._batches.number(arrays, self.shard.number)
        rows = len(arrays[0])
        order = self._rng.permutation(rows) if self.shuffled else None
        chunk = Chunk(arrays, rows, order, asked, server, plan.lease, self._drawn)
        self._drawn += 1
        self._parts.append(Part(chunk, 0, rows))
        self.held += rows

    def _agree(self, schema: Schema) -> None:
        """Check that the rows are like those of the other shards."""
        self._batches.agree(schema, self.shard.name)
        self._schema = schema

    def take(self, count: int) -> list[Part]:
        """Take the next ``count`` rows, which are there."""
        parts = []
        while count:
            part = self._parts.popleft()
            if part.rows > count:
                chunk, start, rows = part
                self._parts.appendleft(Part(chunk, start + count, rows - count))
                part = Part(chunk, start, count)
            parts.append(part)
            self.held -= part.rows
            count -= part.rows
        return parts

    def put_back(self, part: Part) -> None:
        """Put rows where they were: the batch with them was not delivered.

        Rows after them may be in other batches, which are delivered.
        """
        insort(self._parts, part, key=_place)
        self.held += part.rows

    def drop(self) -> None:
        """Drop all rows: they are drawn anew, or leased and given back."""
        self._parts.clear()
        self.held = 0

    def close(self, timeout_s: float) -> None:
        """Close the source. Raises Timeout if the shard does not answer.

        Of a chunk that batches have in part, all rows return, with the mark ``redelivered``.
        """
        self.drop()
        limit = timeout_s if self.shard.is_open else 0.0
        if self.source.leased:
            self.source.release(limit)
        self.source.close(limit)

    def _begin_anew(self) -> None:
        """Open another source: the shard had ended, and was started anew."""
        self.source.listen(self.chunk, None)
        self.source.close(0.0)
        self.source, self._ended_at = self._open_source(), None
        self._openings = 0
        self._asked.clear()
        if self._bell is not None:  # a plan waits that began before
            self.source.listen(self.chunk, self._bell)

    def _is_old(self, asked: int, batch: int) -> bool:
        return self.most_age is not None and batch - asked > self.most_age

    def _forget_old(self, batch: int) -> None:
        """Drop old rows, rows that have gone back to the shard, and rows that were lost with it."""
        while self._parts:
            chunk, _, rows = self._parts[0]
            if not self._is_old(chunk.asked, batch) and not self._has_gone(chunk):
                break
            self._parts.popleft()
            self.held -= rows

    def _has_gone(self, chunk: Chunk) -> bool:
        if chunk.lease is None:
            return chunk.server != self.shard.connection.servers
        return self.source.returned(chunk.lease)


def _place(part: Part) -> tuple[int, int]:
    """Return where these rows are in the order of the shard."""
    return part.chunk.number, part.start
