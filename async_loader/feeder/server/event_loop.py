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
from types import MappingProxyType
from typing import Any

from async_loader.errors import Closed
from async_loader.feeder.server.acceptor import Bind
from async_loader.feeder.server.background_jobs import BackgroundJobs
from async_loader.feeder.server.call_handler import CallHandler
from async_loader.feeder.server.control_handler import ControlHandler
from async_loader.feeder.server.dispatch import Dispatcher
from async_loader.feeder.server.insert_handler import InsertHandler
from async_loader.feeder.server.periodic_saves import Folders, PeriodicSaves
from async_loader.feeder.server.pull_handler import PullHandler
from async_loader.feeder.server.rollouts import RolloutTables
from async_loader.feeder.server.shared_memory import Listener
from async_loader.feeder.server.sockets import ServerSockets
from async_loader.feeder.server.state import ServerState
from async_loader.feeder.server.status import status_of
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import VERSION, Plane, Welcome
from async_loader.feeder.zmtp import Null
from async_loader.lifecycle import Deadline, EventFd
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.kernel_build import is_kept, is_warm, warm
from async_loader.rollouts.slots import GroupSettings
from async_loader.shm.hugepages import keep_freed

_DEFAULTS = ServiceSettings()
_log = logging.getLogger("async_loader.feeder")
# Messages of each plane in one round, and their bytes: a heartbeat waits no longer than that.
_BUDGET = {Plane.CONTROL: (256, 64 << 20), Plane.INSERT: (64, 8 << 20), Plane.PULL: (256, 8 << 20)}
_LINKS, _MORE_LINKS = 3, 512  # connections of a session; connections without one
_LOOK_S = 1.0  # between looks for sessions that are over


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
    mechanism : callable, optional
        Makes the ZMTP mechanism of a connection; by default one without keys.
    rollouts : mapping of str to GroupSettings
        Its tables of rollouts, which are saved each ``every_s``.
    clock : callable
        Monotonic seconds.

    Notes
    -----
    Thread rule: `run` belongs to one thread; `stop` may be called from any, and by signal handlers.
    The sockets are bound when the constructor returns. `run` loads the kernels, which takes a
    moment; where the disk has none, the constructor compiles them first.
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
        mechanism: Callable[[], Null] = Null,
        rollouts: Mapping[str, GroupSettings] = MappingProxyType({}),
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not is_kept():
            warm()
        self._clock, self._settings = clock, settings
        self.incarnation = secrets.token_bytes(16)
        self._server_state = server_state = ServerState.of(tables, settings, clock)
        limits, sessions = server_state.limits, server_state.sessions
        most = _LINKS * settings.limits.sessions + _MORE_LINKS
        self._sockets = ServerSockets(endpoints, limits, bind, mechanism, most, clock)
        self._sockets.needed = sessions.routes
        self._memory: Listener | None = None
        try:
            if memory is not None:
                self._memory = Listener(memory, server_state.take_memory)
                self._sockets.watch(self._memory.fileno(), accepts=True)
        except BaseException:
            self._sockets.close()
            raise
        server_state.memory = memory
        self.counters = server_state.counters
        self._dispatcher = Dispatcher(
            self._sockets, sessions, limits, self.counters, lambda: server_state.rests
        )
        self._jobs = BackgroundJobs(self._ring)
        self._saves = PeriodicSaves() if saves is None else saves
        self._saves.begin(server_state.tables, self._jobs)
        self._control_handler = ControlHandler(
            server_state, self._dispatcher, self._welcome, self.status
        )
        folders = checkpoints or Folders(None)
        CallHandler(
            server_state, self._dispatcher, self._jobs, folders, self._control_handler.waits.news
        )
        self._rollouts = RolloutTables(
            rollouts, server_state, self._dispatcher, self._jobs, folders, every_s
        )
        self._control_handler.on_leave = self._rollouts.leave
        self._control_handler.on_publish = self._rollouts.publish
        self._insert_handler = InsertHandler(server_state, self._dispatcher)
        self._pull_handler = PullHandler(
            server_state, self._dispatcher, self._control_handler.waits
        )
        self._bell = EventFd()
        self._sockets.watch(self._bell.fileno())
        self._stops = 0
        self._more = False  # the next round need not wait
        self._look_at = 0.0
        self._ending: Deadline | None = None
        self._closed = False
        self.unsaved = ""
        """Which tables were not saved at the end, and why."""

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
                if not is_warm():
                    warm()
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
            elif self._memory is not None and not self._memory.handle():
                self._sockets.rest()

    def _left_s(self) -> float | None:
        """Return the seconds until something is due, whether messages come or not."""
        if self._more:
            return 0.0
        now, state, saves = self._clock(), self._server_state, self._saves
        moments = [
            self._control_handler.waits.due, self._insert_handler.due, self._rollouts.due(),
        ]  # fmt: skip
        if len(state.sessions):
            moments.append(self._look_at)
        left = [max(0.0, one - now) for one in moments if one is not None]
        others = [table.scheduler.left_s(now) for table in state.tables.values()]
        others.append(saves.left_s())
        if self._ending is not None and not saves.ending:
            others.append(self._ending.left())
        return min([*left, *(one for one in others if one is not None)], default=None)

    def _round(self) -> None:
        control, dispatcher = self._control_handler, self._dispatcher
        heard_all = dispatcher.receive(Plane.CONTROL, *_BUDGET[Plane.CONTROL])
        self._more = False
        self._jobs.finish()
        self._saves.step()
        dispatcher.receive(Plane.INSERT, *_BUDGET[Plane.INSERT])
        dispatcher.handle_kept()
        dispatcher.receive(Plane.PULL, *_BUDGET[Plane.PULL])
        for table in self._server_state.tables.values():
            if not table.rests and (table.scheduler.has_credit or table.insert_queue.blocked):
                self._more |= self._pull_handler.flow(table)
        self._saves.note()
        self._insert_handler.tell()
        self._pull_handler.complain()
        now = self._clock()
        control.waits.send(now)
        self._rollouts.step(now)
        # After a pause of this process, all waiting messages come first.
        if heard_all and (self._sockets.parted or now >= self._look_at):
            self._sockets.parted, self._look_at = False, now + _LOOK_S
            control.end_sessions()
            for one in (*self._server_state.tables.values(), *self._server_state.sessions):
                one.rates.note(now)

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
        unsaved = self._saves.end_job(self._settings.drain_s), self._rollouts.save_all()
        self.unsaved = "; ".join(filter(None, unsaved))
        try:
            self._send_ends("the server was shut down")
        finally:
            self._sockets.close()
            if self._memory is not None:
                self._memory.close()
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
            self._pull_handler.end(table, reason)
        self._control_handler.send_last(reason, self.unsaved)

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
            rollouts=tuple(self._rollouts.tables),
        )

    def ask_status(self, timeout_s: float) -> dict[str, Any]:
        """Return the status, made by the loop. Other threads only: see `BackgroundJobs.ask`."""
        return self._jobs.ask(self.status, timeout_s)

    def status(self) -> dict[str, Any]:
        """Return the answer to STATUS."""
        return {
            "incarnation": self.incarnation.hex(),
            "pid": os.getpid(),
            "address": self._sockets.endpoints[Plane.CONTROL],
            "connections": self._sockets.connections(),
            "version": VERSION,
            "checkpoints": self._saves.status(),
            "rollouts": self._rollouts.status(),
            **status_of(self._server_state, self._control_handler.waiting()),
        }
