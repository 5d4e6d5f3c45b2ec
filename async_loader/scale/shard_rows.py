"""Rows that one shard has drawn and no batch has taken yet.

# NOTE [age of rows]
A shard draws ahead: rows that come now were asked for when the chunk ``ahead`` chunks before was
taken, and the first ones when the shard was opened, or opened again. A shard with few rows is asked
seldom, and what it drew would wait for many batches, while its rows and priorities change. So rows
that were asked for more than ``most_age`` batches ago are dropped, and drawn anew; as many as a
single feeder may have ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.feeder.client.batch_structure import SERVER_BITS
from async_loader.feeder.client.source import RemoteSource
from async_loader.feeder.wire import TotalsReply
from async_loader.lifecycle import EventFd
from async_loader.scale.connections import ShardConnection
from async_loader.scale.draws import AGE, BatchMaker, Part
from async_loader.schema import Schema
from async_loader.source import END, Plan, Ready
from async_loader.sources.mixture_rows import Array

TOTALS_S = 0.05
"""How old the totals of a shard may be when a batch is drawn, plus one answer's way."""


class ShardRows:
    """Draws rows from one shard. Thread rule: that of `Source.plan`.

    Parameters
    ----------
    shard : ShardConnection
    open_source : callable
        Makes a source of the shard's table.
    chunk : int
        Rows of a message.
    rng : Generator
        For the order in which rows are taken.
    batches : BatchMaker
        Checks that the rows of all shards are alike.

    Attributes
    ----------
    held : int
        Rows that are here, and in no batch.
    most_age : float
        In batches. See NOTE [age of rows].
    shuffled : bool
        Whether the order of a message says something of its rows, so that they are taken in
        another.
    """

    def __init__(
        self,
        shard: ShardConnection,
        open_source: Callable[[], RemoteSource],
        chunk: int,
        rng: np.random.Generator,
        batches: BatchMaker,
    ) -> None:
        self.shard, self._open_source, self._rng, self._batches = shard, open_source, rng, batches
        self.source, self.chunk = open_source(), chunk
        self.shuffled, self.held = False, 0
        self.most_age: float = AGE
        self._known = False
        self._seen: Schema | None = None
        self._parts: deque[Part] = deque()  # in the shard's order
        self._asked: deque[int] = deque()  # when each chunk that has not come was asked for
        self._openings = 0
        self._ended_at: int | None = None
        self._bell: EventFd | None = None

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
        self._known = self._known or newest is not None
        return TotalsReply(items=0) if newest is None and self._known else newest

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
        """Forget what the shard has drawn and said. Batches of a queue stay: they come once."""
        self.drop()
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
        while self.held < count:
            plan = self.draw()
            if plan is None or plan is END:
                return False
            assert isinstance(plan, Ready)
            self._keep(plan, batch)
        return True

    def draw(self) -> Plan | None:
        """Return the shard's next message, or END; ``None``: it has not come yet."""
        plan = END if self.ended else self.source.draw_now(self.chunk)
        if plan is END and not self.ended:
            # by now there may be another server, which has rows again
            self._ended_at = self.source.server
        return plan

    def arrays_of(self, plan: Ready) -> list[Array]:
        """Return the arrays of a message, with ids of the cluster. Raises SchemaError."""
        schema = self.source.schema
        assert schema is not None
        return self._batches.arrays_of(plan.batch, schema, self.shard.number, self.shard.name)

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
        server = int(plan.batch["index"].reshape(-1)[0]) >> SERVER_BITS
        part = Part([], None, 0, 0, asked, server)
        if self._is_old(part, batch):
            return
        arrays = self.arrays_of(plan)
        rows = len(arrays[0])
        order = self._rng.permutation(rows) if self.shuffled else None
        self._parts.append(part._replace(arrays=arrays, order=order, rows=rows))
        self.held += rows

    def take(self, count: int) -> list[Part]:
        """Take the next ``count`` rows, which are there."""
        parts = []
        self.held -= count
        while count:
            part = self._parts.popleft()
            if part.rows > count:
                rest = part._replace(start=part.start + count, rows=part.rows - count)
                self._parts.appendleft(rest)
                part = part._replace(rows=count)
            parts.append(part)
            count -= part.rows
        return parts

    def drop(self) -> None:
        """Drop all rows: they are drawn anew."""
        self._parts.clear()
        self.held = 0

    def close(self, timeout_s: float) -> None:
        """Close the source. Raises Timeout if the shard does not answer."""
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

    def _is_old(self, part: Part, batch: int) -> bool:
        """Whether rows were asked for long ago, or were lost with their server."""
        return batch - part.asked > self.most_age or part.server != self.shard.connection.servers

    def _forget_old(self, batch: int) -> None:
        while self._parts and self._is_old(self._parts[0], batch):
            self.held -= self._parts.popleft().rows
