"""What an actor writes with: it checks arguments and steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Never

import numpy as np

from async_loader.errors import AsyncLoaderError, CannotSend, Unsupported
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.notifier import forks
from async_loader.feeder.client.row_packer import (
    ENDS,
    NAN,
    OWN,
    RowPacker,
    checked_priority,
    ended,
)
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase
from async_loader.feeder.wire import FINAL, MESSAGE_BYTES, SHOWN
from async_loader.lifecycle import ClosedAtExit, Deadline, seconds
from async_loader.name_hints import (
    by_name,
    explain_wrong_attributes,
    explain_wrong_names,
    misplaced_fields,
)
from async_loader.replay.arguments import count_of, one_of, schema_of_columns
from async_loader.replay.episode_ends import Ends, how_ended
from async_loader.replay.stream_names import stream_names
from async_loader.replay.table.records import Rows
from async_loader.schema import Schema
from async_loader.table import Streams


@explain_wrong_attributes
class RemoteWriter(ClosedAtExit):
    """Appends steps to a table of a feeder: a `async_loader.table.Writer`.

    Made by `TableClient.writer`.

    Threads: any, where the steps of a stream are added by one.

    Steps are gathered into messages. A message is sent when it is full or has lingered, and kept
    until the feeder has acknowledged that it is in its table: however often the connection is lost,
    each step is there once, in order.

    Parameters
    ----------
    connection, channel : Connection, WriterChannel
    timeout_s : float
        For every call that waits, unless it says otherwise.
    owner : object
        Lives as long as this does.
    """

    def __init__(
        self,
        connection: Connection,
        channel: WriterChannel,
        timeout_s: float,
        owner: object,
    ) -> None:
        self._connection, self._channel, self._timeout_s = connection, channel, timeout_s
        self._streams = channel.streams
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
        packer = None
        with contextlib.suppress(AsyncLoaderError):  # the calls that need it raise
            packer = self._agree(self._deadline(None))
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
        return self._channel.steps

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
        channel = self._channel
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if forks.generation != self._generation:
            self._connection.check()
        values = fields
        if step is not None:
            values = (
                step if type(step) is dict and not fields else dict(one_of(step, fields, "step"))
            )
        given = NAN
        if priority is not None:
            given = checked_priority(priority)
        packer = channel.packer
        if packer is None:
            first = dict(values)
            Ends(None).into(first, terminated, truncated)
            packer = self._agree(
                self._deadline(timeout_s),
                lambda: Schema.of_step(first),
                lambda trial: trial.check(dict(values), terminated, truncated, final_obs),
            )
            assert packer is not None
        if priority is not None:
            self._check_priorities()
        said = 0
        if terminated is not None or truncated is not None or not packer.stored <= values.keys():
            if values is step:
                values = dict(values)  # the stored fields are added to it
            said = packer.writer_ends.into(values, terminated, truncated)
        streams = channel.streams
        if stream is None:  # without a call: this runs once for each step
            number = OWN
            streams.names[OWN] = streams.own
        else:
            number = streams.number(stream)
        ends, plain = final_obs is not None, packer.pack_plain
        packed, flags = plain(values, said, ends) or packer.pack(values, said, ends)
        flags &= ENDS
        records = [(packed, flags, given)]
        if final_obs is not None:
            records.append((packer.final(final_obs), FINAL, NAN))
        channel.put(records, number, lambda: self._deadline(timeout_s), "the step")
        if flags:
            streams.ended((number,))

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
        whole = dict(one_of(batch, fields, "batch"))
        names: Any = self._streams.own
        if stream is not None:
            names = stream_names(stream, count_of(whole))
        self._put_rows(whole, names, terminated, truncated, final_obs, priority, timeout_s)

    def _put_rows(
        self,
        batch: dict[str, Any],
        names: Any,
        terminated: object,
        truncated: object,
        final_obs: object,
        priority: object,
        timeout_s: float | None,
        together: bool = False,
    ) -> None:
        """As `extend`; ``together``: all rows or none. ``names``: of one stream, or a list."""
        self._connection.check()
        deadline, channel, count = self._deadline(timeout_s), self._channel, count_of(batch)
        each = names if isinstance(names, list) else [names]
        numbers = np.array([self._streams.number(name) for name in each], np.uint32)
        streams = np.full(count, numbers[0], np.uint32) if len(numbers) == 1 else numbers

        def made(packer: RowPacker) -> Rows:
            return packer.batch(dict(batch), streams, priority, final_obs, terminated, truncated)

        def proposed() -> Schema:
            first = dict(batch)
            Ends(None).into_columns(first, terminated, truncated)
            return schema_of_columns(first)

        packer = self._agree(deadline, proposed, made)
        assert packer is not None
        if priority is not None:
            self._check_priorities()
        rows = made(packer)
        channel.put_rows(rows, together, deadline)
        self._streams.ended(ended(rows))

    def _extend_together(
        self,
        batch: Mapping[str, Any],
        streams: Sequence[Hashable],
        **how: Any,
    ) -> None:
        """As `extend`, all rows or none. For a `VectorWriter`."""
        self._put_rows(dict(batch), list(streams), together=True, **how)

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
        deadline, channel = self._deadline(timeout_s), self._channel
        self._connection.check()
        channel.check()
        number = self._streams.open_number(stream)
        # the table may have a schema, which checks final_obs
        packer = channel.packer if final_obs is None else self._agree(deadline)
        if packer is None:
            return  # there was no step
        values = packer.nothing if final_obs is None else packer.final(final_obs)
        if number is not None:
            flags = FINAL | ends | (0 if final_obs is None else SHOWN)
            channel.put([(values, flags, NAN)], number, lambda: deadline, "the end of the episode")
            self._streams.ended((number,))

    def _end_episodes(self, streams: Sequence[Hashable]) -> None:
        """End the open episodes of these streams, as `end_episode` without arguments does."""
        found = map(self._streams.open_number, streams)
        numbers = [number for number in found if number is not None]
        if self._channel.packer is not None and numbers:
            self._channel.end_streams(numbers)

    # -- the table's schema and priorities ---------------------------------------------------------

    def _agree(
        self,
        deadline: Deadline,
        schema: Callable[[], Schema] | None = None,
        check: Callable[[RowPacker], object] = id,
    ) -> RowPacker | None:
        """Wait for the table's schema; ``None``: it has none, and none is proposed.

        If it has none, propose ``schema``, which ``check`` accepts.
        """
        channel = self._channel
        if channel.packer is not None:
            return channel.packer
        self._connection.check()

        def attempt() -> bool:
            channel.check()
            # A table that has a schema says itself what is wrong with the step.
            nameless = channel.phase is WriterPhase.NAMELESS
            if nameless and schema is not None:
                proposed = schema()
                check(RowPacker(proposed, 1, MESSAGE_BYTES))
                channel.propose(proposed)
                self._connection.wake()
                return False
            return nameless or channel.packer is not None

        no_answer = self._connection.no_answer
        channel.news.until(
            attempt, deadline, lambda: f"nothing was added: {no_answer('OPEN_WRITER')}"
        )
        return channel.packer

    def _check_priorities(self) -> None:
        """Raise Unsupported if the table used no priorities when the writer was opened."""
        if self._channel.no_priorities is not None:
            raise Unsupported(self._channel.no_priorities)

    # -- waiting -----------------------------------------------------------------------------------

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
        self._channel.flush(deadline)

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
        self._channel.close(deadline)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)


class VectorTarget(RemoteWriter):
    """What a `VectorWriter` writes with: it needs the table's schema before the first steps."""

    @property
    def schema(self) -> Schema | None:
        """Schema of the table's steps. Raises what keeps it from being known."""
        self._agree(self._deadline(None))
        return super().schema
