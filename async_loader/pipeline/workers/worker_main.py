"""A worker process: takes parts of jobs, runs them, and writes rows into slots. Decides nothing,
allocates no slot.

Single-threaded but for one watchdog, which waits for the end flag and for the death of the loader's
process, and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from async_loader import tensors
from async_loader.errors import CannotSend, Closed
from async_loader.lifecycle import readable
from async_loader.pipeline import codec
from async_loader.pipeline.batches import arena
from async_loader.pipeline.batches.arena import Arena
from async_loader.pipeline.codec import Encoded
from async_loader.pipeline.workers.failures import report
from async_loader.pipeline.workers.sample_work import MappedRing, TaskRecord, WorkerSlots
from async_loader.pipeline.workers.work import END, WorkerConfig, WorkerState
from async_loader.process_hooks import drop_signals
from async_loader.shm.fd_channel import FdChannel, Record, from_fd
from async_loader.shm.segment import Segment

_DYING_S = 2.0


def main(
    socket_fd: Any, end_fd: Any, parent_fd: Any, config: WorkerConfig | bytes, blocked: set[int]
) -> None:
    """Entry point of the process. Unless it is forked the config is pickled.

    ``blocked`` are the signals that were blocked for its start.
    """
    channel, end, parent = from_fd(socket_fd.detach()), end_fd.detach(), parent_fd.detach()
    drop_signals(blocked)
    ending = threading.Event()
    watchdog = threading.Thread(
        target=_watch, args=(parent, end, ending), daemon=True, name="async-loader-watchdog"
    )
    watchdog.start()
    _one_thread_each()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Worker(channel, end, ending).run(config)
    if end not in readable([end], 0.0):
        # Not told to end, so the loader's process is dying: its sockets close a moment before it
        # counts as dead.
        watchdog.join(_DYING_S)
    # No clean-up of what the parent created: buffers, handlers and finalizers of a forked copy are
    # not ours.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _watch(parent: int, end: int, ending: threading.Event) -> None:
    """Note the end flag, so that a batch is not finished for nothing; die with the parent."""
    if parent not in readable([parent, end], None):
        ending.set()
        readable([parent], None)
    os.kill(os.getpid(), signal.SIGKILL)


def _one_thread_each() -> None:
    """Workers are the parallelism; torch and BLAS threads on top of them fight over the cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    if (torch := tensors.loaded_torch()) is not None:
        torch.set_num_threads(1)


class Worker:
    """The loop of a worker process."""

    def __init__(self, channel: FdChannel, end: int, ending: threading.Event) -> None:
        self._channel = channel
        self._end = end
        self._ending = ending
        self._slots = WorkerSlots()
        self._state: WorkerState

    def run(self, config: WorkerConfig | bytes) -> None:
        """Until the end flag is raised or the channel closes."""
        self._channel.send(("started",))
        doing = "loading its orders"
        try:
            known = codec.decode(config) if isinstance(config, bytes) else config
            self._state = WorkerState(known, "process", self._ending)
            doing = "worker_init_fn"
            self._state.prepare()
        except BaseException as error:  # data for the pool: it is raised there
            self._channel.send(("unfit", doing), report(error).head)
            return
        self._channel.send(("ready", os.getpid()))
        while self._end not in readable([self._channel.fileno(), self._end], None):
            record = self._channel.receive()
            if record is None:
                return
            getattr(self, f"_on_{record.message[0]}")(record)

    # -- what comes ahead of tasks -----------------------------------------------------------------

    def _on_ring(self, record: Record) -> None:
        _, number, nbytes, slot_bytes = record.message
        segment = Segment.attach(record.fds[0], nbytes)
        self._slots.add(number, MappedRing(segment, slot_bytes, pickle.loads(record.payload)))

    def _on_iteration(self, record: Record) -> None:
        _, number, seed, first, live = record.message
        state: Callable[[], Any]
        try:
            found = codec.decode(record.payload, fds=record.fds)
        except BaseException as error:  # raised by the tasks that need it
            state = functools.partial(_refuse, error)
        else:
            state = functools.partial(_found, found)
        self._state.tell(number, seed, first, live, state)

    # -- tasks -------------------------------------------------------------------------------------

    def _on_task(self, record: Record) -> None:
        task = TaskRecord(*record.message[1])
        began = time.perf_counter()
        try:
            kind, payload = self._do(task, codec.decode(record.payload, fds=record.fds))
        except BaseException as error:  # data for the consumer: it is raised there, never here
            if isinstance(error, Closed) and self._ending.is_set():
                return  # cut short, see `while_open`: there is nothing to answer
            kind, payload = "error", report(error)
        try:
            self._answer(task, began, kind, payload)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # no memory for the result
            self._answer(task, began, "error", report(error))

    def _do(self, task: TaskRecord, what: object) -> tuple[str, Encoded | None]:
        slots = self._slots
        slots.begin(task)
        if task.kind in ("jobs", "rows"):
            answer: tuple[str, Encoded | None] = self._state.do(
                task.iteration, task.seq, (task, what, slots), stream=False
            )
            return answer
        # what the work makes with `arena.empty` lies in the slot from the beginning
        with arena.within(slots.arena):
            batch = self._state.do(task.iteration, task.seq, what, stream=task.kind == "stream")
        return ("end", None) if batch is END else ("tree", codec.encode(batch, out_of_band=True))

    def _answer(self, task: TaskRecord, began: float, kind: str, payload: Encoded | None) -> None:
        """Send the result; large buffers go into the task's slot when it has one and they fit, else
        into a memfd.
        """
        where: Any = None
        data: bytes | Segment = b""
        if payload is not None:
            if payload.fds:
                raise CannotSend(
                    "a job returned an object on shared memory of its own: return its arrays "
                    "instead"
                )
            room, data = self._slots.arena, payload.head
            placed = room.place(payload.buffers) if room is not None and payload.buffers else None
            if placed is not None:
                where = ("slot", placed)
            else:
                head, table = len(payload.head), None
                if payload.buffers:
                    sizes = [arena.aligned(one.nbytes) for one in payload.buffers]
                    data = Segment.create(arena.aligned(head) + sum(sizes), "the result of a job")
                    data.view()[:head] = payload.head
                    table = Arena(data.bytes(), head).place(payload.buffers)
                where = ("beside", head, table or [], 0 if room is None else room.wanted)
        self._channel.send((kind, task.number, time.perf_counter() - began, where), data)


def _refuse(error: BaseException) -> Any:
    raise error


def _found(state: object) -> Any:
    return state
