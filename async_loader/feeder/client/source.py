"""A table of a feeder as the loader sees it. Draws nothing itself, and starts no thread."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from async_loader.errors import AsyncLoaderError, CannotSend, Closed, ConfigError
from async_loader.feeder.client.batch_structure import BatchStructure, local_ids, remote_ids
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.reader_channel import AHEAD_LEAST, Lease, ReaderChannel, ReaderPhase, ReceivedBatch, Transport
from async_loader.feeder.client.sockets import Plane
from async_loader.feeder.wire import MOST_ROWS, NAME_CHARACTERS, OpenReader, Priorities, View
from async_loader.feeder.wire import Applied as WireApplied
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline, EventFd, Patience
from async_loader.replay.arguments import floats_of, positive
from async_loader.replay.samplers import priority_rules
from async_loader.replay.views import Transitions
from async_loader.source import END, Applied, Plan, Ready

_GOODBYE_S = 1.0
"""For the feeder to say that it has what goes back: a loader's close waits no longer."""
IN_A_HURRY_S = 0.01
"""Who asks for more batches twice in that time has its connection take its turn at once; see NOTE [turns] in connection.py."""


class ServerReplaced(AsyncLoaderError):
    """The rows were those of a server that is no more."""


class RemoteSource:
    """Batches that a feeder draws, some of them ahead. Made by `TableClient.source`; a reader is opened with the first plan.

    When the connection is lost, the reader is opened again with the next session: batches of a replay table that were
    on their way are drawn anew, those of a queue are delivered again.

    Of a queue, each batch is leased until the consumer has used it; see `Leasing`. What is leased when the source is closed
    goes back, but for the batches that were handed out.

    Parameters
    ----------
    connection : Connection
    wanted : callable
        Makes the OPEN_READER of a batch size and a prefetch.
    prefetch : int | None
        Batches that the feeder may send ahead; see `TableClient.source`.
    transport : "auto" | "shm" | "tcp"
    timeout_s : float
        For `update_priorities` and `close`.
    owner : object
        Lives as long as this does.
    """

    def __init__(
        self, connection: Connection, wanted: Callable[[int, int], OpenReader], prefetch: int | None, transport: Transport,
        timeout_s: float, owner: object,
    ) -> None:  # fmt: skip
        self._connection, self._wanted, self._timeout_s, self._owner = connection, wanted, timeout_s, owner
        self._prefetch, self._transport, self._planned = prefetch, transport, 0
        self._line: ReaderChannel | None = None
        self._lock = threading.Lock()
        self._planned_leases: dict[Lease, None] = {}
        self._handed_out: dict[Lease, None] = {}
        self._over = False
        self._asked_at = -math.inf
        self._shown: BatchStructure | None = None
        self._closed = False
        self._on_open: Callable[[ReaderChannel], None] = lambda line: None
        self._update: Callable[..., Applied] | None = None  # that of the table

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """A loader will plan so many batches ahead, so as many are worth being on their way; more if asked for."""
        if self._line is None:
            self._planned = min(batches, 64)
            self._prefetch = None if self._prefetch is None else max(self._prefetch, self._planned)

    @property
    def transport(self) -> Literal["shm", "tcp"] | None:
        """How batches come, ``None`` before that is known."""
        return None if self._line is None else self._line.transport

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """The next batch, as it was drawn: contiguous arrays, that nobody changes any more.

        Raises
        ------
        Timeout
            None could be drawn for as long as ``timeout_s`` said, or patience is over.
        Closed, Broken, ...
            Whatever ended the reader.
        """
        line = self._reader_channel(batch_size)
        found = self._attempt(line)
        if found is None:
            bell = EventFd()
            try:
                with line.lock:
                    line.on_change(bell)
                while (found := self._attempt(line)) is None:
                    patience.wait(bell, f"batches of table {line.wanted.table!r} ({self._connection.state()})")
                    bell.clear()  # before looking again: what comes from here on rings it again
            finally:
                with line.lock:
                    line.on_change(None)
                bell.close()
        return found

    def _attempt(self, line: ReaderChannel) -> Plan | None:
        """The next batch, or the end, or what went wrong; ``None``: not yet."""
        with line.lock:
            first = line.inbox[0].lease if line.inbox else None
            if first is not None:  # before it is taken: after Ctrl-C in between it still goes back
                self._planned_leases[first] = None
            came = line.next()
            over = came is None and line.ended
            if came is None and not over:
                if self._closed:
                    raise Closed("this source is closed")
                if line.complaints:
                    raise line.complaints.popleft()
                if line.failure is not None:
                    raise line.failure()
                line.ask()
        if line.due or line.owes:
            now = time.monotonic()
            if came is not None and line.due and now - self._asked_at < IN_A_HURRY_S:
                self._connection.yield_to_io()
            else:
                self._connection.wake()
            self._asked_at = now
        if over:
            self._over = True
            if line.owes:
                self._connection.wake()
            return END
        return None if came is None else self._ready(line, came)

    # -- leases, see `Leasing` -------------------------------------------------------------------------------------------

    def hand_out(self, lease: object) -> bool:
        """Whether the batch is still this learner's. It counts as handed out from here on."""
        assert isinstance(lease, Lease)
        if lease in self._handed_out:  # a call of `next` that asked before was interrupted by a signal
            self._planned_leases.pop(lease, None)
            return True
        if not lease.line.holds(lease):
            self._planned_leases.pop(lease, None)
            return False
        self._handed_out[lease] = None  # first: in both it counts as handed out
        if lease not in self._planned_leases:  # it was given back
            del self._handed_out[lease]
            return False
        del self._planned_leases[lease]
        return True

    def settle(self, lease: object) -> None:
        """The batch was used, which the feeder is told with the next PULL; at once, if nothing is planned meanwhile."""
        assert isinstance(lease, Lease)
        if lease not in self._handed_out:
            return
        del self._handed_out[lease]  # from here on it is used, whatever is said of it
        line = lease.line
        line.settle(lease)
        if line.bell is not None or self._over:
            self._connection.wake()

    def release(self, timeout_s: float) -> None:
        """Give back what was not settled, at once; the source may be planned from again, with any batch size.

        Of a table that leases no batches, it goes on where it is.
        """
        line = self._line
        if line is None or not line.leased or self._closed:
            return
        patience_s = min(timeout_s, _GOODBYE_S) if self._connection.is_open else 0.0  # without a session it is the feeder's
        try:
            self._connection.check()  # before the lock: in a fork nothing would ever release it
            with SignalsDeferred():
                self._let_go_of(line, used=False)
                self._line, self._over = None, False
            self._until_closed(line, patience_s)
        except AsyncLoaderError:
            self._line, self._over = None, False

    def _let_go_of(self, line: ReaderChannel, used: bool) -> None:
        """Close a reader. What was planned goes back; what was handed out too, if not ``used``."""
        with line.lock, SignalsDeferred():
            if used:
                for lease in self._handed_out.keys() - self._planned_leases.keys():
                    del self._handed_out[lease]
            line.close(*_taken(self._planned_leases, self._handed_out))
            if line.bell is not None:
                line.bell.ring()

    def _until_closed(self, line: ReaderChannel, timeout_s: float) -> None:
        """Wait for the answer to CLOSE_READER."""
        self._connection.check()
        self._connection.wake()
        over = (ReaderPhase.CLOSED, ReaderPhase.FAILED)
        line.news.until(lambda: line.phase in over, Deadline(timeout_s), lambda: self._connection.no_answer("CLOSE_READER"))
        self._connection.forget(line)

    # -- the end ---------------------------------------------------------------------------------------------------------

    def reader(self) -> None:
        """No rows are planned."""
        return

    def update_priorities(self, index: npt.NDArray[np.int64], priority: npt.NDArray[np.float64]) -> Applied:
        """New priorities for rows of earlier batches; waits for what became of them.

        Raises
        ------
        ConfigError, Unsupported, Timeout, Closed, Broken
        """
        if self._closed:
            raise Closed("this source is closed")
        if self._line is None:
            raise ConfigError("update_priorities before the first batch: there is nothing to give new priorities to")
        return update(self._connection, self._line, index, priority, Deadline(self._timeout_s))

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """New values of some fields, by id: see `TableClient.update`."""
        if self._closed:
            raise Closed("this source is closed")
        assert self._update is not None
        return self._update(index, **fields)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        wanted = self._wanted(1, 1) if self._line is None else self._line.wanted
        how = "" if self.transport is None else f" transport={self.transport!r}"
        return (
            f"<RemoteSource of table {wanted.table!r} at {self._connection.address}{how} {'closed' if self._closed else 'open'}>"
        )

    def __reduce__(self) -> Any:
        raise CannotSend("a source stays in its process: send the client's address, and say connect(address).table(name) there")

    def waiting_for(self) -> str | None:
        """``None``: what this waits for comes from other processes."""
        return None

    def close(self, timeout_s: float | None = None) -> None:
        """Give back what was not handed out. Twice does no harm. Raises Timeout if the feeder does not answer."""
        self._closed = True
        line = self._line
        if line is None:
            return
        if line.phase is ReaderPhase.CLOSED or line.failure is not None:
            line.inbox.clear()
            return
        self._connection.check_fork()
        self._let_go_of(line, used=True)
        self._until_closed(line, self._timeout_s if timeout_s is None else timeout_s)

    def _reader_channel(self, batch_size: int) -> ReaderChannel:
        self._connection.check()
        line = self._line
        if line is not None and line.wanted.batch_size == batch_size and not self._closed:
            return line
        with self._lock, SignalsDeferred():  # a line that no source has is never closed
            if self._closed:
                raise Closed("this source is closed")
            if self._line is None:
                batch_size = batch_size_of(batch_size)
                ahead = self._prefetch if self._prefetch is not None else max(AHEAD_LEAST, self._planned)
                wanted = self._wanted(batch_size, max(1, ahead))
                line = self._connection.add(
                    lambda number: ReaderChannel(number, wanted, self._prefetch, self._transport, self._planned)
                )
                leases = (self._planned_leases, self._handed_out)
                weakref.finalize(self, _let_go, self._connection, line, leases).atexit = False
                self._line = line
                self._on_open(line)
            line = self._line
        if line.wanted.batch_size != batch_size:
            raise ConfigError(f"batch_size={batch_size}, and this source was opened for {line.wanted.batch_size}: make another")
        return line

    def _ready(self, line: ReaderChannel, came: ReceivedBatch) -> Ready:
        assert line.schema is not None
        if self._shown is None or line.schema is not self._shown.schema:
            self._shown = BatchStructure(line.schema)
        return Ready(self._shown.batch(came.body.arrays(), came.server), lent=True, lease=came.lease)


