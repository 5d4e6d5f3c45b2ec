"""A worker process: takes parts of jobs, runs them, and writes rows into slots. Decides nothing, allocates no slot.

Single-threaded but for one watchdog, which waits for the death of the loader's process and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import CannotSend
from async_loader.lifecycle import readable
from async_loader.pipeline import codec
from async_loader.pipeline.batches import arena, collate
from async_loader.pipeline.batches.arena import Arena
from async_loader.pipeline.codec import Encoded
from async_loader.pipeline.workers.seeding import seed_globals
from async_loader.pipeline.workers.work import IterationRegistry, WorkConfig
from async_loader.schema import Schema
from async_loader.shm.fd_channel import FdChannel, Record, from_fd
from async_loader.shm.segment import Segment
from async_loader.source import END, Reader, Seed

_DYING_S = 2.0

KNOWN_RINGS = 3
"""Rings and layouts that a worker remembers; the crew counts along and sends them again when they were forgotten."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker is told at birth.

    Attributes
    ----------
    number : int
        0 to num_workers - 1.
    seed : int
        Of the loader; every part gets a seed of (seed, batch, part).
    work : WorkConfig | None
        For the worker of a pool, which needs nothing else.
    """

    number: int
    seed: int
    reader: Reader | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    init_fn: Callable[[int], Any] | None = None
    work: WorkConfig | None = None


class Task(NamedTuple):
    """One part, as it is sent.

    Attributes
    ----------
    kind : str
        "jobs" or "rows"; "work" or "stream" for a pool's.
    ring, layout, shift : int
        Numbers of what was sent before, -1 for none.
    oldest : int
        Shifts below this number are over.
    """

    number: int
    kind: str
    seq: int
    part: int
    start: int
    stop: int
    whole: bool
    ring: int
    slot: int
    layout: int
    shift: int = -1
    oldest: int = -1


def main(socket_fd: Any, end_fd: Any, parent_fd: Any, orders: WorkerConfig | None, litter: str | None) -> None:
    """Entry point of the process. Without orders (spawn, forkserver) they are the first record.

    ``litter`` is a socket file that the loader's process leaves behind when it is killed: the fork server's.
    """
    channel, end, parent = from_fd(_fd(socket_fd)), _fd(end_fd), _fd(parent_fd)
    _own_signals()
    watchdog = threading.Thread(target=_die_with, args=(parent, litter), daemon=True, name="async-loader-watchdog")
    watchdog.start()
    _one_thread_each()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Worker(channel, end, orders).run()
    if end not in readable([end], 0.0):
        # Not told to end, so the loader's process is dying: its sockets close a moment before it counts as dead.
        watchdog.join(_DYING_S)
    # No clean-up of what the parent created: buffers, handlers and finalizers of a forked copy are not ours.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _own_signals() -> None:
    """Ctrl-C goes to the whole group and the loader's process decides; what a fork inherited from it is not ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _fd(value: Any) -> int:
    return value if isinstance(value, int) else value.detach()


def _die_with(parent: int, litter: str | None) -> None:
    readable([parent], None)
    if litter is not None:
        with contextlib.suppress(OSError):  # another worker was first, or there is more in the folder
            os.unlink(litter)
            os.rmdir(os.path.dirname(litter))
    os.kill(os.getpid(), signal.SIGKILL)


