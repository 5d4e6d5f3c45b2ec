"""One worker process as the pool sees it: its process, its channel, what it has been told and what
it holds.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import types
import weakref
from multiprocessing import forkserver, reduction, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken, Unsupported
from async_loader.lifecycle import Deadline, EndFlag, readable
from async_loader.pipeline import codec
from async_loader.pipeline.job_queue import Chunk, IterationSpec
from async_loader.pipeline.workers import worker_main
from async_loader.pipeline.workers.sample_work import KNOWN_RINGS, TaskRecord
from async_loader.pipeline.workers.work import WorkerConfig
from async_loader.process_hooks import forking, signals_blocked
from async_loader.shm.batch_buffer import BatchBuffer
from async_loader.shm.fd_channel import FdChannel
from async_loader.shm.slot_leases import SlotRing

_REAP_S = 5.0
# one chunk at work, one in the socket, so that a worker never waits for the pool's turn on the GIL
_DEPTH = 2


class _AtBirth:
    """The config of a worker that is not forked. It is encoded while its process is being pickled:
    only then can what multiprocessing shares (values, locks, events, queues) be.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (codec.encode(self._config, at_birth=True).head,)


def unguarded(method: str) -> str:
    """The usual reason why a worker does not start, as the end of a sentence."""
    if method == "fork":
        return ""
    return (
        f': with start method "{method}" workers import the main script, so keep what it does '
        'under if __name__ == "__main__"'
    )


