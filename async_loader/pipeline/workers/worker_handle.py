"""One worker process as the pool sees it: its process, its channel, what it has been told and what
it holds.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import multiprocessing.process
import os
import signal
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken, ResourceLimit
from async_loader.interrupts import signals_blocked
from async_loader.lifecycle import Deadline, EndFlag, readable
from async_loader.pipeline import codec
from async_loader.pipeline.job_queue import Chunk, IterationSpec
from async_loader.pipeline.workers import worker_main
from async_loader.pipeline.workers.work import WorkerConfig
from async_loader.pipeline.workers.worker_slots import KNOWN_RINGS, TaskRecord
from async_loader.process_hooks import ForkStep, at_fork, forking
from async_loader.shm.fd_channel import FdChannel
from async_loader.shm.slot_ring import SlotRing

_REAP_S = 5.0
_SHORT_OF = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# one chunk at work, one in the socket, so that a worker never waits for the pool's turn on the GIL
_DEPTH = 2

_undaemonic = threading.RLock()


@contextlib.contextmanager
def _may_have_children() -> Iterator[None]:
    """Start workers in a daemonic process too. multiprocessing refuses that, as a process that is
    ended by a signal does not end its children: workers see its end by themselves.
    """
    config: dict[str, Any] = getattr(multiprocessing.process.current_process(), "_config", {})
    with _undaemonic:
        daemon = config.pop("daemon", None)
        try:
            yield
        finally:
            if daemon is not None:
                config["daemon"] = daemon


def _after_fork_in_child() -> None:
    """Another thread may have held the lock."""
    global _undaemonic
    _undaemonic = threading.RLock()


at_fork(ForkStep.LOADERS, after_in_child=_after_fork_in_child)


def _signals_blocked(method: str) -> contextlib.AbstractContextManager[set[int]]:
    """Not under forkserver: the server may start here, and would hand the blocked signals on to
    processes of others.
    """
    if method == "forkserver":
        return contextlib.nullcontext(set())
    if method == "spawn":
        resource_tracker.ensure_running()  # starting one would let go of Ctrl-C
    return signals_blocked()


class _EncodedAtStart:
    """The config of a worker that is not forked. It is encoded while its process is being pickled:
    only then can what multiprocessing shares (values, locks, events, queues) be.
    """

    def __init__(self, config: WorkerConfig | None) -> None:
        self._config = config
        self.encoded = codec.Encoded(b"")

    def __reduce__(self) -> tuple[Any, ...]:
        self.encoded = codec.encode(self._config, at_birth=True)
        return type(None), ()


def unguarded(method: str) -> str:
    """The usual reason why a worker does not start, as the end of a sentence."""
    if method == "fork":
        return ""
    return (
        f': with start method "{method}" workers import the main script, so keep what it does '
        'under if __name__ == "__main__"'
    )


def _fork_server_socket() -> str | None:
    """The file by which the fork server is reached: its process removes it at its exit, but not
    when it is killed.
    """
    server: Any = forkserver._forkserver
    try:
        forkserver.ensure_running()
    except ChildProcessError:  # this process is a fork, and the server is its parent's
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_pid = server._forkserver_address = None
        forkserver.ensure_running()
    address: str | None = getattr(server, "_forkserver_address", None)
    return address


class _Inherited:
    """A descriptor that a child gets: as it is under fork, duplicated while pickling otherwise."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def detach(self) -> int:
        return self._fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (reduction.DupFd(self._fd),)


def _same(duplicate: Any) -> Any:
    return duplicate


