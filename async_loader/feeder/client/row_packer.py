"""Steps as the rows of messages, packed as those of a table are: see records.py, NOTE [records]."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

from async_loader.errors import ConfigError
from async_loader.feeder.client.outbox import Entry
from async_loader.feeder.wire import (
    FINAL,
    STREAMS,
    TERMINATED,
    TRUNCATED,
    Insert,
    RowLayout,
)
from async_loader.replay.arguments import one_float
from async_loader.replay.episode_ends import Ends
from async_loader.replay.samplers import priority_rules
from async_loader.replay.stream_names import MANY_STREAMS, stream_name
from async_loader.replay.table.records import Records, Rows
from async_loader.replay.table.step_packer import StepPacker
from async_loader.schema import Schema

NAN = float("nan")
OWN = 0
"""The number of a writer's own stream."""
SLOT_FROM = 64 << 10
"""Bytes of a message's rows, from which on they lie in a slot: below the socket costs little
more."""
ENDS = TERMINATED | TRUNCATED
Slot = tuple[int, memoryview]
"""The number of a slot, and its memory."""


class RowPacker(StepPacker):
    """Checks and packs steps of one schema. Any thread.

    Parameters
    ----------
    schema : Schema
    batch_rows : int
        Rows of a message that is filled step by step.
    message_bytes : int
        Bytes of any message.

    Raises
    ------
    SchemaError, Malformed
        For a schema that cannot be sent, or of which one row is larger than a message.
    """

    layout: RowLayout

    def __init__(self, schema: Schema, batch_rows: int, message_bytes: int) -> None:
        layout = RowLayout.of(schema)
        super().__init__(schema, layout)
        # and a final observation, which is in its step's message
        self.message_rows = max(1, layout.rows_within(message_bytes) - 1)
        # of any message: with a final observation
        self.slot_bytes = layout.slot_places(self.message_rows + 1)[1]
        self.fill_rows = min(batch_rows, self.message_rows)
        self.fill_bytes = self.fill_rows * layout.row_bytes
        self.writer_ends = Ends(schema)
        self.stored = self.writer_ends.stored

    def check(
        self, step: dict[str, Any], terminated: object, truncated: object, final: object
    ) -> None:
        """Raise SchemaError for a step that cannot be packed. May change it."""
        self.pack(step, self.writer_ends.into(step, terminated, truncated), final is not None)
        if final is not None:
            self.final(final)

    def batch(
        self, batch: dict[str, Any], streams: npt.NDArray[np.uint32], priority: object,
        final_obs: object, terminated: object = False, truncated: object = False,
    ) -> Rows:  # fmt: skip
        """Check many steps; put final observations in between. May change ``batch``.

        Raises
        ------
        SchemaError, ConfigError
        """
        rows = self.rows(
            batch, self.writer_ends.into_columns(batch, terminated, truncated), final_obs, True
        )
        rows.of(streams)["flags"] &= np.uint32(ENDS | FINAL)
        if priority is not None:
            priorities = priority_rules.column_of(priority, rows.steps)
            priority_rules.check_sent(priorities)
            rows.prioritize(priorities)
        return rows

    def whole(self, rows: Rows, first: int) -> int:
        """Return how many of the rows from ``first`` on fit into the next message."""
        assert rows.heads is not None
        count = min(len(rows) - first, self.message_rows)
        last = first + count
        return count + (last < len(rows) and bool(rows.heads["flags"][last] == FINAL))

    def cut(self, streams: Iterable[int]) -> Entry:
        """Return a message that ends the open episodes of these streams."""
        listed = sorted(streams)
        buffer = RowBuffer(self, max(1, len(listed)))
        for stream in listed:
            buffer.put(self.nothing, stream, FINAL | TRUNCATED, NAN)
        entry = buffer.sealed()
        entry.buffer = None  # of a size that is not used again
        return entry