def _one_thread_each() -> None:
    """Workers are the parallelism; torch and BLAS threads on top of them fight over the cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    if (torch := tensors.loaded_torch()) is not None:
        torch.set_num_threads(1)


class Worker:
    """The loop and what it remembers."""

    def __init__(self, channel: FdChannel, end: int, orders: WorkerConfig | None) -> None:
        self._channel = channel
        self._end = end
        self._orders = orders
        self._rings: OrderedDict[int, tuple[Segment, int]] = OrderedDict()
        self._layouts: OrderedDict[int, BatchLayout] = OrderedDict()
        self._views: dict[tuple[int, int, int], list[Any]] = {}
        self._schema: Schema | None = None
        self._reader: Reader | None = None
        self._shifts: IterationRegistry | None = None
        self._arena: Arena | None = None

    def run(self) -> None:
        """Until the end flag is raised or the channel closes."""
        self._channel.send(("started",))
        if not (self._prepare("loading its orders", self._take_orders) and self._prepare("worker_init_fn", self._initialise)):
            return
        self._channel.send(("ready", os.getpid()))
        while self._end not in readable([self._channel.fileno(), self._end], None):
            record = self._channel.receive()
            if record is None:
                return
            getattr(self, f"_on_{record.message[0]}")(record)

    def _prepare(self, what: str, step: Callable[[], None]) -> bool:
        try:
            step()
        except BaseException as error:  # data for the crew: it is raised there
            self._channel.send(("unfit", what), codec.encode(report(error)).head)
            return False
        return True

    def _take_orders(self) -> None:
        if self._orders is None:
            record = self._channel.receive()
            if record is None:
                raise BrokenPipeError
            self._orders = codec.decode(record.payload, fds=record.fds)
        self._reader = self._orders.reader
        if self._orders.work is not None:
            self._shifts = IterationRegistry(self._orders.work, self._orders.number, "process")

    def _initialise(self) -> None:
        assert self._orders is not None
        if self._orders.init_fn is not None:
            seed_globals((self._orders.seed, self._orders.number))
            self._orders.init_fn(self._orders.number)

    # -- what is told ahead of tasks ---------------------------------------------------------------------------------

    def _on_ring(self, record: Record) -> None:
        _, number, nbytes, slot_bytes = record.message
        self._rings[number] = (Segment.attach(record.fds[0], nbytes), slot_bytes)
        while len(self._rings) > KNOWN_RINGS:
            forgotten, _ = self._rings.popitem(last=False)
            self._views = {key: views for key, views in self._views.items() if key[0] != forgotten}

    def _on_layout(self, record: Record) -> None:
        _, number, layout = record.message
        self._layouts[number] = layout
        while len(self._layouts) > KNOWN_RINGS:
            forgotten, _ = self._layouts.popitem(last=False)
            self._views = {key: views for key, views in self._views.items() if key[2] != forgotten}

    def _on_reader(self, record: Record) -> None:
        self._reader = codec.decode(record.payload, fds=record.fds)

    def _on_shift(self, record: Record) -> None:
        _, number, seed, first, live = record.message
        assert self._shifts is not None
        self._shifts.keep(live)
        try:
            state = codec.decode(record.payload, fds=record.fds)
        except BaseException as error:  # raised by the tasks that need it
            self._shifts.tell(number, seed, first, functools.partial(_refuse, error))
        else:
            self._shifts.tell(number, seed, first, lambda: state)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _on_task(self, record: Record) -> None:
        task: Task = record.message[1]
        began = time.perf_counter()
        try:
            work = codec.decode(record.payload, fds=record.fds)
        except BaseException as error:  # what came with it is closed by then, see codec.decode
            self._answer(task, began, "unreadable", codec.encode(report(error)))
            return
        try:
            kind, payload = self._do(task, work)
        except BaseException as error:  # data for the consumer: it is raised there, never here
            kind, payload = "error", _encode_report(error)
        try:
            self._answer(task, began, kind, payload)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # no memory for the result
            self._answer(task, began, "error", _encode_report(error))

    def _do(self, task: Task, work: Any) -> tuple[str, Encoded | None]:
        assert self._orders is not None
        if task.shift >= 0:
            return self._work(task, work)
        seed = (self._orders.seed, task.seq, task.part)
        if task.kind == "rows":
            assert self._reader is not None
            if task.layout >= 0 and self._reader.schema is not None:
                ring, slot_bytes = self._rings[task.ring]
                root = ring.bytes(task.slot * slot_bytes, slot_bytes)
                self._reader.read(work, self._layouts[task.layout].window(root, task.start, task.stop), seed)
                return "wrote", None
            seed_globals(seed)
            if self._reader.schema is not None and not task.whole:  # no slot was free: the same arrays, beside it
                schema, arrays = self._reader.schema, read_fresh(self._reader, work, seed)
                return "chunk", codec.encode((schema, arrays), out_of_band=True)
            return self._collated(task, fetch(self._reader, work, seed))
        seed_globals(seed)
        return self._collated(task, [call() for call in work])

    def _work(self, task: Task, what: Any) -> tuple[str, Encoded | None]:
        """A task of a pool. What the work makes with `arena.empty` lies in the slot from the beginning."""
        assert self._shifts is not None
        self._shifts.forget_before(task.oldest)
        self._arena = None
        if task.ring >= 0:
            ring, slot_bytes = self._rings[task.ring]
            self._arena = Arena(ring.bytes(task.slot * slot_bytes, slot_bytes))
        with arena.within(self._arena):
            batch = self._shifts.do(task.shift, task.seq, what, stream=task.kind == "stream")
        return ("end", None) if batch is END else ("tree", codec.encode(batch, out_of_band=True))

    def _collated(self, task: Task, samples: Sequence[Any]) -> tuple[str, Encoded | None]:
        assert self._orders is not None
        if task.whole:
            function = self._orders.collate_fn or collate.collate
            return "tree", codec.encode(function(list(samples)), out_of_band=True)
        if task.layout >= 0 and self._schema is not None:
            with contextlib.suppress(tree.Misfit):
                collate.fill(self._schema, samples, self._rows(task))
                return "wrote", None
        return self._chunk(task, samples)

    def _chunk(self, task: Task, samples: Sequence[Any]) -> tuple[str, Encoded | None]:
        """Rows as arrays of their own: before the layout is known, and when they do not fit it."""
        schema = collate.schema_of(samples[0])
        if schema is not None:
            if task.layout >= 0 and _fits(schema, self._layouts[task.layout]):
                self._schema = schema
                with contextlib.suppress(tree.Misfit):
                    collate.fill(schema, samples, self._rows(task))
                    return "wrote", None
            arrays = [np.empty((len(samples), *f.shape), f.dtype) for f in schema.fields]
            with contextlib.suppress(tree.Misfit):
                collate.fill(schema, samples, arrays)
                return "chunk", codec.encode((schema, arrays), out_of_band=True)
        return "samples", codec.encode(list(samples), out_of_band=True)

    def _rows(self, task: Task) -> list[Any]:
        key = (task.ring, task.slot, task.layout)
        views = self._views.get(key)
        if views is None:
            ring, slot_bytes = self._rings[task.ring]
            views = self._layouts[task.layout].views(ring.bytes(task.slot * slot_bytes, slot_bytes))
            self._views[key] = views
        assert self._schema is not None
        if not _fits(self._schema, self._layouts[task.layout]):
            raise tree.Misfit("the layout has changed")
        return [view[task.start : task.stop] for view in views]

    def _answer(self, task: Task, began: float, kind: str, payload: Encoded | None) -> None:
        """Send the result; large buffers go into the job's slot when it has one and they fit, else into a memfd."""
        if payload is None:
            self._channel.send((kind, task.number, time.perf_counter() - began, None))
            return
        if payload.fds:
            raise CannotSend("a job returned an object on shared memory of its own: return its arrays instead")
        if task.shift >= 0 and self._arena is not None and payload.buffers:
            placed = self._arena.place(payload.buffers)
            if placed is not None:
                self._channel.send((kind, task.number, time.perf_counter() - began, ("slot", placed)), payload.head)
                return
        table, end = payload.table(0)
        if task.ring >= 0 and payload.buffers and task.whole and end <= self._rings[task.ring][1] and task.shift < 0:
            ring, slot_bytes = self._rings[task.ring]
            payload.write(ring.view(task.slot * slot_bytes, slot_bytes), table)
            self._channel.send((kind, task.number, time.perf_counter() - began, ("slot", table)), payload.head)
            return
        table, end = payload.table(len(payload.head))
        where = ("beside", len(payload.head), table)
        self._channel.send((kind, task.number, time.perf_counter() - began, where), _blob(payload, table, end))


