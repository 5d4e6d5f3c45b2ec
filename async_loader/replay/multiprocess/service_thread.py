"""The threads that serve writers of other processes, and their hooks of fork and exit.

Import late: the module registers hooks of fork and exit.
"""

from __future__ import annotations

import atexit
import functools
import logging
import traceback
import weakref

from async_loader.errors import ConfigError, Unsupported
from async_loader.held_locks import HeldLock
from async_loader.process_hooks import ForkStep, at_fork
from async_loader.replay.multiprocess.writer_handle import WriterHandle
from async_loader.replay.multiprocess.writer_service import WriterService
from async_loader.replay.table.table_state import TableState

_EXIT_TIMEOUT_S = 2.0
_FORK_TIMEOUT_S = 30.0
log = logging.getLogger("async_loader")


def handle_of(table_state: TableState) -> WriterHandle:
    """Make a handle for one more writer of a table. See `ReplayBuffer.writer_handle`."""
    if not table_state.ready:
        raise ConfigError(
            "a writer in another process has to know what a step is: give the buffer a schema, or "
            "add a step first"
        )
    if table_state.table.free is not None:
        raise Unsupported(
            f"{table_state.remover!r} takes rows out of order, and writers in other processes fill "
            "them in order: use the Fifo remover"
        )
    if table_state.table.ring is not None:
        raise Unsupported(
            "this table has fields with a codec, and writers in other processes write rows alone: "
            "leave the codec out, or send the steps through a feeder"
        )
    with table_state.lock:
        table_state.own()
        table_state.stop_staging()
        service = table_state.writers
        if service is None:
            service = table_state.writers = WriterService(table_state)
            _services.add(service)
            service.start(functools.partial(_run, weakref.ref(table_state), service))
        assert isinstance(service, WriterService)
        return service.handle(table_state)


_services: weakref.WeakSet[WriterService] = weakref.WeakSet()


_paused: list[HeldLock] = []


def _before_fork() -> None:
    """Hold the locks of all services: the thread of one may compile or import, and the child would
    inherit those locks in the locked state.
    """
    for service in list(_services):
        if service.lock.acquire(timeout=_FORK_TIMEOUT_S):
            _paused.append(service.lock)


def _after_fork() -> None:
    while _paused:
        _paused.pop().release()


def _after_fork_in_child() -> None:
    _after_fork()
    for service in list(_services):
        service.forget()
    _services.clear()


def _close_all() -> None:
    for service in list(_services):
        service.close(_EXIT_TIMEOUT_S)


def _run(table_state: weakref.ref[TableState], service: WriterService) -> None:
    pause: float | None = None
    try:
        while not service.end.is_set():
            ready = service.wait(pause)
            pause = _serve(table_state, service, ready)
    except BaseException as error:  # the top of a thread: kept for later calls, and told to writers
        # A log record must not keep the table alive.
        log.error("the thread that serves writers has failed:\n%s", traceback.format_exc())
        service.failed = error.with_traceback(None)
    finally:
        service.shut_down_writer()


def _serve(ref: weakref.ref[TableState], service: WriterService, ready: set[int]) -> float | None:
    table_state = ref()
    if table_state is None or service.end.is_set():
        return 0.0
    with table_state.lock:
        return service.serve(ready, table_state)


at_fork(ForkStep.SERVICES, _before_fork, _after_fork, _after_fork_in_child)
atexit.register(_close_all)