class RowBuffer(Records):
    """A message that is being filled.

    ``slot``: memory that the feeder reads from, and in which the rows lie.
    """

    __slots__ = ("slot",)

    def __init__(self, packer: RowPacker, capacity: int, slot: Slot | None = None) -> None:
        self.slot = slot
        layout = packer.layout
        sizes = layout.sizes(capacity)
        if slot is None:
            frames: list[Any] = [zmq.Frame(bytes(nbytes), copy=True) for nbytes in sizes]
        else:
            places, _ = layout.slot_places(capacity)
            frames = [slot[1][at : at + size] for at, size in zip(places, sizes, strict=True)]
            frames[0][:] = bytes(sizes[0])  # gaps between fields are sent too
        super().__init__(layout, capacity, frames)

    def sealed(self) -> Entry:
        """Return the message.

        A full buffer, and one that fills a slot in part, is not copied: refill it only once it is
        acknowledged.
        """
        n, layout = self.count, self.layout
        frames, nbytes = self.frames, n * layout.row_bytes
        buffer: RowBuffer | None = self
        if n < self.capacity:
            sizes = layout.sizes(n)
            frames = [memoryview(one)[:size] for one, size in zip(frames, sizes, strict=True)]
            if self.slot is None or nbytes < SLOT_FROM:
                frames, buffer = [zmq.Frame(one, copy=True) for one in frames], None
        streams = frozenset(self.heads["stream"][:n].tolist())
        return Entry(Insert(n, frames), n, nbytes, self.finals, streams, buffer)


class StreamNumbers:
    """Numbers of a writer's streams, by name. Any thread.

    The table knows a stream by its producer and its number, and a sequence may go on into the next
    episode of its stream. So a stream keeps its number from episode to episode, until many others
    have come since its last one: then another stream has the number.

    Parameters
    ----------
    own : hashable
        The writer's own stream: number `OWN`.

    Attributes
    ----------
    numbers : dict
        By name.
    names : dict
        By number: of the streams with an open episode.
    most : int
        Above all numbers that were used.
    """

    def __init__(self, own: Hashable) -> None:
        self.own, self.most = own, 1
        self.numbers: dict[Hashable, int] = {own: OWN}
        self.names: dict[int, Hashable] = {}
        self._idle: dict[int, Hashable] = {}  # those that ended last come last
        self._lock = threading.Lock()

    def number(self, name: object) -> int:
        """Return the number of a stream, whose episode goes on.

        Raises ConfigError for a wrong name.
        """
        kind = type(name)
        found = name if kind is int or kind is str else stream_name(name)
        number = self.numbers.get(found)
        return number if number in self.names else self._begun(found)

    def open_number(self, name: object) -> int | None:
        """Return the number of a stream with an open episode."""
        number = OWN if name is None else self.numbers.get(stream_name(name))
        return number if number in self.names else None

    def _begun(self, name: Hashable) -> int:
        with self._lock:
            number = self.numbers.get(name)
            if number is None:
                number = self.numbers[name] = self._free(name)
            self._idle.pop(number, None)
            self.names[number] = name
            return number

    def _free(self, name: Hashable) -> int:
        if self._idle and self.most >= min(STREAMS, max(MANY_STREAMS, 2 * len(self.names))):
            number = next(iter(self._idle))
            del self.numbers[self._idle.pop(number)]
            return number
        if self.most == STREAMS:
            text = (
                f"{STREAMS} streams of this writer have open episodes, which is all that a feeder"
            )
            raise ConfigError(f"stream={name!r}: {text} takes: end some, or use another writer")
        self.most += 1
        return self.most - 1

    def ended(self, numbers: Iterable[int]) -> None:
        """Note that the episodes of these streams have ended."""
        with self._lock:
            for number in numbers:
                name = self.names.pop(number, None)
                if number and name is not None:
                    self._idle[number] = name


def ended(rows: Rows) -> list[int]:
    """Return the streams whose last row here ends an episode."""
    assert rows.heads is not None
    last = dict(zip(rows.heads["stream"].tolist(), rows.heads["flags"].tolist(), strict=True))
    return [stream for stream, flags in last.items() if flags]


def checked_priority(priority: object) -> float:
    """Return one priority. Raises ConfigError if ``priority`` is not one."""
    given = one_float(priority, "priority")
    priority_rules.check_sent(given)
    return float(given[0])