def _refuse(error: BaseException) -> Any:
    raise error


def _blob(payload: Encoded, table: list[tuple[int, int]], end: int) -> bytes | Segment:
    if not payload.buffers:
        return payload.head
    segment = Segment.create(end, "the result of a job")
    view = segment.view()
    view[: len(payload.head)] = payload.head
    payload.write(view, table)
    return segment


def _fits(schema: Schema, layout: BatchLayout) -> bool:
    """Whether rows of ``schema`` are what the layout was made for. The parent alone decides layouts."""
    return schema.structure == layout.structure and all(
        field.dtype == region.dtype and field.shape == region.shape[1:]
        for field, region in zip(schema.fields, layout.regions, strict=True)
    )


def fetch(reader: Reader, index: Any, seed: Seed) -> Sequence[Any]:
    """Rows as samples: for a reader without a schema, and for a collate_fn."""
    schema = reader.schema
    if schema is None:
        return reader.fetch(index, seed)
    return list(collate.rows_of(schema, read_fresh(reader, index, seed)))


def read_fresh(reader: Reader, index: Any, seed: Seed) -> list[Any]:
    """Rows in arrays of their own."""
    assert reader.schema is not None
    layout = BatchLayout.contiguous(reader.schema, len(index))
    root = np.empty(layout.nbytes, np.uint8)
    window = layout.window(root, 0, len(index))
    reader.read(index, window, seed)
    return window.fields


Report = tuple[str, str, str, bytes]


def report(error: BaseException) -> Report:
    """An exception as data: type name, text, traceback, and its pickle where it has one."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = codec.encode(error).head
    except Exception:  # whatever its __reduce__ does: then the text must do
        pickled = b""
    kind = type(error)
    return (f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), _text(error), text, pickled)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure
        return "<its __str__ raised>"


def _encode_report(error: BaseException) -> Encoded:
    return codec.encode(report(error))
