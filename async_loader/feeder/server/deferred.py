"""Messages that wait: for the kernels, or for a table that is being loaded; in order.

# NOTE [before the kernels]
A client's first messages, HELLO and PING, need no table. So a server is bound and answers them at
once, and takes and gives weights, while a thread loads the kernels. Messages for tables wait:
control messages here, INSERTs and PULLs in their sockets. See NOTE [slow work] in
background_jobs.py for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from async_loader.errors import Malformed
from async_loader.feeder.server.dispatch import Dispatcher, Handle
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry
from async_loader.feeder.wire import (
    ErrorCode,
    Message,
    OfTable,
    OpenReader,
    OpenWriter,
    Plane,
    Type,
)
from async_loader.lifecycle import join
from async_loader.replay.kernel_build import is_kept, is_warm, warm

MOST = 1 << 12
_OF_WRITERS = (Type.CLOSE_WRITER,)
_OF_READERS = (Type.CLOSE_READER, Type.PULL, Type.RETURN, Type.TOTALS)
Kept = tuple[TableEntry | None, Plane, Session, Message, Handle]


class KernelWarmup:
    """Loads the kernels, unless this process has them. Compiles them at once if the disk has none.

    Parameters
    ----------
    ring : callable
        Called on the thread at its end.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._over = False
        if is_warm():
            return
        if not is_kept():
            warm()
            return
        self._thread = threading.Thread(
            target=self._run, name="async-loader-kernel-warmup", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            warm()
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._ring()

    @property
    def over(self) -> bool:
        """Whether tables can be used. Raises what loading the kernels raised."""
        if self._error is not None:
            raise self._error
        return self._over or self._thread is None

    def close(self, timeout_s: float) -> None:
        """Wait for the thread, which cannot be interrupted."""
        if self._thread is not None:
            join(self._thread, timeout_s)


class DeferredMessages:
    """Keeps messages of the control and the pull plane, and handles them later.

    Parameters
    ----------
    server_state : ServerState
    dispatcher : Dispatcher

    Attributes
    ----------
    begun : bool
        Whether tables can be used at all.
    """

    def __init__(self, server_state: ServerState, dispatcher: Dispatcher) -> None:
        self._server_state, self._dispatcher = server_state, dispatcher
        self._kept: list[Kept] = []
        self.begun = False

    def keeps(self, plane: Plane, session: Session, message: Message, handle: Handle) -> bool:
        """Keep a message if it cannot be handled now; return whether it cannot.

        Raises Malformed, LIMIT.
        """
        tables = self._server_state.tables.values()
        table = None
        if self.begun:
            if not any(table.rests for table in tables):
                return False
            table = self._table_of(session, message)
            if table is None or not table.rests:
                return False
        elif not isinstance(message.body, OfTable | OpenReader | OpenWriter) and (
            message.type not in (*_OF_WRITERS, *_OF_READERS, Type.DRAIN)
        ):
            return False
        if len(self._kept) >= MOST:
            what = "this server has started" if table is None else f"table {table.name!r} is loaded"
            text = f"{MOST} messages wait until {what}, which is the limit: ask later"
            raise Malformed(text, ErrorCode.LIMIT)
        self._kept.append((table, plane, session, message, handle))
        return True

    def _table_of(self, session: Session, message: Message) -> TableEntry | None:
        body, kind = message.body, message.type
        if isinstance(body, OfTable | OpenReader | OpenWriter):
            call = isinstance(body, OpenReader) and body.wait_s is not None
            return None if call else self._server_state.tables.get(body.table)
        writer = session.writers.get(message.number) if kind in _OF_WRITERS else None
        reader = session.readers.get(message.number) if kind in _OF_READERS else None
        if kind is Type.PULL and reader is not None and reader.wait_s is not None:
            return None  # a call, which may be over before
        for table in self._server_state.tables.values():
            if writer is not None and writer.insert_queue is table.insert_queue:
                return table
            if reader is not None and reader.scheduler is table.scheduler:
                return table
        return None

    def let_go(self) -> None:
        """Handle the kept messages of tables that can be used again."""
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        for one in kept:
            table, plane, session, message, handle = one
            if table is not None and table.rests:
                self._kept.append(one)
            else:
                self._dispatcher.late(plane, session, message, handle)