_UNTOLD = ("forkserver", 255)
"""The exit code that multiprocessing makes up when the fork server has died, or has told another
thread: it tells once, and each start of a process asks for all that were running.
"""


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

    def __init__(self, number: int, context: BaseContext) -> None:
        self.number = number
        self.pid = 0
        self.ready = False
        self.open, self.full = True, False
        """Whether its channel has an end yet, and no room."""
        self.start_deadline: Deadline | None = None
        self.death_fd = -1
        self.assigned: dict[int, Chunk] = {}
        self.iterations: dict[int, tuple[IterationSpec, int]] = {}
        self.process: Any = None
        """The `multiprocessing.Process`, ``None`` before it was made."""
        self._method = context.get_start_method()
        self._context: Any = context
        self._rings: dict[tuple[int, int], tuple[SlotRing, BatchLayout | None]] = {}
        self.channel, self._theirs = FdChannel.pair()

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    def start(self, config: WorkerConfig, end: EndFlag, parent_fd: int) -> None:
        """Start the process, within a `SignalsDeferred`."""
        fork = self._method == "fork"
        if self._method == "forkserver":  # not within the block: it would inherit what is blocked
            forkserver.ensure_running()
        elif not fork:
            resource_tracker.ensure_running()  # starting one would let go of Ctrl-C
        inherited: list[int] = []
        try:
            # Duplicates, because the at-fork hook closes the loader's own descriptors in every
            # child.
            for fd in (self._theirs.fileno(), end.fileno(), parent_fd):
                inherited.append(os.dup(fd))
            with signals_blocked() as blocked:
                orders: Any = config if fork else _AtBirth(config)
                self._launch((*map(_Inherited, inherited), orders, blocked))
        finally:
            self._theirs.close()
            for fd in inherited:
                os.close(fd)
        self.channel.set_blocking(False)

    def _launch(self, arguments: tuple[Any, ...]) -> None:
        if multiprocessing.current_process().daemon:
            raise Unsupported(
                "this process was started with daemon=True, and multiprocessing lets it start "
                'none: start it with daemon=False, or give the loader worker_type="thread"'
            )
        if "torch" in sys.modules:
            # another thread may be at it: the child would have half of it for good
            importlib.import_module("torch")
        forking.worker = True
        try:
            name = f"async-loader-worker-{self.number}"
            self.process = self._context.Process(
                target=worker_main.main, args=arguments, name=name, daemon=True
            )
            self.process.start()
            # SIGTERM does not end it: see `drop_signals`
            popen = self.process._popen
            popen.terminate = types.MethodType(type(popen).kill, weakref.proxy(popen))
            self.pid = self.process.pid
            try:
                self.death_fd = os.pidfd_open(self.pid)
            except ProcessLookupError:  # it has ended, and the fork server knows that already
                self.death_fd = os.dup(self.process.sentinel)
        except (EOFError, ConnectionError) as error:  # the fork server itself has died
            raise Broken(
                f"worker {self.number} could not be started{unguarded(self._method)}"
            ) from error
        except OSError:
            if self.pid:
                self.process.kill()
                self.process.join(_REAP_S)
            raise
        finally:
            forking.worker = False

    @property
    def alive(self) -> bool:
        return self.death_fd >= 0

    @property
    def has_room(self) -> bool:
        return self.alive and not self.full and len(self.assigned) < _DEPTH

    def send(self, chunk: Chunk) -> None:
        """Send a chunk, and before it the ring and the iteration it refers to."""
        job, spec, payload = chunk.job, chunk.spec, chunk.payload
        ring = slot = -1
        if job.buffer is not None and job.buffer.ring is not None:
            ring, slot = self._send_ring(job.buffer, job.layout), job.buffer.slot
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
            spec.number,
        )
        self.assigned[id(chunk)] = chunk
        # as a plain tuple, which is pickled and read in a third of the time
        self.channel.send(("task", tuple(task)), payload.head, payload.fds)

    def _send_ring(self, buffer: BatchBuffer, layout: BatchLayout | None) -> int:
        ring = buffer.ring
        assert ring is not None
        key = id(ring), id(layout)
        number = hash(key)
        if key not in self._rings:
            message = ("ring", number, ring.segment.nbytes, ring.slot_bytes)
            self.channel.send(message, pickle.dumps(layout), [ring.segment.fileno()])
            self._rings[key] = ring, layout
            if len(self._rings) > KNOWN_RINGS:
                del self._rings[next(iter(self._rings))]
        return number

    def _send_iteration(self, spec: IterationSpec) -> None:
        known = self.iterations.get(spec.number)
        if known is not None and known[1] >= spec.revision:
            return
        # in this order: a state that is set meanwhile is told again with the next chunk
        revision, state, live = spec.revision, spec.payload, spec.live.copy()
        self.channel.send(
            ("iteration", spec.number, spec.seed, spec.first, live), state.head, state.fds
        )
        others = {n: other for n, other in self.iterations.items() if n in live}
        self.iterations = others | {spec.number: (spec, revision)}

    def kill(self) -> None:
        """SIGKILL, which also ends a stopped process."""
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int | None:
        """Wait for the (ended) process, close everything; its exit code, if that is known."""
        if not self.alive:
            return None
        readable([self.death_fd], _REAP_S)
        exitcode: int | None = self.process.exitcode
        # the fork server tells a moment later; not used first, because a job's own child may delay
        # it
        if exitcode is None:
            self.process.join(_REAP_S)
            exitcode = self.process.exitcode
        self.close()
        if exitcode is not None:
            # Not its close(): a start of a process in another thread polls all that were running,
            # and a closed one raises. No other reference to it is left, so that its descriptor
            # is closed too.
            self.process.join(0)
            self.process = None
        return None if (self._method, exitcode) == _UNTOLD else exitcode

    def forget(self) -> None:
        """In a forked child: multiprocessing ends what it believes to be its children when the
        child exits.
        """
        self.close()
        known: set[Any] = getattr(multiprocessing.process, "_children", set())
        known.discard(self.process)

    def close(self) -> None:
        """Close the descriptors and let go of the rings; leave the process alone."""
        self._rings.clear()
        self.iterations.clear()
        self.channel.close()
        self._theirs.close()
        fd, self.death_fd = self.death_fd, -1
        if fd >= 0:
            os.close(fd)
