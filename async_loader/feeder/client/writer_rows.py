"""The rows of one writer on their way into messages.

::

    append ──▶ buffer ──sealed──▶ outbox ──acknowledged──▶ free slots ──▶ buffer
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from async_loader.errors import Closed, ConfigError
from async_loader.feeder.client.channel import Failure
from async_loader.feeder.client.insert_memory import InsertMemory
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.outbox import Entry, Outbox
from async_loader.feeder.client.row_packer import SLOT_FROM, RowBuffer, RowPacker, StreamNumbers
from async_loader.feeder.wire import MESSAGE_BYTES
from async_loader.lifecycle import Deadline
from async_loader.replay.arguments import positive
from async_loader.replay.table.records import Packed, Rows

if TYPE_CHECKING:
    from async_loader.feeder.client.connection import Connection


@dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """How a writer sends. See `TableClient.writer`, which takes these defaults.

    Raises
    ------
    ConfigError
    """

    batch_rows: int = 256
    linger_ms: float = 5.0
    buffer_bytes: int = 64 << 20
    overflow: str = "block"
    message_bytes: int = MESSAGE_BYTES

    def __post_init__(self) -> None:
        if self.overflow not in ("block", "drop_oldest"):
            raise ConfigError(f"overflow={self.overflow!r}: 'block' or 'drop_oldest'")
        if not self.linger_ms >= 0:
            raise ConfigError(f"linger_ms={self.linger_ms}: it must be 0 or more")
        for name in ("batch_rows", "buffer_bytes"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))


class WriterRows:
    """Fills buffers, makes messages of them, and keeps the messages until they are acknowledged.

    Thread rule: any, where the rows of a stream are added by one. The part under the lock says so.

    Parameters
    ----------
    port : Connection
    number : int
    table : str
    stream : hashable
        The writer's own.
    options : WriterOptions

    Attributes
    ----------
    packer : RowPacker | None
        ``None`` while the table's schema is unknown.
    buffer : RowBuffer | None
        What is being filled.
    linger_at : float | None
        When the buffer has lingered long enough.
    hurried : int
        Messages, counted from the first, whose ACK a thread waits for.
    closing : bool
        Whether `close` was called.
    told : bool
        Whether the failure was raised.
    unsaid : int
        Lost rows that the user was not warned of.
    """

    def __init__(
        self, port: Connection, number: int, table: str, stream: Hashable, options: WriterOptions
    ) -> None:
        self.port, self.number, self.table, self.options = port, number, table, options
        self.lock = threading.RLock()
        self.news = Notifier(self.lock)
        self.outbox = Outbox(options.buffer_bytes, self._keep, port.count)
        self.streams = StreamNumbers(stream)
        self.memory = InsertMemory(port, table, number)
        self.packer: RowPacker | None = None
        self.buffer: RowBuffer | None = None
        self.linger_at: float | None = None
        self.hurried = self.unsaid = self._added = 0
        self.closing = self.told = False
        self.failure: Failure | None = None

    @property
    def steps(self) -> int:
        """Steps that were added, also those that are not in a message yet."""
        with self.lock:
            buffer = self.buffer
            return self._added + (0 if buffer is None else buffer.count - buffer.finals)

    def check(self) -> None:
        """Raise what ended this writer, if anything has."""
        self.check_failure()
        if self.closing:
            raise Closed(f"this writer of {self.table!r} is closed")

    def check_failure(self) -> None:
        """Raise what made this writer fail, if anything has."""
        if self.failure is not None:
            self.told = True
            raise self.failure()

    def warn(self) -> None:
        """Warn the user's thread of rows that the server lost. Not under the lock."""
        if self.unsaid:
            lost, self.unsaid = self.unsaid, 0
            text = f"the feeder lost {lost} rows of table {self.table!r} that it had acknowledged"
            warnings.warn(f"{text}: it was started anew", stacklevel=4)

    def put(
        self, records: list[tuple[Packed, int, float]], stream: int,
        deadline: Callable[[], Deadline], what: str,
    ) -> None:  # fmt: skip
        """Add the records of one step, or of an end: packed, flags, priority. ``what``: it is."""
        count = len(records)
        with self.lock:
            buffer = self.buffer
            if (
                buffer is not None
                and not self.closing
                and self.failure is None
                and buffer.count + count < buffer.limit
            ):
                for packed, flags, priority in records:
                    buffer.put(packed, stream, flags, priority)
                return
        self._wait_for_room(deadline(), count, 0, f"{what} was not added")
        with self.lock:
            self.check()
            buffer = self._buffer_for(count)
            for packed, flags, priority in records:
                buffer.put(packed, stream, flags, priority)
            self._seal_full(buffer)
        self.port.wake()

    def put_rows(self, rows: Rows, together: bool, deadline: Deadline) -> None:
        """Add many rows, message by message, or all or none. A Timeout says how many were added."""
        self.check()
        packer, at, total = self.packer, 0, len(rows)
        assert packer is not None
        count, nbytes = (total, total * packer.layout.row_bytes) if together else (1, 0)
        while at < total:
            added = f"the first {at} of {total} rows were added, the others were not"
            self._wait_for_room(deadline, count, nbytes, "no step was added" if together else added)
            with self.lock:
                self.check()
                until = at + count
                while at < until:
                    some = packer.whole(rows, at)
                    buffer = self._buffer_for(some)
                    buffer.put_rows(rows, at, some)
                    self._seal_full(buffer)
                    at += some
            self.port.wake()

    def end_streams(self, numbers: list[int]) -> None:
        """End the episodes of these streams, whether there is room for the message or not."""
        assert self.packer is not None
        with self.lock:
            self.seal()
            self.outbox.put(self.packer.cut(numbers))
            self.streams.ended(numbers)
        self.port.wake()

    def flush(self, deadline: Deadline) -> None:
        """Wait until everything that was added is acknowledged."""
        with self.lock:
            self.seal()
            target = self.hurried = self.outbox.put_total
        self.port.wake()

        def attempt() -> bool:
            if self.outbox.done_total >= target:
                return True
            self.check_failure()
            return False

        self.news.until(attempt, deadline, self._why_not)
        self.warn()

    def _wait_for_room(self, deadline: Deadline, rows: int, nbytes: int, refused: str) -> None:
        """Wait until ``rows`` rows of ``nbytes`` have room, or drop others for them.

        Another thread may use the room first: the outbox exceeds its bound by one message for each
        thread at most.
        """
        box = self.outbox

        def attempt() -> bool:
            self.check()
            assert self.packer is not None
            buffer, needed = self.buffer, max(nbytes, self.packer.fill_bytes)
            if buffer is not None and buffer.count + rows <= buffer.limit:
                return True
            if self.options.overflow == "block":
                return box.room(needed)
            while not box.room(needed) and box.drop_oldest(self.packer.cut):
                continue
            return True

        self.warn()
        self.news.until(attempt, deadline, lambda: f"{refused}: {self._full()}")

    def _full(self) -> str:
        box, state = self.outbox, self.port.state()
        if box.queue:
            return (
                f"table {self.table!r} is a queue that takes nothing more, and this "
                f"writer holds {box.rows} rows ({state}): the learner is slower "
                "than the actors, or make the queue larger"
            )
        return (
            f"the buffer for table {self.table!r} is full: {box.nbytes} of "
            f"{box.buffer_bytes} bytes wait to be acknowledged ({state}): the "
            f"table's limiter may hold them up, or raise buffer_bytes"
        )

    def _why_not(self) -> str:
        box = self.outbox
        return (
            f"{len(box.entries)} messages ({box.nbytes} bytes) for table {self.table!r} are not "
            f"acknowledged ({self.port.state()}): they stay on their way"
        )

    # -- filling, under the lock -------------------------------------------------------------------

    def _buffer_for(self, rows: int) -> RowBuffer:
        """Return a buffer with room for ``rows`` rows."""
        buffer, packer = self.buffer, self.packer
        if buffer is not None and buffer.count + rows <= buffer.limit:
            return buffer
        self.seal()
        assert packer is not None
        capacity, slot, layout = max(rows, packer.fill_rows), None, packer.layout
        if capacity * layout.row_bytes >= SLOT_FROM:
            slot = self.memory.take(layout.slot_places(capacity)[1], packer.slot_bytes)
        buffer = RowBuffer(packer, capacity, slot)
        buffer.limit = max(rows, min(capacity, self.outbox.left()))
        self.buffer = buffer
        self.linger_at = self.port.clock() + self.options.linger_ms / 1000
        return buffer

    def seal(self) -> None:
        """Make a message of what is filled so far."""
        buffer, self.buffer, self.linger_at = self.buffer, None, None
        if buffer is None:
            return
        if buffer.count:
            entry = buffer.sealed()
            self.outbox.put(entry)
            self._added += entry.steps
            self.port.count(rows_added=entry.steps)
        if not buffer.count or entry.buffer is None:
            self._free(buffer)

    def _seal_full(self, buffer: RowBuffer) -> None:
        if buffer.count >= buffer.limit:
            self.seal()

    def _keep(self, entry: Entry) -> None:
        """Free the slot of a message that is done."""
        if entry.buffer is not None:
            self._free(entry.buffer)

    def _free(self, buffer: RowBuffer) -> None:
        if buffer.slot is not None:
            self.memory.free.append(buffer.slot[0])
