"""What an actor writes with. Checks and waits; what is sent when is the line's business."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Never

import numpy as np

from async_loader.errors import AsyncLoaderError, CannotSend, Timeout, Unsupported
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.forks import forks
from async_loader.feeder.client.row_packer import CheckedRows, RowBuffer, RowPacker, checked_priority, given_priorities
from async_loader.feeder.client.stream_numbers import OWN, StreamNumbers
from async_loader.feeder.client.writer_channel import MESSAGE_BYTES_MOST, WriterChannel, WriterPhase
from async_loader.feeder.wire import FINAL, SHOWN, About, AboutReply
from async_loader.interrupts import SignalsDeferred
from async_loader.lifecycle import Deadline, seconds
from async_loader.names import by_name, explain_wrong_attributes, explain_wrong_names, misplaced_fields
from async_loader.replay.arguments import count_of, one_float, one_of, schema_of_columns
from async_loader.replay.stream_names import fresh_stream, stream_name, stream_names
from async_loader.replay.table.episode_ends import Ends, how_ended
from async_loader.schema import Schema
from async_loader.table import Streams


@explain_wrong_attributes
class RemoteWriter:
    """Appends steps to a table of a feeder: a `async_loader.table.Writer`. Made by `TableClient.writer`.

    Threads: any, where the steps of a stream are added by one.

    Steps are gathered into messages, which are sent when they are full or have lingered, and kept until the feeder has
    acknowledged that they are in its table: however often the connection is lost, each is there once, in order.

    Parameters
    ----------
    connection, line : Connection, WriterChannel
    stream : hashable
        Of steps that name none; by default one of its own.
    timeout_s : float
        For every call that waits, unless it says otherwise.
    owner : object
        Lives as long as this does.
    """

    def __init__(
        self, connection: Connection, line: WriterChannel, stream: Hashable | None, timeout_s: float, owner: object
    ) -> None:
        self._connection, self._line, self._timeout_s = connection, line, timeout_s
        self._streams = StreamNumbers(fresh_stream() if stream is None else stream_name(stream))
        self._owner = owner  # the client lives as long as its writers
        self._generation = forks.generation

    @property
    def stream(self) -> Hashable:
        """Of the steps that name none."""
        return self._streams.own

    @property
    def schema(self) -> Schema | None:
        """Of the table's steps; ``None`` while that is unknown. Waits until the feeder has said whether it is."""
        if self._line.packer is None:
            with contextlib.suppress(AsyncLoaderError):  # the calls that need it say why
                self._wait_for_schema()
        packer = self._line.packer
        return None if packer is None else packer.schema

    def _wait_for_schema(self, deadline: Deadline | None = None) -> None:
        """Until OPEN_WRITER was answered."""
        line = self._line

        def attempt() -> bool:
            line.check()
            return line.packer is not None or line.phase is WriterPhase.NAMELESS

        deadline = self._deadline(None) if deadline is None else deadline
        line.news.until(attempt, deadline, lambda: self._connection.no_answer("OPEN_WRITER"))

    def _check_priorities(self, deadline: Deadline) -> None:
        """Raise Unsupported where the table has no use for priorities, which it is asked for anew: a source's own sampler may
        have come since the writer was opened. A feeder of version 2 does not say it, and drops them.
        """
        line, connection = self._line, self._connection
        if line.packer is None:
            self._wait_for_schema(deadline)
        if (line.packer is not None and line.no_priorities is None) or connection.version < 3:
            return
        reply = connection.call(About(table=line.table), deadline, where=f"table {line.table!r}").body
        assert isinstance(reply, AboutReply)
        line.no_priorities = reply.no_priorities
        if reply.no_priorities is not None:
            raise Unsupported(reply.no_priorities)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._line.closing

    def __repr__(self) -> str:
        line = self._line
        state = "closed" if line.closing else line.phase.value
        return f"<RemoteWriter table={line.table!r} stream={self.stream!r} steps={self.steps} {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a writer stays in its process: send the client's address, and say "
            f"connect(address).table({self._line.table!r}).writer() there"
        )

    @property
    def steps(self) -> int:
        """Steps that were added through this writer, in the table or on their way there. It never falls.

        A call that Ctrl-C interrupts has added its step or has not, and this says which; `extend` has added so many of its rows.
        """
        with self._line.lock:
            return self._line.steps()

    @by_name
    def append(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: Any = False,
        truncated: Any = False,
        final_obs: Any = None,
        stream: Hashable | None = None,
        priority: float | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> None:
        """Add a stream's next step: what was observed, what was done, what it gave, and whether the episode ended with it.

        Parameters
        ----------
        terminated, truncated : bool
            Whether nothing comes after this step, or the episode was cut off after it. Stored too, where the schema (or
            the first step, if there is no schema) has fields of these names and the step does not say it itself.
        final_obs : array or (nested) dict of arrays, optional
            The observation after the episode's last step.
        stream : hashable, optional
            Which of the writer's streams this continues: an environment's, for instance.
        timeout_s : float, optional
            How long to wait for room in the buffer, and for the table's schema; by default as long as `connect` was told.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
            The step was not added. All that was added before stays on its way, and the writer can be used on.
        """
        if misplaced:
            raise misplaced_fields("RemoteWriter.append", misplaced)
        line = self._line
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if forks.generation != self._generation:
            self._connection.check()
        values = fields
        if step is not None:
            values = step if type(step) is dict and not fields else dict(one_of(step, fields, "step"))
        packer = line.packer
        if priority is not None:
            if packer is None or line.no_priorities is not None:
                one_float(priority, "priority")
                self._check_priorities(self._deadline(timeout_s))
            priority = checked_priority(priority)
        if packer is None:
            first = dict(values)
            Ends(None).into(first, terminated, truncated)
            packer = self._agree(
                lambda: Schema.of_step(first),
                lambda trial: trial.row(dict(values), terminated, truncated, final_obs),
                self._deadline(timeout_s),
            )
        if values is step and packer.stored and not packer.stored <= values.keys():
            values = dict(values)  # what is stored is added to it
        if stream is None:  # without a call: this is as often as the rest
            number = OWN
            self._streams.finished.discard(OWN)
        else:
            number = self._streams.number(stream)
        if final_obs is None and packer.goes_on(values, terminated, truncated):
            with line.lock:
                part = line.part
                open_ = part is not None and not line.closing and line.failure is None and part.count + 1 < part.most
                if part is not None and open_ and part.put_step(values, number, priority):
                    return
        checked, flags, final = packer.row(values, terminated, truncated, final_obs)
        self._append(packer, checked, number, flags, priority, final, timeout_s)
        if flags:
            self._streams.ended((number,))

    @by_name
    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: Any = False,
        truncated: Any = False,
        final_obs: Any = None,
        stream: Streams | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> None:
        """Add many steps: one array ``[rows, ...]`` for each field.

        Parameters
        ----------
        terminated, truncated : bool | bool array [rows]
            As for `append`.
        final_obs : as for `append`, [rows, ...], optional
            Only rows that end an episode are looked at.
        stream : hashable | sequence or array [rows], optional
            One for all rows, or each row's own. By default the writer's.
        priority : float array [rows], optional

        Raises
        ------
        SchemaError, ConfigError
            Nothing was added.
        Timeout
            Says how many rows were: the first so many. The others may be added by another call.
        """
        if misplaced:
            raise misplaced_fields("RemoteWriter.extend", misplaced, "batch")
        self._connection.check()
        deadline = self._deadline(timeout_s)
        whole = dict(one_of(batch, fields, "batch"))
        names: Any = self._streams.own
        if stream is not None:
            names = stream_names(stream, count_of(whole), self._streams.names())
        packer, rows = self._rows(whole, names, terminated, truncated, priority, final_obs, deadline)
        at = 0
        if not len(rows):
            self._line.check()  # what the first row would do
        try:
            while at < len(rows):
                at += self._some(packer, rows, at, deadline)
        except Timeout as error:
            raise Timeout(f"the first {at} of {len(rows)} rows were added, the others were not: {error}") from None
        self._streams.ended(rows.ended())

    def _rows(
        self, batch: dict[str, Any], names: Any, terminated: Any, truncated: Any, priority: Any, final_obs: Any,
        deadline: Deadline,
    ) -> tuple[RowPacker, CheckedRows]:  # fmt: skip
        """A batch, checked. Nothing was added when this raises."""
        streams = self._streams.of_rows(names, count_of(batch))

        def made(packer: RowPacker) -> CheckedRows:
            return packer.rows(dict(batch), streams, priority, final_obs, terminated, truncated)

        def proposed() -> Schema:
            first = dict(batch)
            Ends(None).into_columns(first, terminated, truncated)
            return schema_of_columns(first)

        packer = self._line.packer
        if priority is not None and (packer is None or self._line.no_priorities is not None):
            given_priorities(priority, count_of(batch))
            self._check_priorities(deadline)
        packer = packer or self._agree(proposed, made, deadline)
        return packer, made(packer)

    def _extend_together(
        self,
        batch: Mapping[str, Any],
        streams: Sequence[Hashable],
        *,
        terminated: Any,
        truncated: Any,
        final_obs: Any,
        priority: Any,
        timeout_s: float | None,
    ) -> None:
        """As `extend`, all rows or none. For a `VectorWriter`."""
        self._connection.check()
        deadline = self._deadline(timeout_s)
        packer, rows = self._rows(dict(batch), list(streams), terminated, truncated, priority, final_obs, deadline)
        line, count = self._line, len(rows)
        nbytes = max(count * packer.layout.row_bytes, packer.part_bytes)

        def attempt() -> bool:
            line.check()
            return line.fits(nbytes) or line.gives_up_rows

        line.warn()
        line.news.until(attempt, deadline, lambda: self._full("no step was added"))
        with line.lock, SignalsDeferred():  # Ctrl-C comes before all of it or after
            line.check()
            if not line.fits(nbytes):
                line.give_up(count - rows.finals(0, count), np.unique(rows.streams).tolist())
            elif line.part is not None and line.part.count + count <= line.part.most:
                line.part.put_rows(rows, 0, count)
                line.seal_full()
            else:
                line.seal()
                at = 0
                while at < count:
                    some = packer.whole(rows, at)
                    if some < packer.part_rows:
                        line.begin_buffer(self._connection.clock()).put_rows(rows, at, some)
                    else:
                        line.put_rows(rows, at, some)
                    at += some
        self._streams.ended(rows.ended())
        self._connection.wake()

    @explain_wrong_names
    def end_episode(
        self,
        *,
        final_obs: Any = None,
        stream: Hashable | None = None,
        terminated: bool = False,
        truncated: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """End a stream's episode after its last step, which was thought to be followed by another.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
        """
        ends = how_ended(terminated, truncated)
        deadline = self._deadline(timeout_s)
        self._connection.check()
        packer, line = self._line.packer, self._line
        with line.lock:
            line.check()
        number = 0 if stream is None else self._streams.known(stream)
        if final_obs is not None and packer is None:
            self._wait_for_schema(deadline)  # the table may have one, which says whether that is a final observation
            packer = line.packer
        final = None if final_obs is None or packer is None else packer.final_values(final_obs)
        if packer is None or number is None:
            return  # there was no step
        room = self._make_room(deadline, refused="the end of the episode was not added")
        with line.lock:
            line.check()
            here = final is not None and not packer.stored and line.part is not None and line.part.ends_in(number)
            if here and line.part is not None and final is not None:
                line.part.put_final(packer.followed, final, number, ends=ends)
            elif room:
                shown = SHOWN if final else 0
                self._part(1).put_final(packer.followed if final else (), final or (), number, FINAL | ends | shown)
            line.seal_full()
        self._streams.ended((number,))
        self._connection.wake()

    def _end_episodes(self, streams: Sequence[Hashable]) -> None:
        """End the open episodes of these streams, as `end_episode` without arguments does."""
        numbers = {self._streams.known(name) for name in streams}
        self._end_open([number for number in self._streams.open() if number in numbers])

    def _end_open(self, numbers: Sequence[int]) -> None:
        line = self._line
        if line.packer is not None and numbers:
            with line.lock:
                line.seal()
                line.end_streams(numbers)
            self._streams.ended(numbers)
            self._connection.wake()

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when everything that was added is in the table.

        Raises
        ------
        Timeout
            Nothing was lost: it is still on its way.
        Closed, Broken, SchemaError, ...
            Whatever ended the writer.
        """
        self._connection.check()
        deadline = self._deadline(timeout_s)
        if self._line.closing:
            self._line.check()
        self._flush(deadline)

    def close(self, timeout_s: float | None = None) -> None:
        """End the open episodes, as `end_episode` without arguments does, `flush`, and tell the feeder that nothing more comes.

        May be called again. Waits for nothing if nothing was added.

        Raises
        ------
        Timeout
            What was added is still on its way, and close may be called again.
        """
        line, deadline = self._line, self._deadline(timeout_s)
        if line.phase is WriterPhase.CLOSED:
            return
        self._connection.check()
        open_ = [] if line.closing else self._streams.open()
        with line.lock:
            if line.failure is not None:
                raise line.failure()
            line.seal()
            if open_ and line.packer is not None and not line.closing:
                line.end_streams(open_)
            line.closing = True
            put = line.hurry()
            if line.phase is WriterPhase.NAMELESS:
                line.phase = WriterPhase.CLOSED
        self._connection.wake()
        if not put:
            return  # the IO thread sees to the rest
        line.news.until(self._is_closed, deadline, self._why_not)
        self._connection.forget(line)
        line.warn()

    def __enter__(self) -> RemoteWriter:
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.close()
        except AsyncLoaderError:
            if not any(_):  # else it would hide why
                raise

    # -- rows into messages ------------------------------------------------------------------------------------------------

    def _append(
        self, packer: RowPacker, values: list[Any], stream: int, flags: int, priority: float | None, final: list[Any] | None,
        timeout_s: float | None,
    ) -> None:  # fmt: skip
        """One row that begins or fills a message."""
        rows = 1 if final is None else 2
        room = self._make_room(self._deadline(timeout_s), rows, "the step was not added")
        line = self._line
        with line.lock:
            line.check()
            if room:
                part = self._part(rows)
                if final is None:
                    part.put(values, stream, flags, priority)
                else:
                    part.put_last(values, stream, flags, priority, packer.followed, final)
                line.seal_full()
            else:
                line.give_up(1, (stream,))
        self._connection.wake()

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _make_room(self, deadline: Deadline, rows: int = 1, refused: str = "") -> bool:
        """Wait until the part has room for so many rows, or the buffer for another part; ``False``: there is none, and nothing
        that may be dropped.

        Another thread may take it meanwhile: the buffer exceeds its bound by a message for each thread at most.
        """
        line, found = self._line, True
        line.warn()

        def attempt() -> bool:
            nonlocal found
            line.check()
            found = (line.part is not None and line.part.count + rows <= line.part.most) or line.room()
            return found or line.gives_up_rows

        line.news.until(attempt, deadline, lambda: self._full(refused))
        return found

    def _part(self, rows: int) -> RowBuffer:
        """One with room for so many. Under the lock."""
        line = self._line
        if line.part is not None and line.part.count + rows > line.part.most:
            line.seal()
        return line.part or line.begin_buffer(self._connection.clock(), rows)

    def _some(self, packer: RowPacker, rows: CheckedRows, at: int, deadline: Deadline) -> int:
        """Add the next of many, as a part of a message or a whole one; how many."""
        line, left = self._line, len(rows) - at
        room = self._make_room(deadline)
        with line.lock:
            line.check()
            count = packer.whole(rows, at)
            if not room:
                line.give_up(count - rows.finals(at, count), rows.streams[at : at + count].tolist())
            elif left > packer.part_rows or line.part is None or line.part.count + left > line.part.most:
                line.seal()
                if left < packer.part_rows:
                    line.begin_buffer(self._connection.clock()).put_rows(rows, at, count)
                else:
                    line.put_rows(rows, at, count)
            else:
                line.part.put_rows(rows, at, count)
                line.seal_full()
        self._connection.wake()
        return count

    # -- waiting -----------------------------------------------------------------------------------------------------------

    def _agree(self, schema: Callable[[], Schema], check: Callable[[RowPacker], object], deadline: Deadline) -> RowPacker:
        """The table's schema, which is the first step's if it has none yet, and if ``check`` does not refuse that step."""
        line = self._line
        self._connection.check()

        def attempt() -> bool:
            line.check()
            if line.phase is WriterPhase.NAMELESS:  # a table that has a schema says what is wrong with the step
                proposed = schema()
                check(RowPacker(proposed, 1, MESSAGE_BYTES_MOST))
                line.propose(proposed)
                self._connection.wake()
            return line.packer is not None

        line.news.until(attempt, deadline, lambda: f"nothing was added: {self._connection.no_answer('OPEN_WRITER')}")
        assert line.packer is not None
        return line.packer

    def _flush(self, deadline: Deadline) -> None:
        line = self._line
        with line.lock:
            line.seal()
            target = line.hurry()
        self._connection.wake()

        def attempt() -> bool:
            if line.outbox.done_total >= target:
                return True
            if line.failure is not None:
                raise line.failure()
            return False

        line.news.until(attempt, deadline, self._why_not)
        line.warn()

    def _is_closed(self) -> bool:
        if self._line.failure is not None:
            raise self._line.failure()
        return self._line.phase is WriterPhase.CLOSED

    def _why_not(self) -> str:
        box = self._line.outbox
        return (
            f"{len(box)} messages ({box.nbytes} bytes) for table {self._line.table!r} are not acknowledged "
            f"({self._connection.state()}): they stay on their way"
        )

    def _full(self, refused: str) -> str:
        """Why there is no room, and what that means for the caller."""
        box = self._line.outbox
        said = f"{refused}: " if refused else ""
        return said + (
            f"the buffer for table {self._line.table!r} is full: {box.nbytes} of {box.buffer_bytes} bytes wait to be "
            f"acknowledged ({self._connection.state()}): the table's limiter may hold them up, or raise buffer_bytes"
        )


class VectorTarget(RemoteWriter):
    """What a vector of environments is written with: it has to know the table's schema before the first steps."""

    @property
    def schema(self) -> Schema | None:
        """Of the table's steps. Raises what keeps it from being known."""
        if self._line.packer is None:
            self._wait_for_schema()
        return super().schema
