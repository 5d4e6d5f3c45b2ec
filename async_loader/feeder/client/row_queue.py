"""The rows of one writer on their way into messages. Called under the writer's lock.

::

    append ──▶ buffer ──sealed──▶ outbox ──acknowledged──▶ spare buffers, free slots ──▶ buffer
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from async_loader.errors import ConfigError
from async_loader.feeder.client.insert_memory import LEAST_BYTES, InsertMemory
from async_loader.feeder.client.outbox import Entry, Outbox
from async_loader.feeder.client.row_packer import InsertPayload, RowBuffer, RowPacker
from async_loader.feeder.wire import MESSAGE_BYTES
from async_loader.replay.arguments import positive

SPARE_BYTES = 16 << 20
"""Buffers that are kept for reuse: touching a fresh page costs more than writing the step."""


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


class SpareBuffers:
    """Buffers whose rows are acknowledged, by their capacity, to be filled again."""

    def __init__(self) -> None:
        self.by_rows: dict[int, list[RowBuffer]] = {}
        self._nbytes = 0

    def take(self, rows: int) -> RowBuffer | None:
        """Return an empty buffer of this capacity, if there is one."""
        spares = self.by_rows.get(rows)
        if not spares:
            return None
        buffer = spares.pop()
        self._nbytes -= buffer.nbytes
        return buffer

    def keep(self, buffer: RowBuffer) -> None:
        """Empty and keep a buffer; those of other capacities are dropped first."""
        if self._nbytes + buffer.nbytes > SPARE_BYTES:
            self.drop(but=buffer.capacity)
        if self._nbytes + buffer.nbytes <= SPARE_BYTES:
            self.by_rows.setdefault(buffer.capacity, []).append(buffer.emptied())
            self._nbytes += buffer.nbytes

    def drop(self, but: int | None = None) -> None:
        """Free all buffers, or all but those of one capacity."""
        self.by_rows = {rows: kept for rows, kept in self.by_rows.items() if rows == but}
        self._nbytes = sum(one.nbytes for kept in self.by_rows.values() for one in kept)


@dataclass(slots=True)
class Progress:
    """What was added so far.

    Attributes
    ----------
    steps : int
        Steps in messages.
    streams : set of int
        Streams that the messages continue.
    broken : set of int
        Streams that miss rows which were given up.
    """

    steps: int = 0
    streams: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)


class RowQueue:
    """Fills buffers, makes messages of them, and keeps the messages until they are acknowledged.

    Parameters
    ----------
    options : WriterOptions

    Attributes
    ----------
    packer : RowPacker | None
        ``None`` while the table's schema is unknown.
    buffer : RowBuffer | None
        What is being filled.
    fill_at : float | None
        When the buffer has lingered long enough.
    hurried : int
        Messages, counted from the first, whose ACK a thread waits for.
    gives_up_rows : bool
        Whether rows that find no room are dropped.
    memory : InsertMemory
        On the feeder's host, for messages of large rows.
    """

    def __init__(self, options: WriterOptions) -> None:
        self.options = options
        self.outbox = Outbox(options.buffer_bytes, self._done)
        self.packer: RowPacker | None = None
        self.buffer: RowBuffer | None = None
        self.fill_at: float | None = None
        self.hurried = 0
        self.gives_up_rows = options.overflow == "drop_oldest"
        self.memory = InsertMemory()
        self._progress = Progress()
        self._spares = SpareBuffers()

    def room(self) -> bool:
        """Return whether another buffer may be begun.

        With drop_oldest messages are dropped for it.
        """
        assert self.packer is not None
        return self.fits(self.packer.fill_bytes)

    def fits(self, nbytes: int) -> bool:
        """As `room`, for a message of ``nbytes``."""
        if self.gives_up_rows:
            while not self.outbox.room(nbytes) and self.outbox.drop_oldest(self._cut):
                continue
        return self.outbox.room(nbytes)

    def give_up(self, rows: int, streams: Iterable[int]) -> None:
        """Count rows that found no room: all messages were sent, so none can be dropped.

        What is filled is sealed: a later row goes into a new buffer, before which `_mend` ends the
        streams that miss rows.
        """
        self.seal()
        self._progress.broken.update(streams)
        self.outbox.counts.rows_dropped += rows

    def begin_buffer(self, now: float, rows: int = 1) -> RowBuffer:
        """Return an empty buffer for ``rows`` rows or more.

        Wake the IO thread then: it watches the linger time.
        """
        assert self.packer is not None
        self._mend()
        buffer = self._new_buffer(max(rows, self.packer.fill_rows))
        buffer.limit = max(rows, min(buffer.limit, self.outbox.left()))
        self.buffer = buffer
        self.fill_at = now + self.options.linger_ms / 1000
        return self.buffer

    def _new_buffer(self, rows: int) -> RowBuffer:
        assert self.packer is not None
        # A slot first: a spare buffer saves the first touch of its pages, a slot two copies.
        layout, slot = self.packer.layout, None
        if rows * layout.row_bytes >= LEAST_BYTES:
            slot = self.memory.take(layout.slot_places(rows)[1])
        if slot is None:
            return self._spares.take(rows) or RowBuffer(self.packer, rows)
        try:
            return RowBuffer(self.packer, rows, slot)
        except BaseException:
            self.memory.give_back(slot)
            raise

    def _done(self, entry: Entry) -> None:
        """Keep the memory of a message.

        ZeroMQ may still hold what was sent over the socket again.
        """
        payload = entry.payload
        if payload.buffer is None:
            return
        if entry.sent <= 1 or not payload.over_socket:
            self._keep(payload.buffer)
        elif payload.buffer.slot is not None:
            self.memory.lose()

    def _keep(self, buffer: RowBuffer) -> None:
        if buffer.slot is None:
            self._spares.keep(buffer)
        else:
            self.memory.give_back(buffer.slot)

    def is_due(self, now: float) -> bool:
        """Return whether what is filled so far is to be sent.

        To a queue at once, unless a message is under way: others' rows would overtake these.
        """
        if self.fill_at is None:
            return False
        return now >= self.fill_at or (self.outbox.queue and not self.outbox.entries)

    def seal(self) -> None:
        """Make a message of what is filled so far."""
        buffer = self.buffer
        if buffer is None or not buffer.count:
            self.buffer = self.fill_at = None
            return
        self._put_buffer(buffer)

    def seal_full(self) -> None:
        """`seal`, if there is no room for another row."""
        if self.buffer is not None and self.buffer.count >= self.buffer.limit:
            self.seal()

    def _put_buffer(self, buffer: RowBuffer) -> None:
        payload = buffer.sealed()
        self._put(Entry(payload, buffer.count, payload.nbytes), True)
        if payload.buffer is None:
            self._keep(buffer)

    def end_streams(self, numbers: Iterable[int]) -> None:
        """End the episodes of these streams, whether there is room for the message or not."""
        assert self.packer is not None
        self._mend()
        self._put(_cut_of(self.packer.cut(numbers)))

    def _mend(self) -> None:
        """End the streams that miss rows, before a row is taken for their continuation."""
        if self._progress.broken:
            assert self.packer is not None
            self._put(_cut_of(self.packer.cut(self._progress.broken)))
            self._progress.broken = set()  # after it: an end that is sent twice does no harm

    def _put(self, entry: Entry, of_buffer: bool = False) -> None:
        """Add a message. ``of_buffer``: of what is filled, which is filled no more then."""
        entry.finals = entry.payload.finals
        progress, box = self._progress, self.outbox
        streams, steps = progress.streams | entry.payload.streams, progress.steps + entry.steps
        box.nbytes += entry.nbytes  # no call from here on: Ctrl-C comes before all of it or after
        box.entries += (entry,)
        if of_buffer:
            self.buffer = self.fill_at = None
        progress.streams, progress.steps = streams, steps

    def steps(self) -> int:
        """Return the steps that were added, also those that are not in a message yet."""
        buffer = self.buffer
        return self._progress.steps + (0 if buffer is None else buffer.count - buffer.finals)

    def hurry(self) -> int:
        """Ask for an ACK of all messages so far; return how many they are."""
        self.hurried = self.outbox.put_total
        return self.hurried

    def reopened(self, applied: int, resumed: bool) -> int:
        """See `Outbox.reopened`; the streams of lost rows are ended first."""
        streams, cut = self._progress.streams, None
        if streams:
            assert self.packer is not None
            cut = _cut_of(self.packer.cut(streams))
        return self.outbox.reopened(applied, resumed, cut)

    def over(self) -> None:
        """Free what no message needs: nothing is added any more."""
        self.fill_at = None
        self._spares.drop()
        self.memory.close()

    def _cut(self, taken: Sequence[Entry]) -> Entry:
        assert self.packer is not None
        streams = frozenset().union(*(entry.payload.streams for entry in taken))
        return _cut_of(self.packer.cut(streams))


def _cut_of(payload: InsertPayload) -> Entry:
    return Entry(payload, payload.insert.rows, payload.nbytes, cut=True)
