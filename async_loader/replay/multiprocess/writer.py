"""Adds steps to a table that another process owns. See NOTE [publish ring]."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Container, Hashable, Iterator
from typing import Any

import numpy as np

from async_loader.errors import AsyncLoaderError, Broken, Closed, Timeout, Unsupported
from async_loader.lifecycle import Deadline, seconds
from async_loader.names import explain_wrong_attributes
from async_loader.replay.arguments import one_float
from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.base.field_table import NO_FIELDS, NO_PRIORITIES
from async_loader.replay.base.row_format import AWAITS, ENDS, FINAL
from async_loader.replay.multiprocess.messages import MessageType
from async_loader.replay.multiprocess.publish_ring import PublishRing
from async_loader.replay.multiprocess.row_grants import RowGrants
from async_loader.replay.multiprocess.terms import Terms
from async_loader.replay.samplers import priority_rules
from async_loader.replay.step_writer import StepWriter
from async_loader.replay.stream_names import MANY_STREAMS, stream_name, stream_names
from async_loader.replay.table.episode_ends import Ends
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.storage import Storage
from async_loader.schema import Schema
from async_loader.shm.fd_channel import FdChannel
from async_loader.shm.segment import Segment, close_all

_CLOSE_S = 5.0
_ONE, _TWO = np.array([1]), np.array([2])


def _at(point: str) -> None:
    """A point between reserving, writing and publishing a row. Tests end the process here."""


@explain_wrong_attributes
class ProcessWriter(StepWriter):
    """Adds steps from another process than the table's. Made by `WriterHandle.open`.

    Threads: one at a time, in the process that opened it. Cost: about that of `ReplayBuffer.add`;
    it waits for the table's process only when that withholds rows, when a stream is new, and for
    the first rows. A step can be drawn in the table's process as soon as it was added.
    """

    _remedy = "get another writer_handle()"

    def __init__(
        self,
        channel: FdChannel,
        owner_fd: int,
        ring: PublishRing,
        clock: Segment,
        storage: Storage,
        terms: Terms,
    ) -> None:
        from async_loader.replay.kernels import publish_ring  # late: see compiled.py

        super().__init__(("writer", terms.owner, terms.number))
        layout = storage.layout
        self._kernels, self._storage, self._terms, self._ring = publish_ring, storage, terms, ring
        self._pid = os.getpid()
        self._step_packer = StepPacker(layout, storage.base)
        self._ends = Ends(layout.schema)
        self._row_grants = RowGrants(channel, owner_fd, ring, clock, terms.owner)
        self._numbers: dict[Hashable, int] = {}
        self._open: set[int] = set()  # streams whose episode may go on
        self._many = MANY_STREAMS
        # Of one step.
        self._stream, self._flags, self._ids = (np.zeros(1, np.int64) for _ in range(3))

    def _begin(self, stream: Hashable) -> None:
        """Tell the table's process who writes, and to which stream."""
        death_fd = os.pidfd_open(self._pid)
        try:
            self._row_grants.hello(self._pid, death_fd)
        finally:
            close_all((death_fd,))
        self.stream = stream_name(stream)
        self._number(stream, Deadline(None))

    @property
    def schema(self) -> Schema:
        """What a step is."""
        return self._storage.layout.schema

    @property
    def steps(self) -> int:
        """Steps that this writer has added. It never falls.

        A call that Ctrl-C interrupts has added its step or has not, and this says which.
        """
        return self._row_grants.steps

    # -- adding ------------------------------------------------------------------------------------

    def _append(
        self,
        values: dict[str, Any],
        flags: int,
        final_obs: object,
        stream: object,
        priority: object,
        timeout_s: float | None,
    ) -> int:
        if os.getpid() != self._pid:
            raise self._of_a_fork()
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        step_packer = self._step_packer
        checked = step_packer.values(values)
        ends = None if final_obs is None else step_packer.final_values(final_obs)
        flags = step_packer.flags(checked, ends is not None, flags)
        given = NO_PRIORITIES
        if priority is not None or self._terms.given:
            given = self._priorities(
                None if priority is None else one_float(priority, "priority"), 1
            )
        number = (
            self._numbers[self.stream]
            if stream is None
            else self._number(stream_name(stream), Deadline(timeout_s))
        )
        rows = _TWO if flags & AWAITS else _ONE
        if not self._row_grants.ready_at_once(int(rows[0])):
            with _in_seconds(timeout_s):
                self._row_grants.ready(rows, 1, Deadline(timeout_s))
        self._stream[0], self._flags[0] = number, flags
        final = NO_FIELDS if ends is None else step_packer.put_final(ends)
        source, ids = step_packer.put(checked), self._ids
        self._write(source, final, 0, 1, int(rows[0]), self._stream, self._flags, given, ids)
        return int(ids[0])

    def _extend(
        self,
        values: dict[str, Any],
        flags: Ids | None,
        final_obs: object,
        stream: object,
        priority: object,
        timeout_s: float | None,
    ) -> Ids:
        if os.getpid() != self._pid:
            raise self._of_a_fork()
        deadline = Deadline(timeout_s)
        source, final, flags, memory = self._step_packer.steps(values, final_obs, flags)
        count = len(flags)
        given = self._priorities(priority, count)
        streams = self._streams(stream, count, deadline)
        rows, ids, start = np.cumsum(1 + (flags & AWAITS != 0)), np.empty(count, np.int64), 0
        while start < count:
            before = int(rows[start - 1]) if start else 0
            with _in_seconds(timeout_s, start, count):
                stop = start + self._row_grants.ready(
                    rows[start:] - before, count - start, deadline
                )
            ready = int(rows[stop - 1]) - before
            self._write(source, final, start, stop, ready, streams, flags, given, ids)
            start = stop
        del memory  # which the kernels read
        return ids

    def _end_episode(
        self, stream: Hashable, flags: int, final_obs: object, timeout_s: float | None
    ) -> None:
        """End the episode of a stream, if this writer began it."""
        self._check_process()
        deadline = Deadline(timeout_s)
        ends = None if final_obs is None else self._step_packer.final_values(final_obs)
        number = self._numbers.get(stream, -1)
        if number not in self._open:
            return
        with _in_seconds(timeout_s):
            if ends is None:
                self._row_grants.end_episode(number, flags, deadline)
                self._open.discard(number)
                return
            self._row_grants.ready(_ONE, 0, deadline)
        self._stream[0], self._flags[0] = number, FINAL | flags
        source, given = self._step_packer.put_final(ends), NO_PRIORITIES
        self._write(source, NO_FIELDS, 0, 1, 1, self._stream, self._flags, given, self._ids)

    def _write(
        self,
        source: Ids,
        final: Ids,
        start: int,
        stop: int,
        rows: int,
        streams: Ids,
        flags: Ids,
        given: Floats,
        ids: Ids,
    ) -> None:
        """Fill ``rows`` granted rows, and publish them."""
        row_grants, ring = self._row_grants, self._ring.address
        names = row_grants.names(rows)
        _at("reserved")
        geometry = self._storage.geometry
        written = self._kernels.fill(
            geometry,
            source,
            final,
            start,
            stop,
            names,
            streams,
            flags,
            given,
            ids,
            ring,
            row_grants.written,
        )
        _at("written")
        steps = 0 if flags[start] & FINAL else stop - start
        numbers, said = streams[start:stop].tolist(), flags[start:stop].tolist()
        # Before publishing: if Ctrl-C came between, an open stream that is missing here could not
        # be ended.
        self._open.update(numbers)
        row_grants.publish(written, rows, steps)
        _at("published")
        # The last row of each stream counts.
        for number, last in dict(zip(numbers, said, strict=True)).items():
            if last & ENDS:
                self._open.discard(number)

    # -- what is added -----------------------------------------------------------------------------

    def _priorities(self, priority: object, count: int) -> Floats:
        terms = self._terms
        if priority is None:
            if terms.given:
                priority_rules.check(np.full(count, np.nan), given=True)
            return NO_PRIORITIES
        if not terms.prioritized:
            raise Unsupported(priority_rules.unused(terms.sampler, terms.remover))
        column = priority_rules.column_of(priority, count)
        priority_rules.check(column, given=terms.given)
        return column

    def _streams(self, stream: object, count: int, deadline: Deadline) -> Ids:
        names = self.stream if stream is None else stream_names(stream, count, self._numbers)
        if not isinstance(names, list):
            return np.full(count, self._number(names, deadline), np.int64)
        new = [name for name in dict.fromkeys(names) if name not in self._numbers]
        if new:
            self._forget_ended(set(names))
            self._numbers.update(zip(new, self._row_grants.numbers(new, deadline), strict=True))
        return np.array([self._numbers[name] for name in names], np.int64)

    def _number(self, stream: Hashable, deadline: Deadline) -> int:
        number = self._numbers.get(stream)
        if number is None:
            self._forget_ended({stream})
            (number,) = self._row_grants.numbers([stream], deadline)
            self._numbers[stream] = number
        return number

    def _forget_ended(self, keep: Container[Hashable]) -> None:
        """Forget streams whose episodes have ended, if they are many, before more are named.

        Numbers are taken out of `_numbers` before the table's process is told, which may then give
        them to other streams. If Ctrl-C comes between, the table keeps some numbers longer than
        needed.
        """
        if len(self._numbers) < self._many:
            return
        own = self.stream
        ended = {
            name: number
            for name, number in self._numbers.items()
            if number not in self._open and name not in keep and name != own
        }
        self._numbers = {
            name: number for name, number in self._numbers.items() if name not in ended
        }
        self._many = max(MANY_STREAMS, 2 * len(self._numbers))
        self._row_grants.drop(list(ended.values()))

    # -- the end -----------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all steps that were added are in the table: linked, told to samplers, visible
        to readers.
        """
        if self._closed:
            raise self._closed_error()
        self._check_process()
        self._row_grants.publish_again()
        self._row_grants.ask(MessageType.FLUSH, MessageType.FLUSHED, b"", Deadline(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """End the writer's open episodes, as `end_episode` without arguments does, and give back
        its rows. May be called again.

        Waits for ``timeout_s``, by default 5 s, until the table's process has committed all steps.
        Raises nothing if that process is gone or has not answered: it commits them all the same. In
        a forked child it only closes the child's copies.
        """
        limit = _CLOSE_S if timeout_s is None else seconds("timeout_s", timeout_s)
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(AsyncLoaderError):
            if os.getpid() == self._pid:
                self._row_grants.publish_again()
                self._row_grants.ask(MessageType.BYE, MessageType.FLUSHED, b"", Deadline(limit))
        self._row_grants.close()

    def _check_process(self) -> None:
        """Raise Unsupported in a fork of the writer's process."""
        if os.getpid() != self._pid:
            raise self._of_a_fork()

    def _of_a_fork(self) -> Unsupported:
        return Unsupported(
            f"this writer belongs to process {self._pid}, and process {os.getpid()} is a fork of "
            "it: get another writer_handle() for each process"
        )

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # While modules are being torn down the process ends, and the table commits complete rows.
        if not finalizing() and not getattr(self, "_closed", True):
            self.close()


@contextlib.contextmanager
def _in_seconds(timeout_s: float | None, done: int = 0, count: int = 0) -> Iterator[None]:
    """Add to a Timeout how long the call waited, and to each error how many
    of many steps are in.
    """
    try:
        yield
    except (Timeout, Closed, Broken) as error:
        said = (
            f"{timeout_s:g} s have passed, and {error}"
            if isinstance(error, Timeout)
            else str(error)
        )
        raise type(error)(f"{done} of {count} steps are in: {said}" if count else said) from None
