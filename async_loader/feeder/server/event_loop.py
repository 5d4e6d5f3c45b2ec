"""The server's loop: waits for sockets, signals and deadlines, and calls the handlers."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from async_loader.errors import Closed
from async_loader.feeder.curve_keys import CurveAuthenticator
from async_loader.feeder.server.acceptor import Bind
from async_loader.feeder.server.background_jobs import BackgroundJobs, LoopCalls
from async_loader.feeder.server.call_handler import CallHandler
from async_loader.feeder.server.control_handler import ControlHandler
from async_loader.feeder.server.counters import Counters
from async_loader.feeder.server.deferred import DeferredMessages, KernelWarmup
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.insert_handler import InsertHandler
from async_loader.feeder.server.periodic_saves import Folders, PeriodicSaves
from async_loader.feeder.server.pull_handler import PullHandler, SharedMemoryAcceptor
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.sockets import ServerSockets
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.server.status import status_of
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import VERSION, End, Message, Plane, Type, Welcome
from async_loader.feeder.zmtp import Null
from async_loader.lifecycle import Deadline, EventFd
from async_loader.replay.buffer import ReplayBuffer
from async_loader.shm.hugepages import keep_freed

_DEFAULTS = ServiceSettings()
_log = logging.getLogger("async_loader.feeder")
# Messages of each plane in one round, and their bytes: a heartbeat waits no longer than that.
_BUDGET = {Plane.CONTROL: (256, 64 << 20), Plane.INSERT: (64, 8 << 20), Plane.PULL: (256, 8 << 20)}
_LINKS, _MORE_LINKS = 3, 512  # connections of a session; connections without one


class Server:
    """Owns tables, and serves them until `stop`.

    Parameters
    ----------
    tables : mapping of str to ReplayBuffer
        The server's from here on; it closes them.
    endpoints : mapping of Plane to str
        Where each socket is bound.
    settings : ServiceSettings
    bind : callable, optional
        See `ServerSockets`.
    memory : str, optional
        Path of a unix socket where learners of this host and user offer memory for their batches.
    checkpoints : Folders, optional
        Where clients may save tables to, and load them from.
    saves : PeriodicSaves, optional
        Of the tables; closed by the server.
    authenticator : CurveAuthenticator, optional
        Decides which keys may connect; by default there are no keys.
    clock : callable
        Monotonic seconds.
    ends_process : bool
        The process ends with this server, by `end_process`: kernels that are still loading are not
        waited for.

    Notes
    -----
    Thread rule: `run` belongs to one thread; `stop` may be called from any, and by signal handlers.
    The sockets are bound when the constructor returns; the kernels may still be loading, see
    `KernelWarmup`.
    """

    def __init__(
        self,
        tables: Mapping[str, ReplayBuffer],
        endpoints: Mapping[Plane, str],
        settings: ServiceSettings = _DEFAULTS,
        *,
        bind: Bind | None = None,
        memory: str | None = None,
        checkpoints: Folders | None = None,
        saves: PeriodicSaves | None = None,
        authenticator: CurveAuthenticator | None = None,
        clock: Callable[[], float] = time.monotonic,
        ends_process: bool = False,
    ) -> None:
        self._clock, self._settings = clock, settings
        self._ends_process = ends_process
        self.incarnation = secrets.token_bytes(16)
        self._server_state = server_state = ServerState.of(tables, settings, clock)
        limits, sessions = server_state.limits, settings.limits.sessions
        self.counters = Counters(clock)
        self._memory_acceptor: SharedMemoryAcceptor | None = None
        mechanism = Null if authenticator is None else authenticator.mechanism
        self._sockets = ServerSockets(
            endpoints, limits, bind, mechanism, _LINKS * sessions + _MORE_LINKS, clock
        )
        self._sockets.needed = server_state.sessions.routes
        try:
            self._memory_acceptor = (
                None
                if memory is None
                else SharedMemoryAcceptor(memory, server_state.sessions, server_state.weights)
            )
        except BaseException:
            self._sockets.close()
            raise
        server_state.authenticator, server_state.memory = authenticator, memory
        for table in server_state.tables.values():
            table.insert_queue.on_forget = server_state.release
        self._dispatcher = Dispatcher(self._sockets, server_state.sessions, limits, self.counters)
        self._jobs = BackgroundJobs(self._ring)
        self._calls = CallHandler(
            server_state, self._dispatcher, self._jobs, checkpoints or Folders(None)
        )
        self._saves = PeriodicSaves() if saves is None else saves
        self._loop_calls = LoopCalls(self._ring)
        self._saves.begin(server_state.tables, self._jobs, self._loop_calls)
        self._control_handler = ControlHandler(
            server_state, self._calls, self._welcome, self.status, settings.heartbeat_s
        )
        self._dispatcher.on_hello = self._hello
        self._insert_handler, self._pull_handler = (
            InsertHandler(server_state, self._dispatcher, clock),
            PullHandler(server_state, self._dispatcher, self._calls),
        )
        self._resting = DeferredMessages(server_state, self._dispatcher)
        self._bell = EventFd()
        self._sockets.watch(self._bell.fileno())
        if self._memory_acceptor is not None:
            self._sockets.watch(self._memory_acceptor.listener.fileno())
        self._stops = 0
        self._more = False  # the next round need not wait
        self._ending: Deadline | None = None
        self._closed = False
        self.unsaved = ""
        """Which tables were not saved at the end, and why."""
        self._kernel_warmup: KernelWarmup | None = None
        try:
            self._kernel_warmup = KernelWarmup(self._ring)
        except BaseException:  # Ctrl-C while it compiled
            self.close()
            raise

    @property
    def endpoints(self) -> dict[Plane, str]:
        """Where the sockets are bound."""
        return self._sockets.endpoints

    def stop(self) -> None:
        """End as SIGTERM does: drain, and return from `run`. A second call ends at once."""
        self._stops += 1
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self._bell.ring()

    def run(self, ready: Callable[[], None] | None = None) -> int:
        """Serve until `stop`, a DRAIN, SIGTERM or SIGINT; then `close`. Return the exit code, which
        is 1 if a table could not be saved at the end.

        ``ready`` is called when signals stop the server in order: before, SIGTERM ends the process
        at once.
        """
        if self._closed:
            raise Closed("this server has run: make another one")
        try:
            with self._signals():
                if ready is not None:
                    ready()
                while not self._over():
                    self._wait()
                    self._round()
        finally:
            self.close()
        return 1 if self.unsaved else 0

    # -- the loop ----------------------------------------------------------------------------------

    def _wait(self) -> None:
        for what in self._sockets.wait(self._left_s()):
            if what == self._bell.fileno():
                self._bell.clear()
            elif self._memory_acceptor is not None:
                self._memory_acceptor.listener.handle()

    def _left_s(self) -> float | None:
        """Return the seconds until something is due, whether messages come or not."""
        if self._more:
            return 0.0
        now = self._clock()
        draining = self._ending is not None and not self._saves.ending
        ending = self._ending.left() if self._ending is not None and draining else None
        moments = [
            self._server_state.sessions.left_s(),
            self._control_handler.left_s(),
            self._insert_handler.left_s(),
            ending,
            self._saves.left_s(),
        ]
        moments += [
            table.scheduler.left_s(now, table.rests)
            for table in self._server_state.tables.values()
            if table.scheduler.has_credit
        ]
        return min((one for one in moments if one is not None), default=None)

    def _round(self) -> None:
        if not self._resting.begun and self._kernel_warmup is not None and self._kernel_warmup.over:
            self._resting.begun = True
            self._sockets.open()
            self._resting.let_go()
        heard_all = self._dispatcher.receive(Plane.CONTROL, *_BUDGET[Plane.CONTROL], self._answer)
        self._more = False
        self._jobs.finish()
        self._saves.step()
        self._loop_calls.make()
        if self._resting.begun:
            self._serve_tables()
        for session, answer in self._control_handler.late_answers():
            self._dispatcher.answer(session, Plane.CONTROL, answer)
        if heard_all:  # after a pause of this process, all waiting messages come first
            self._end_left()
            self._end_all(self._server_state.sessions.silent())

    def _serve_tables(self) -> None:
        self._dispatcher.receive(Plane.INSERT, *_BUDGET[Plane.INSERT], self._insert_handler.handle)
        self._resting.let_go()
        self._dispatcher.receive(Plane.PULL, *_BUDGET[Plane.PULL], self._pulled)
        for table in self._server_state.tables.values():
            if table.table.closed:
                self._end_table(table)
            elif not table.rests and (table.scheduler.has_credit or table.insert_queue.blocked):
                self._more |= self._pull_handler.flow(table)
            if table.rates.due:
                table.rates.note(*table.table.counts)
        self._saves.note()
        self._insert_handler.tell()
        self._pull_handler.complain()

    def _pulled(self, session: Session, message: Message) -> None:
        if not (
            self._jobs.busy and self._resting.keeps(Plane.PULL, session, message, self._pulled)
        ):
            self._pull_handler.handle(session, message)

    def _answer(self, session: Session, message: Message) -> None:
        waits = self._jobs.busy or not self._resting.begun
        if waits and self._resting.keeps(Plane.CONTROL, session, message, self._answer):
            return
        if message.type is not Type.PING:
            reply = self._control_handler.answer(session, message)
            if reply is not None:
                self._dispatcher.answer(session, Plane.CONTROL, reply)

    def _hello(self, message: Message, user: str | None) -> tuple[Session, Message]:
        self._end_left()
        self._end_all(self._server_state.sessions.dead())
        return self._control_handler.hello(message, user)

    def _end_left(self) -> None:
        """End the sessions whose clients have left."""
        if self._sockets.parted:
            left, self._sockets.parted = self._server_state.sessions.left()
            self._end_all(left)

    def _end_all(self, sessions: list[Session]) -> None:
        for session in sessions:
            self.counters.ended[session.end] += 1
            self._control_handler.leave(session)

    def _end_table(self, table: TableEntry) -> None:
        """The table was closed by its owner: fail all pending requests for it."""
        if not table.ended:
            table.ended = True
            reason = f"table {table.name!r} was closed"
            self._insert_handler.end(table, reason)
            self._pull_handler.end(table, reason)
            for session, answer in self._control_handler.end_table(table, reason):
                self._dispatcher.answer(session, Plane.CONTROL, answer)

    # -- the end -----------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Return whether the server is done. Begin to drain after `stop` or a DRAIN."""
        if self._ending is None:
            if not self._stops and not self._control_handler.drain_asked:
                return False
            self._server_state.begin_to_drain()
            self._ending = Deadline(self._settings.drain_s, self._clock)
            self._more = True  # rows that are short of a batch go out now
            _log.info(
                "draining, for at most %g s: a second Ctrl-C (or SIGTERM) ends it at once",
                self._settings.drain_s,
            )
            return False
        if self._stops > 1:
            return True
        drained = (
            not self._more
            and not self._jobs.busy
            and not any(
                table.insert_queue.blocked or not table.scheduler.finished
                for table in self._server_state.tables.values()
            )
        )
        return (drained or self._ending.expired) and self._saves.ended()

    def close(self) -> None:
        """Send the last messages and free everything. `run` calls it; may be called again."""
        if self._closed:
            return
        self._closed = True
        if self._kernel_warmup is not None and not self._ends_process:
            self._kernel_warmup.close(self._settings.drain_s)
        self.unsaved = self._saves.end_job(self._jobs, self._settings.drain_s)
        self._loop_calls.close()
        try:
            self._send_ends("the server was shut down")
        finally:
            self._sockets.close()
            if self._memory_acceptor is not None:
                self._memory_acceptor.listener.close()
            self._bell.close()
            for session in self._server_state.sessions:
                for reader in session.readers.values():
                    reader.let_go()
                for writer in session.writers.values():
                    if writer.slots is not None:
                        writer.slots.close()
            for table in self._server_state.tables.values():
                table.buffer.close()
            self._saves.close()

    def _send_ends(self, reason: str) -> None:
        self._insert_handler.tell(at_once=True)
        for table in self._server_state.tables.values():
            if not table.ended:
                self._pull_handler.end(table, reason)
        for session, answer in [
            *self._control_handler.late_answers(),
            *self._control_handler.last_answers(reason, self.unsaved),
        ]:
            self._dispatcher.answer(session, Plane.CONTROL, answer)
        for session in self._server_state.sessions:
            self._dispatcher.tell(session, Plane.CONTROL, 0, 0, End(reason=reason, count=0))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT stop the server, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        keep_freed()
        before = {
            number: signal.signal(number, lambda *_: self.stop())
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- what it is --------------------------------------------------------------------------------

    def _welcome(self) -> Welcome:
        endpoints = self._sockets.endpoints
        state, settings = self._server_state, self._settings
        return Welcome(
            incarnation=self.incarnation,
            heartbeat_s=settings.heartbeat_s,
            silence_s=settings.silence_s,
            insert_endpoint=endpoints[Plane.INSERT],
            pull_endpoint=endpoints[Plane.PULL],
            memory_endpoint=state.memory,
            limits=state.limits,
            tables=tuple(state.tables),
        )

    def ask_status(self, timeout_s: float) -> dict[str, Any]:
        """Return the status, made by the loop. Other threads only: see `LoopCalls.ask`."""
        return self._loop_calls.ask(self.status, timeout_s)

    def status(self) -> dict[str, Any]:
        """Return the answer to STATUS."""
        who: dict[str, Any] = {
            "incarnation": self.incarnation.hex(),
            "pid": os.getpid(),
            "address": self._sockets.endpoints[Plane.CONTROL],
            "connections": self._sockets.connections(),
        }
        return {
            **who,
            "version": VERSION,
            "checkpoints": self._saves.status(),
            **status_of(self._server_state, self.counters, self._control_handler.waiting()),
        }
