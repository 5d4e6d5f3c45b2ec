"""The calls of one table of a feeder: each is a message and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from async_loader.errors import AsyncLoaderError, Closed, ConfigError
from async_loader.feeder.client.asked_by_id import AskedById, ServerReplaced
from async_loader.feeder.client.batch_structure import local_ids, remote_ids
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.goal_batches import structure_of
from async_loader.feeder.wire import (
    About,
    AboutReply,
    BatchForm,
    Body,
    ById,
    Control,
    Get,
    Got,
    Message,
    Plane,
    Prioritize,
    Update,
    View,
    schema_of,
    specs_of,
)
from async_loader.feeder.wire import Batch as WireBatch
from async_loader.lifecycle import Deadline, seconds_or_none
from async_loader.replay.arguments import per_item, per_step
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.samplers import priority_rules
from async_loader.replay.stats import TableStats
from async_loader.replay.table import by_id
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.waiters import Waiting
from async_loader.schema import Schema
from async_loader.table import Batch

_COUNTS = ("size", "inserted", "sampled", "deleted", "streams")
_REPR_S = 1.0
_IDS = 1 << 20
"""Ids of one message at most."""
_GONE = np.array([-1], np.int64)
"""An id that no row has."""
Ids = npt.NDArray[np.int64]
Columns = list[npt.NDArray[Any]]
Timeout = float | Deadline | None
R = TypeVar("R", bound=Body)


class TableCalls:
    """Sends calls of one table. Any thread.

    Parameters
    ----------
    connection : Connection
    table : str
    timeout_s : float
        For calls without a timeout of their own.

    Attributes
    ----------
    last_about : AboutReply | None
        The last answer to ABOUT with a schema.
    """

    def __init__(self, connection: Connection, table: str, timeout_s: float) -> None:
        self.connection, self.table, self.timeout_s = connection, table, timeout_s
        self.last_about: AboutReply | None = None

    def deadline(self, timeout_s: Timeout) -> Deadline:
        """Return the deadline of a call; ``None``: that of the client. Raises ConfigError."""
        if isinstance(timeout_s, Deadline):
            return timeout_s
        limit = seconds_or_none("timeout_s", timeout_s)
        return Deadline(self.timeout_s if limit is None else limit)

    def send(
        self,
        body: Control,
        timeout_s: Timeout = None,
        plane: Plane = Plane.CONTROL,
        data: bytes | npt.NDArray[Any] | None = None,
        server: int | None = None,
    ) -> Message:
        """Return the answer. ``server``: raise ServerReplaced unless it is the present one."""
        return self.connection.call(self._call(body, plane, data, server), self.deadline(timeout_s))

    def _call(
        self,
        body: Control,
        plane: Plane = Plane.CONTROL,
        data: bytes | npt.NDArray[Any] | None = None,
        server: int | None = None,
    ) -> Call:
        connection = self.connection

        def ready() -> bool:
            if server is not None and connection.servers != server:
                raise ServerReplaced("these rows are of an earlier server")
            return connection.is_open

        where = f"table {self.table!r}"
        return Call(body, plane, data=data, ready=ready, where=where)

    def ask(self, body: Control, answer: type[R], timeout_s: Timeout = None) -> R:
        """Send a call of the control plane; return its answer."""
        reply = self.send(body, timeout_s).body
        assert isinstance(reply, answer)
        return reply

    def about(self, timeout_s: Timeout = None) -> AboutReply:
        """Return the table's properties and counts."""
        return self.about_of(self.ask_about(), self.deadline(timeout_s))

    def ask_about(self) -> Call:
        """As `about`, without waiting: `about_of` has to follow, or `Connection.forget_calls`."""
        return self.connection.ask(self._call(About(table=self.table)))

    def about_of(self, call: Call, deadline: Deadline) -> AboutReply:
        """Wait for the answer to `ask_about`."""
        reply = self.connection.answer(call, deadline).body
        assert isinstance(reply, AboutReply)
        if reply.schema is not None:
            self.last_about = reply
        return reply

    def known(self, timeout_s: Timeout = None) -> AboutReply:
        """Return the properties, which do not change once there is a schema."""
        return self.last_about or self.about(timeout_s)

    def describe(self) -> str:
        """Return name, address, size and state, for a ``repr``."""
        try:
            said: AboutReply | None = self.about(Deadline(min(self.timeout_s, _REPR_S)))
            state = "open"
        except AsyncLoaderError as error:
            said, closed = self.last_about, isinstance(error, Closed)
            state = "closed" if closed else f"({type(error).__name__}: {error})"
        known = ""
        if said is not None:
            known = f" size={said.stats['size']} capacity={said.capacity} sampler={said.sampler}"
        return f"{self.table!r} of {self.connection.address}{known} {state}"

    # -- by id -------------------------------------------------------------------------------------

    def get(
        self, ids: Ids, view: View | None, schema: Schema | None, goals: Hindsight | None = None,
        timeout_s: Timeout = None,
    ) -> Batch:  # fmt: skip
        """Read rows by id, in as many messages as they take.

        ``schema``: the table's; ``goals``: the view, if its functions are called here.
        """
        server = self.connection.servers
        ids = remote_ids(ids[local_ids(ids, server)], server)
        most = self._rows_of_an_answer(schema, view) if len(ids) > 1 else 1
        parts: list[Columns] = []
        found: Schema | None = None
        eta: float | None = None
        for at in range(0, max(1, len(ids)), most):
            some = np.ascontiguousarray(ids[at : at + most]) if len(ids) else _GONE
            body = Get(table=self.table, count=len(some), view=view)
            reply = self.send(body, timeout_s, Plane.PULL, some)
            assert isinstance(reply.body, Got)
            found, eta = schema_of(reply.body.schema), reply.body.eta
            parts.append(_columns(reply, found))
        assert found is not None
        columns = parts[0]
        if len(parts) > 1:
            columns = [np.concatenate(one) for one in zip(*parts, strict=True)]
        return structure_of(found, eta is not None, goals).batch(columns, server)

    def _rows_of_an_answer(self, schema: Schema | None, view: View | None) -> int:
        """Return how many rows surely fit into an answer."""
        if schema is None:
            return _IDS
        row = sum(one.nbytes * one.stack * (2 if one.next else 1) + 64 for one in schema.fields)
        shown = self.known().view if view is None else view
        sequences = None if shown is None else shown.sequences
        if sequences is not None:
            row = (row + 64) * (sequences.burn_in + sequences.length + sequences.bootstrap)
        if shown is not None and shown.hindsight is not None:
            row = (row + 64) * (shown.hindsight.n + 1)
        return max(1, min(_IDS, self.connection.limits.message_bytes // (row + 64)))

    def ask_priorities(
        self, ids: Ids, values: npt.NDArray[np.float64], timeout_s: Timeout
    ) -> AskedById:
        """Set priorities by id, without waiting for the answer."""
        try:
            priority_rules.check_sent(values)
        except ConfigError:
            self._check_priorities(timeout_s)
            raise
        if not len(ids):
            self._check_priorities(timeout_s)
        return self.ask_by_id(
            lambda count: Prioritize(table=self.table, count=count), ids, [values]
        )

    def per_item(self, priority: object, items: int, timeout_s: Timeout) -> object:
        """Return one priority for each item, also of errors ``[items, time]`` of sequences."""
        if not per_step(priority, items):
            return priority
        eta = None if self.last_about is None else self.last_about.eta
        eta = self.about(timeout_s).eta if eta is None else eta
        return priority if eta is None else per_item(priority, items, eta)

    def _check_priorities(self, timeout_s: Timeout) -> None:
        """Raise the table's Unsupported if it has no priorities: update the one of no row."""
        data = b"".join((_GONE.tobytes(), np.zeros(1).tobytes()))
        self.send(Prioritize(table=self.table, count=1), timeout_s, Plane.PULL, data)

    def ask_update(self, ids: Ids, schema: Schema | None, fields: Mapping[str, Any]) -> AskedById:
        """Set values of some fields by id. ``schema``: the table's."""
        if schema is None:
            return AskedById(self.connection, iter(()), len(ids))
        columns = _columns_for(schema, fields, len(ids))

        def body(count: int) -> Update:
            shown = {name: column[:count] for name, column in columns.items()}
            return Update(table=self.table, count=count, specs=specs_of(shown))

        return self.ask_by_id(body, ids, list(columns.values()))

    def ask_by_id(self, body: Callable[[int], ById], ids: Ids, more: Columns) -> AskedById:
        """Send a call by id, in as many messages as it takes; ``more``: columns behind the ids.

        Ids that an earlier server gave count as stale: the present one has other rows by these ids.
        """
        server, total = self.connection.servers, len(ids)
        here = local_ids(ids, server)
        if not here.all():
            ids, more = ids[here], [one[here] for one in more]
        ids = remote_ids(ids, server)
        row = 8 + sum(one.nbytes // max(1, len(one)) for one in more)
        most = max(1, min(_IDS, self.connection.limits.message_bytes // (row + 1) - 1024))

        def calls() -> Iterator[Call]:
            for at in range(0, len(ids), most):
                some = [np.ascontiguousarray(one[at : at + most]) for one in (ids, *more)]
                data = b"".join(one.tobytes() for one in some)
                yield self._call(body(len(some[0])), Plane.PULL, data, server)

        return AskedById(self.connection, calls(), total)


def stats_of(said: AboutReply) -> TableStats:
    """Return the counts of a table as its feeder sent them."""
    names = TableStats.__dataclass_fields__
    known = {name: value for name, value in said.stats.items() if name in names}
    known |= {"capacity": said.capacity, "nbytes": said.nbytes}
    texts = said.stats.get("waiting", ())
    pairs = zip(texts, said.stats.get("waited_s", ()), strict=True)
    waiting = tuple(_waiting_of(text, waited_s) for text, waited_s in pairs)
    return TableStats(**{**dict.fromkeys(_COUNTS, 0), **known, "waiting": waiting})


def _waiting_of(text: str, waited_s: float) -> Waiting:
    """Parse how a feeder names a request that waits: ``1 call to sample 256: why``."""
    who, _, rest = text.partition(" to ")
    what, _, reason = rest.partition(": ")
    kind = "insert" if what.startswith("insert") else "sample"
    return Waiting(what=kind, who=who, reason=reason, waited_s=waited_s)


def _columns(reply: Message, schema: Schema) -> Columns:
    body = reply.body
    assert isinstance(body, Got)
    if not body.rows:
        return [np.empty((0, *one.shape), one.dtype) for one in schema.fields]
    form = BatchForm.of(schema, body.rows)
    (found,) = form.blocks(WireBatch(body.rows, [reply.data]))
    return [one.copy() for one in form.arrays(found.block)]


def _columns_for(
    schema: Schema, fields: Mapping[str, Any], rows: int
) -> dict[str, npt.NDArray[Any]]:
    """Return values as the table stores them, by dotted name. Raises SchemaError."""
    step_packer = StepPacker(schema)
    found = by_id.columns_of(step_packer, fields, rows)
    known = schema.fields
    return {known[i].name: np.ascontiguousarray(one, known[i].dtype) for i, one in found.items()}