def _let_go(connection: Connection, line: ReaderChannel, leases: tuple[dict[Lease, None], dict[Lease, None]]) -> None:
    """A source was dropped. May run anywhere, so it takes no lock: the IO thread closes it in its next round."""
    line.dropped = _taken(*leases)
    connection.wake()


def _taken(planned: dict[Lease, None], handed_out: dict[Lease, None]) -> tuple[list[Lease], list[Lease]]:
    """Those that user code may have seen, and those that it has not. None of them is taken any more."""
    seen = list(handed_out)
    unseen = [one for one in list(planned) if one not in handed_out]
    planned.clear()
    handed_out.clear()
    return seen, unseen


def batch_size_of(value: Any) -> int:
    """``value`` as what travels. Raises ConfigError."""
    size = positive("batch_size", value)
    if size > MOST_ROWS:
        raise ConfigError(f"batch_size={size}: a feeder draws at most {MOST_ROWS:,} items at once")
    return size


def view_of(view: Transitions | View | None) -> View | None:
    """As it travels. Raises ConfigError for what is none."""
    if view is None:
        return None
    if isinstance(view, View):
        return view
    if not isinstance(view, Transitions):
        raise ConfigError(f"view={view!r}: give a view, as in view=Transitions(n_steps=3)")
    if view.n_steps > MOST_ROWS:
        raise ConfigError(f"n_steps={view.n_steps:,}: the views of a feeder sum up {MOST_ROWS:,} steps at most")
    if len(view.reward) > NAME_CHARACTERS:
        raise ConfigError(f"the view sums up {view.reward!r}: fields of a feeder's steps have names of {NAME_CHARACTERS} at most")
    return View(n=view.n_steps, gamma=float(view.gamma), reward=view.reward)


