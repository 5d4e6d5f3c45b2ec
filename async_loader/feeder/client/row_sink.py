"""How a writer's rows get into its channel.

Agree on the schema, wait for room, add, wait for ACKs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from async_loader.errors import Timeout, Unsupported
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.row_packer import NAN, RowBuffer, RowPacker
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase
from async_loader.feeder.wire import FINAL, MESSAGE_BYTES, SHOWN, About, AboutReply
from async_loader.lifecycle import Deadline
from async_loader.replay.table.records import Rows, finals_of
from async_loader.schema import Schema


class RowSink:
    """Adds checked rows to a channel. Any thread, where the rows of a stream are added by one.

    Parameters
    ----------
    connection : Connection
    channel : WriterChannel
    """

    def __init__(self, connection: Connection, channel: WriterChannel) -> None:
        self._connection, self._channel, self._queue = connection, channel, channel.queue

    # -- the schema --------------------------------------------------------------------------------

    def wait_for_schema(self, deadline: Deadline) -> None:
        """Wait for the answer to OPEN_WRITER."""
        channel = self._channel

        def attempt() -> bool:
            channel.check()
            return channel.queue.packer is not None or channel.phase is WriterPhase.NAMELESS

        no_answer = self._connection.no_answer
        channel.news.until(attempt, deadline, lambda: no_answer("OPEN_WRITER"))

    def agree(
        self,
        schema: Callable[[], Schema],
        check: Callable[[RowPacker], object],
        deadline: Deadline,
    ) -> RowPacker:
        """Wait for the table's schema.

        Propose ``schema``, which ``check`` accepts, if it has none.
        """
        channel, queue = self._channel, self._queue
        self._connection.check()

        def attempt() -> bool:
            channel.check()
            # A table that has a schema says itself what is wrong with the step.
            if channel.phase is WriterPhase.NAMELESS:
                proposed = schema()
                check(RowPacker(proposed, 1, MESSAGE_BYTES))
                channel.propose(proposed)
                self._connection.wake()
            return queue.packer is not None

        def why() -> str:
            return f"nothing was added: {self._connection.no_answer('OPEN_WRITER')}"

        channel.news.until(attempt, deadline, why)
        assert queue.packer is not None
        return queue.packer

    def check_priorities(self, deadline: Deadline) -> None:
        """Raise Unsupported if the table uses no priorities.

        The table is asked again after a refusal: a source with a sampler of its own may have come.
        """
        channel, connection = self._channel, self._connection
        if self._queue.packer is None:
            self.wait_for_schema(deadline)
        if channel.takes_priorities:
            return
        about, where = About(table=channel.table), f"table {channel.table!r}"
        reply = connection.call(Call(about, where=where), deadline).body
        assert isinstance(reply, AboutReply)
        if reply.no_priorities is not None:
            raise Unsupported(reply.no_priorities)
        channel.takes_priorities = self._queue.packer is not None

    # -- rows --------------------------------------------------------------------------------------

    def append(
        self,
        packer: RowPacker,
        step: tuple[list[Any], int, list[Any] | None],
        stream: int,
        priority: float,
        deadline: Deadline,
    ) -> None:
        """Add one step, as `RowPacker.step` returns it; it begins or fills a message."""
        values, flags, final = step
        rows = 1 if final is None else 2
        room = self._make_room(deadline, rows, "the step was not added")
        with self._channel.lock:
            self._channel.check()
            if room:
                buffer = self._buffer_for(rows)
                buffer.put(values, stream, flags, priority)
                if final is not None:
                    buffer.put(final, stream, FINAL, NAN)
                self._queue.seal_full()
            else:
                self._queue.give_up(1, (stream,))
        self._connection.wake()

    def extend(self, packer: RowPacker, rows: Rows, deadline: Deadline) -> None:
        """Add many rows, message by message. A Timeout says how many were added."""
        at = 0
        if not len(rows):
            self._channel.check()  # as for a first row
        try:
            while at < len(rows):
                room = self._make_room(deadline)
                with self._channel.lock:
                    self._channel.check()
                    if room:
                        at += self._put_some(packer, rows, at)
                    else:
                        at += self._give_up(rows, at, packer.whole(rows, at))
                self._connection.wake()
        except Timeout as error:
            text = f"the first {at} of {len(rows)} rows were added, the others were not"
            raise Timeout(f"{text}: {error}") from None

    def extend_together(self, packer: RowPacker, rows: Rows, deadline: Deadline) -> None:
        """Add all rows or none."""
        channel, queue, at = self._channel, self._queue, 0
        nbytes = max(len(rows) * packer.layout.row_bytes, packer.fill_bytes)

        def attempt() -> bool:
            channel.check()
            return queue.fits(nbytes) or queue.gives_up_rows

        channel.warn()
        channel.news.until(attempt, deadline, lambda: self._full("no step was added"))
        with channel.lock:
            channel.check()
            room = queue.fits(nbytes)
            while at < len(rows):
                at += (
                    self._put_some(packer, rows, at) if room else self._give_up(rows, at, len(rows))
                )
        self._connection.wake()

    def _put_some(self, packer: RowPacker, rows: Rows, at: int) -> int:
        """Add the next rows, to a buffer or as a whole message; return how many."""
        queue, left = self._queue, len(rows) - at
        count, buffer = packer.whole(rows, at), queue.buffer
        if buffer is None or buffer.count + left > buffer.limit:
            queue.seal()
            buffer = queue.begin_buffer(self._connection.clock(), count)
        buffer.put_rows(rows, at, count)
        if left >= packer.fill_rows:
            queue.seal()
        queue.seal_full()
        return count

    def _give_up(self, rows: Rows, at: int, count: int) -> int:
        heads = rows.heads
        assert heads is not None
        part = heads[at : at + count]
        self._queue.give_up(count - finals_of(part), np.unique(part["stream"]).tolist())
        return count

    def end_episode(
        self, packer: RowPacker, final: list[Any] | None, stream: int, ends: int, deadline: Deadline
    ) -> None:
        """End a stream's episode after its last step."""
        room = self._make_room(deadline, refused="the end of the episode was not added")
        with self._channel.lock:
            self._channel.check()
            if room:
                flags = FINAL | ends | (0 if final is None else SHOWN)
                values = packer.nothing.copy() if final is None else final
                self._buffer_for(1).put(values, stream, flags, NAN)
                self._queue.seal_full()
            else:
                self._queue.give_up(1, (stream,))
        self._connection.wake()

    def end_open(self, streams: Sequence[int]) -> None:
        """End the episodes of these streams where they are."""
        with self._channel.lock:
            self._queue.seal()
            self._queue.end_streams(streams)
        self._connection.wake()

    def _make_room(self, deadline: Deadline, rows: int = 1, refused: str = "") -> bool:
        """Wait until ``rows`` rows have room; return False if they are to be given up.

        Another thread may use the room first: the outbox exceeds its bound by one message for each
        thread at most.
        """
        channel, queue, found = self._channel, self._queue, True
        channel.warn()

        def attempt() -> bool:
            nonlocal found
            channel.check()
            buffer = queue.buffer
            found = (buffer is not None and buffer.count + rows <= buffer.limit) or queue.room()
            return found or queue.gives_up_rows

        channel.news.until(attempt, deadline, lambda: self._full(refused))
        return found

    def _buffer_for(self, rows: int) -> RowBuffer:
        """Return a buffer with room for ``rows`` rows. Under the lock."""
        queue = self._queue
        if queue.buffer is not None and queue.buffer.count + rows > queue.buffer.limit:
            queue.seal()
        return queue.buffer or queue.begin_buffer(self._connection.clock(), rows)

    # -- waiting -----------------------------------------------------------------------------------

    def flush(self, deadline: Deadline) -> None:
        """Wait until everything that was added is acknowledged."""
        channel, queue = self._channel, self._queue
        with channel.lock:
            queue.seal()
            target = queue.hurry()
        self._connection.wake()

        def attempt() -> bool:
            if queue.outbox.done_total >= target:
                return True
            if channel.failure is not None:
                raise channel.failure()
            return False

        channel.news.until(attempt, deadline, self._why_not)
        channel.warn()

    def close(self, open_streams: Sequence[int], deadline: Deadline) -> None:
        """End these streams, flush, and close the channel."""
        channel = self._channel
        with channel.lock:
            put = channel.close(open_streams)
        self._connection.wake()
        if not put:
            return  # the IO thread does the rest
        channel.news.until(self._is_closed, deadline, self._why_not)
        self._connection.forget(channel)
        channel.warn()

    def _is_closed(self) -> bool:
        if self._channel.failure is not None:
            raise self._channel.failure()
        return self._channel.phase is WriterPhase.CLOSED

    def _why_not(self) -> str:
        box = self._queue.outbox
        return (
            f"{len(box)} messages ({box.nbytes} bytes) for table {self._channel.table!r} are not "
            f"acknowledged ({self._connection.state()}): they stay on their way"
        )

    def _full(self, refused: str) -> str:
        """Return why there is no room, and what that means for the caller."""
        box = self._queue.outbox
        said = f"{refused}: " if refused else ""
        if box.queue:
            return (
                f"{said}table {self._channel.table!r} is a queue that takes nothing more, and this "
                f"writer holds {box.rows} rows ({self._connection.state()}): the learner is slower "
                "than the actors, or make the queue larger"
            )
        return (
            f"{said}the buffer for table {self._channel.table!r} is full: {box.nbytes} of "
            f"{box.buffer_bytes} bytes wait to be acknowledged ({self._connection.state()}): the "
            f"table's limiter may hold them up, or raise buffer_bytes"
        )
