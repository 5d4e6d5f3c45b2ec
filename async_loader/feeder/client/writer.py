"""What an actor writes with: it checks arguments and steps. `RowSink` adds rows and waits."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Never

from async_loader.errors import AsyncLoaderError, CannotSend
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.forks import forks
from async_loader.feeder.client.row_packer import (
    NAN,
    RowPacker,
    checked_priority,
    ended,
)
from async_loader.feeder.client.row_sink import RowSink
from async_loader.feeder.client.stream_numbers import OWN, StreamNumbers
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase
from async_loader.lifecycle import Deadline, seconds
from async_loader.names import (
    by_name,
    explain_wrong_attributes,
    explain_wrong_names,
    misplaced_fields,
)
from async_loader.replay.arguments import count_of, one_float, one_of, schema_of_columns
from async_loader.replay.episode_ends import Ends, how_ended
from async_loader.replay.samplers import priority_rules
from async_loader.replay.stream_names import fresh_stream, stream_name, stream_names
from async_loader.replay.table.records import Rows
from async_loader.replay.table.step_packer import NOT_PACKED
from async_loader.schema import Schema
from async_loader.table import Streams


@explain_wrong_attributes
class RemoteWriter:
    """Appends steps to a table of a feeder: a `async_loader.table.Writer`.

    Made by `TableClient.writer`.

    Threads: any, where the steps of a stream are added by one.

    Steps are gathered into messages. A message is sent when it is full or has lingered, and kept
    until the feeder has acknowledged that it is in its table: however often the connection is lost,
    each step is there once, in order.

    Parameters
    ----------
    connection, channel : Connection, WriterChannel
    stream : hashable
        Of steps that name none; by default a new one.
    timeout_s : float
        For every call that waits, unless it says otherwise.
    owner : object
        Lives as long as this does.
    """

    def __init__(
        self,
        connection: Connection,
        channel: WriterChannel,
        stream: Hashable | None,
        timeout_s: float,
        owner: object,
    ) -> None:
        self._connection, self._channel, self._timeout_s = connection, channel, timeout_s
        self._queue, self._sink = channel.queue, RowSink(connection, channel)
        self._streams = StreamNumbers(fresh_stream() if stream is None else stream_name(stream))
        self._owner = owner  # the client lives as long as its writers
        self._generation = forks.generation

    @property
    def stream(self) -> Hashable:
        """The stream of steps that name none."""
        return self._streams.own

    @property
    def schema(self) -> Schema | None:
        """Schema of the table's steps; ``None`` while it is unknown.

        Waits for the feeder's answer.
        """
        if self._queue.packer is None:
            with contextlib.suppress(AsyncLoaderError):  # the calls that need it raise
                self._sink.wait_for_schema(self._deadline(None))
        packer = self._queue.packer
        return None if packer is None else packer.schema

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._channel.closing

    def __repr__(self) -> str:
        table, stream, steps = self._channel.table, self.stream, self.steps
        state = "closed" if self.closed else self._channel.phase.value
        return f"<RemoteWriter table={table!r} stream={stream!r} steps={steps} {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a writer stays in its process: send the client's address, and say "
            f"connect(address).table({self._channel.table!r}).writer() there"
        )

    @property
    def steps(self) -> int:
        """Steps added through this writer, in the table or on their way there."""
        with self._channel.lock:
            return self._queue.steps()

    @by_name
    def append(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: object = None,
        truncated: object = None,
        final_obs: object = None,
        stream: Hashable | None = None,
        priority: float | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> None:
        """Add a stream's next step: observation, action, reward, and whether the episode ended.

        Parameters
        ----------
        terminated, truncated : bool
            Whether nothing comes after this step, or the episode was cut off after it. Also stored,
            where the schema (or the first step, if there is no schema) has fields of these names
            and the step does not contain them.
        final_obs : array or (nested) dict of arrays, optional
            The observation after the episode's last step.
        stream : hashable, optional
            Which of the writer's streams this continues: an environment's, for instance.
        timeout_s : float, optional
            How long to wait for room in the buffer, and for the table's schema; by default the
            ``timeout_s`` of `connect`.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
            The step was not added. Earlier steps stay on their way, and the writer stays usable.
        """
        if misplaced:
            raise misplaced_fields("RemoteWriter.append", misplaced)
        channel, queue = self._channel, self._queue
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if forks.generation != self._generation:
            self._connection.check()
        values = fields
        if step is not None:
            values = (
                step if type(step) is dict and not fields else dict(one_of(step, fields, "step"))
            )
        if priority is not None:
            if not channel.takes_priorities:
                one_float(priority, "priority")
                self._sink.check_priorities(self._deadline(timeout_s))
            priority = checked_priority(priority)
        packer = queue.packer
        if packer is None:
            first = dict(values)
            Ends(None).into(first, terminated, truncated)
            packer = self._sink.agree(
                lambda: Schema.of_step(first),
                lambda trial: trial.step(dict(values), terminated, truncated, final_obs),
                self._deadline(timeout_s),
            )
        if values is step and packer.stored and not packer.stored <= values.keys():
            values = dict(values)  # the stored fields are added to it
        if stream is None:  # without a call: this runs once for each step
            number = OWN
            self._streams.finished.discard(OWN)
        else:
            number = self._streams.number(stream)
        made = packer.step(values, terminated, truncated, final_obs)
        given = NAN if priority is None else priority
        try:
            if not made[1] and final_obs is None:
                with channel.lock:
                    buffer = queue.buffer
                    if (
                        buffer is not None
                        and not channel.closing
                        and channel.failure is None
                        and buffer.count + 1 < buffer.limit
                    ):
                        buffer.put(made[0], number, 0, given)
                        return
            self._sink.append(packer, made, number, given, self._deadline(timeout_s))
        except NOT_PACKED:
            packer.pack_unusual(values)  # raises what is wrong
            raise
        if made[1]:
            self._streams.ended((number,))

    @by_name
    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        terminated: object = None,
        truncated: object = None,
        final_obs: object = None,
        stream: Streams | None = None,
        priority: object = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> None:
        """Add many steps: one array ``[rows, ...]`` for each field.

        Parameters
        ----------
        terminated, truncated : bool | bool array [rows]
            As for `append`.
        final_obs : as for `append`, [rows, ...], optional
            Used for rows that end an episode only.
        stream : hashable | sequence or array [rows], optional
            One for all rows, or each row's own. By default the writer's.
        priority : float array [rows], optional

        Raises
        ------
        SchemaError, ConfigError
            Nothing was added.
        Timeout
            Says how many rows were added: the first ones. Add the others with another call.
        """
        if misplaced:
            raise misplaced_fields("RemoteWriter.extend", misplaced, "batch")
        self._connection.check()
        deadline = self._deadline(timeout_s)
        whole = dict(one_of(batch, fields, "batch"))
        names: Any = self._streams.own
        if stream is not None:
            names = stream_names(stream, count_of(whole), self._streams.names())
        packer, rows = self._rows(
            whole, names, terminated, truncated, priority, final_obs, deadline
        )
        self._sink.extend(packer, rows, deadline)
        self._streams.ended(ended(rows))

    def _rows(
        self,
        batch: dict[str, Any],
        names: Hashable | Sequence[Hashable],
        terminated: object,
        truncated: object,
        priority: object,
        final_obs: object,
        deadline: Deadline,
    ) -> tuple[RowPacker, Rows]:
        """Check a batch. Nothing was added when this raises."""
        count = count_of(batch)
        streams = self._streams.of_rows(names, count)

        def made(packer: RowPacker) -> Rows:
            return packer.batch(dict(batch), streams, priority, final_obs, terminated, truncated)

        def proposed() -> Schema:
            first = dict(batch)
            Ends(None).into_columns(first, terminated, truncated)
            return schema_of_columns(first)

        if priority is not None and not self._channel.takes_priorities:
            priority_rules.column_of(priority, count)
            self._sink.check_priorities(deadline)
        packer = self._queue.packer or self._sink.agree(proposed, made, deadline)
        return packer, made(packer)

    def _extend_together(
        self,
        batch: Mapping[str, Any],
        streams: Sequence[Hashable],
        *,
        terminated: object,
        truncated: object,
        final_obs: object,
        priority: object,
        timeout_s: float | None,
    ) -> None:
        """As `extend`, all rows or none. For a `VectorWriter`."""
        self._connection.check()
        deadline = self._deadline(timeout_s)
        packer, rows = self._rows(
            dict(batch), list(streams), terminated, truncated, priority, final_obs, deadline
        )
        self._sink.extend_together(packer, rows, deadline)
        self._streams.ended(ended(rows))

    @explain_wrong_names
    def end_episode(
        self,
        *,
        final_obs: object = None,
        stream: Hashable | None = None,
        terminated: bool = False,
        truncated: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """End a stream's episode after its last step, which was added as one within its episode.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
        """
        ends = how_ended(terminated, truncated)
        deadline = self._deadline(timeout_s)
        self._connection.check()
        with self._channel.lock:
            self._channel.check()
        number = OWN if stream is None else self._streams.known(stream)
        if final_obs is not None and self._queue.packer is None:
            self._sink.wait_for_schema(deadline)  # the table may have one, which checks final_obs
        packer = self._queue.packer
        if packer is None:
            return  # there was no step
        final = None if final_obs is None else packer.final(final_obs)
        if number is not None:
            self._sink.end_episode(packer, final, number, ends, deadline)
            self._streams.ended((number,))

    def _end_episodes(self, streams: Sequence[Hashable]) -> None:
        """End the open episodes of these streams, as `end_episode` without arguments does."""
        wanted = {self._streams.known(name) for name in streams}
        numbers = [number for number in self._streams.open() if number in wanted]
        if self._queue.packer is not None and numbers:
            self._sink.end_open(numbers)
            self._streams.ended(numbers)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when everything that was added is in the table.

        Raises
        ------
        Timeout
            Nothing was lost: it is still on its way.
        Closed, Broken, SchemaError, ...
            What ended the writer.
        """
        self._connection.check()
        deadline = self._deadline(timeout_s)
        if self.closed:
            self._channel.check()
        self._sink.flush(deadline)

    def close(self, timeout_s: float | None = None) -> None:
        """End the open episodes, `flush`, and tell the feeder that nothing more comes.

        Episodes end as by `end_episode` without arguments. May be called again. Does not wait if
        nothing was added.

        Raises
        ------
        Timeout
            What was added is still on its way, and close may be called again.
        """
        deadline = self._deadline(timeout_s)
        if self._channel.phase is WriterPhase.CLOSED:
            return
        self._connection.check()
        self._sink.close([] if self.closed else self._streams.open(), deadline)

    def __enter__(self) -> RemoteWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        except AsyncLoaderError:
            if not any(_):  # else it would hide why
                raise

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)


class VectorTarget(RemoteWriter):
    """What a `VectorWriter` writes with: it needs the table's schema before the first steps."""

    @property
    def schema(self) -> Schema | None:
        """Schema of the table's steps. Raises what keeps it from being known."""
        if self._queue.packer is None:
            self._sink.wait_for_schema(self._deadline(None))
        return super().schema