def update(connection: Connection, line: ReaderChannel, index: Any, priority: Any, deadline: Deadline) -> Applied:
    """PRIORITIES, and what became of them. Rows of a server that is no more are stale: another one has others of these ids."""
    ids = np.ascontiguousarray(index, np.int64).reshape(-1)
    values = floats_of(priority, "priority").reshape(-1)
    if ids.shape != values.shape:
        raise ConfigError(f"{len(ids)} ids and {len(values)} priorities: one for each")
    priority_rules.check_sent(values)
    if not len(ids):
        return Applied(0, 0)

    server = connection.servers
    here = local_ids(ids, server)
    total, ids, values = len(ids), remote_ids(ids[here], server), values[here]

    def ready() -> bool:
        if connection.servers != server:
            raise ServerReplaced("these rows died with their server")
        if line.failure is not None:
            raise line.failure()
        if line.phase is ReaderPhase.CLOSED:
            raise Closed("this source was closed meanwhile")
        return line.is_open

    applied, most = 0, connection.limits.message_bytes // (ids.itemsize + values.itemsize)
    with contextlib.suppress(ServerReplaced):
        for at in range(0, len(ids), most):
            some = Priorities(ids[at : at + most].copy(), values[at : at + most])
            reply = connection.call(some, deadline, plane=Plane.PULL, number=line.number, ready=ready).body
            assert isinstance(reply, WireApplied)
            applied += reply.applied
    return Applied(applied, total - applied)