class WorkerHandle:
    """One worker. Used by the pool's thread only, but for `kill`."""

    def __init__(
        self, context: BaseContext, config: WorkerConfig, end: EndFlag, parent_fd: int
    ) -> None:
        self.number = config.number
        self.pid = 0
        self.ready = False
        self.full = False
        self.start_deadline: Deadline | None = None
        self.death_fd = -1
        self.assigned: dict[int, Chunk] = {}
        self._context = context
        self._config: WorkerConfig | None = config
        self._end = end
        self._parent_fd = parent_fd
        self._process: Any = None
        self._rings: OrderedDict[int, SlotRing] = OrderedDict()
        self._layouts: OrderedDict[int, BatchLayout] = OrderedDict()
        self.iterations: dict[int, tuple[IterationSpec, int]] = {}
        self.channel, self._theirs = FdChannel.pair()

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    @property
    def process(self) -> Any:
        """The `multiprocessing.Process`, ``None`` before it was made."""
        return self._process

    def start(self) -> None:
        """Start the process, within a `SignalsDeferred`.

        Under spawn and forkserver its config follows as the first record.
        """
        method = self._context.get_start_method()
        config: Any = self._config if method == "fork" else _EncodedAtStart(self._config)
        inherited: list[int] = []
        try:
            # Duplicates, because the at-fork hook closes the loader's own descriptors in every
            # child.
            for fd in (self._theirs.fileno(), self._end.fileno(), self._parent_fd):
                inherited.append(os.dup(fd))
            with _signals_blocked(method) as blocked:
                self._launch((*map(_Inherited, inherited), config, blocked))
                self._config = None  # see NOTE [what leads back to the engine] in engine.py
        finally:
            self._theirs.close()
            for fd in inherited:
                os.close(fd)
        if method != "fork":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.channel.send((), config.encoded.head, config.encoded.fds)
        self.channel.set_blocking(False)

    def _launch(self, arguments: tuple[Any, ...]) -> None:
        process_type: Any = self._context.Process  # type: ignore[attr-defined]
        if "torch" in sys.modules:
            # another thread may be at it: the child would have half of it for good
            importlib.import_module("torch")
        forking.worker = True
        try:
            arguments += (
                _fork_server_socket() if self._context.get_start_method() == "forkserver" else None,
            )
            name = f"async-loader-worker-{self.number}"
            self._process = process_type(
                target=worker_main.main, args=arguments, name=name, daemon=True
            )
            with _may_have_children():
                self._process.start()
            # SIGTERM does not end it: see NOTE [signals of a job]
            popen = self._process._popen
            popen.terminate = types.MethodType(type(popen).kill, weakref.proxy(popen))
        except (EOFError, ConnectionError) as error:  # the fork server itself has died
            raise Broken(
                f"worker {self.number} could not be "
                f"started{unguarded(self._context.get_start_method())}"
            ) from error
        except OSError as error:
            if error.errno not in _SHORT_OF:
                raise
            text = (
                f"worker {self.number} could not be started: {error}: use fewer workers, or "
                "raise the limit (ulimit -u, -n)"
            )
            raise ResourceLimit(text) from error
        finally:
            forking.worker = False
        self.pid = self._process.pid
        try:
            self.death_fd = self._open_death()
        except OSError as error:
            self._process.kill()
            self._process.join(_REAP_S)
            text = (
                f"worker {self.number} could not be watched: {error}: use fewer workers, or "
                "raise the limit (ulimit -n)"
            )
            raise ResourceLimit(text) from error

    def _open_death(self) -> int:
        """A descriptor that becomes readable when the process ends, whatever else was forked."""
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(ProcessLookupError):
                return os.pidfd_open(self.pid)
        return os.dup(self._process.sentinel)

    @property
    def alive(self) -> bool:
        return self.death_fd >= 0

    @property
    def has_room(self) -> bool:
        return self.alive and not self.full and len(self.assigned) < _DEPTH

    def send(self, chunk: Chunk) -> None:
        """Send a chunk, and before it the ring, the layout and the iteration it refers to."""
        job, buffer = chunk.job, chunk.job.buffer
        ring = layout = slot = -1
        if buffer is not None and buffer.ring is not None:
            ring, slot = self._send_ring(buffer.ring), buffer.slot
            if job.layout is not None:
                layout = self._send_layout(job.layout)
        spec, payload = chunk.spec, chunk.payload
        self._send_iteration(spec)
        task = TaskRecord(
            id(chunk),
            chunk.kind,
            job.seq,
            chunk.number,
            chunk.start,
            chunk.stop,
            job.whole,
            ring,
            slot,
            layout,
            spec.number,
        )
        self.assigned[id(chunk)] = chunk
        # as a plain tuple, which is pickled and read in a third of the time
        self.channel.send(("task", tuple(task)), payload.head, payload.fds)

    def _send_ring(self, ring: SlotRing) -> int:
        number = id(ring)
        if number not in self._rings:
            self.channel.send(
                ("ring", number, ring.segment.nbytes, ring.slot_bytes), b"", [ring.segment.fileno()]
            )
            self._rings[number] = ring
            while len(self._rings) > KNOWN_RINGS:
                self._rings.popitem(last=False)
        return number

    def _send_layout(self, layout: BatchLayout) -> int:
        number = id(layout)
        if number not in self._layouts:
            self.channel.send(("layout", number, layout))
            self._layouts[number] = layout
            while len(self._layouts) > KNOWN_RINGS:
                self._layouts.popitem(last=False)
        return number

    def _send_iteration(self, spec: IterationSpec) -> None:
        known = self.iterations.get(spec.number)
        if known is not None and known[1] >= spec.revision:
            return
        # in this order: a state that is set meanwhile is told again with the next chunk
        revision, state, live = spec.revision, spec.payload, spec.live.copy()
        facts = (spec.number, spec.seed, spec.first, live)
        self.channel.send(("iteration", *facts), state.head, state.fds)
        others = {n: other for n, other in self.iterations.items() if n in live}
        self.iterations = others | {spec.number: (spec, revision)}

    def kill(self) -> None:
        """SIGKILL, which also ends a stopped process."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive and self.pid:
                os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Wait for the (ended) process, close everything; its exit code."""
        if not self.alive:
            return None
        readable([self.death_fd], _REAP_S)
        exitcode: int | None = self._process.exitcode
        # the fork server tells a moment later; not used first, because a job's own child may delay
        # it
        if exitcode is None:
            self._process.join(_REAP_S)
            exitcode = self._process.exitcode
        self.close()
        if exitcode is not None:
            # Not its close(): a start of a process in another thread polls all that were running,
            # and a closed one raises. No other reference to it is left, so that its descriptor
            # is closed too.
            self._process.join(0)
            self._process = None
        return exitcode

    @property
    def dead(self) -> bool:
        """Whether the process has ended; the descriptor's number alone may be another's by now."""
        return self.alive and self.death_fd in readable([self.death_fd], 0.0)

    def forget(self) -> None:
        """In a forked child: multiprocessing ends what it believes to be its children when the
        child exits.
        """
        self.close()
        known: set[Any] = getattr(multiprocessing.process, "_children", set())
        known.discard(self._process)

    def close(self) -> None:
        """Close the descriptors and let go of the rings; leave the process alone."""
        self._rings.clear()
        self.iterations.clear()
        self.channel.close()
        self._theirs.close()
        fd, self.death_fd = self.death_fd, -1
        if fd >= 0:
            os.close(fd)
