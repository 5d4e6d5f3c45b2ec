"""Steps as the rows of messages, packed as those of a table are: see records.py, NOTE [records]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import zmq

from async_loader.feeder.client.insert_memory import LEAST_BYTES, InsertMemory, InsertSlot
from async_loader.feeder.wire import FINAL, TERMINATED, TRUNCATED, Insert, RowLayout, SlotInsert
from async_loader.replay.arguments import one_float
from async_loader.replay.episode_ends import Ends
from async_loader.replay.samplers import priority_rules
from async_loader.replay.table.records import Records, Rows
from async_loader.replay.table.step_packer import StepPacker
from async_loader.schema import Schema

NAN = float("nan")
_ENDS = TERMINATED | TRUNCATED


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
        self._said = Ends(schema)
        self.stored = self._said.stored

    def step(
        self, step: dict[str, Any], terminated: object, truncated: object, final: object
    ) -> tuple[list[Any], int, list[Any] | None]:
        """Pack one step: return its values, flags and final observation. May change ``step``.

        Raises
        ------
        SchemaError
        """
        said = self._said.into(step, terminated, truncated)
        values, flags = self.pack(step, said, final is not None)
        return values, flags & _ENDS, None if final is None else self.final(final)

    def batch(
        self, batch: dict[str, Any], streams: npt.NDArray[np.uint32], priority: object,
        final_obs: object, terminated: object = False, truncated: object = False,
    ) -> Rows:  # fmt: skip
        """Check many steps; put final observations in between. May change ``batch``.

        Raises
        ------
        SchemaError, ConfigError
        """
        rows = self.rows(batch, self._said.into_columns(batch, terminated, truncated), final_obs)
        rows.of(streams)["flags"] &= np.uint32(_ENDS | FINAL)
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

    def cut(self, streams: Iterable[int]) -> InsertPayload:
        """Return a message that ends the open episodes of these streams."""
        listed = sorted(streams)
        buffer = RowBuffer(self, max(1, len(listed)))
        for stream in listed:
            buffer.put(self.nothing.copy(), stream, FINAL | TRUNCATED, NAN)
        payload = buffer.sealed()
        payload.buffer = None  # of a size that is not used again
        return payload


class RowBuffer(Records):
    """A message that is being filled.

    ``slot``: memory that the feeder reads from, and in which the rows lie.
    """

    __slots__ = ("slot",)

    def __init__(self, packer: RowPacker, capacity: int, slot: InsertSlot | None = None) -> None:
        self.slot = slot
        layout = packer.layout
        sizes = layout.sizes(capacity)
        if slot is None:
            frames: list[Any] = [zmq.Frame(bytes(nbytes), copy=True) for nbytes in sizes]
        else:
            places, _ = layout.slot_places(capacity)
            frames = [slot.view[at : at + size] for at, size in zip(places, sizes, strict=True)]
            frames[0][:] = bytes(sizes[0])  # gaps between fields are sent too
        super().__init__(layout, packer.pack_into, capacity, frames)

    @property
    def nbytes(self) -> int:
        """Bytes of the full buffer."""
        return self.capacity * self.layout.row_bytes

    def emptied(self) -> RowBuffer:
        """Empty the buffer and return it. Its rows must be acknowledged."""
        self.count, self.limit = 0, self.capacity
        return self

    def sealed(self) -> InsertPayload:
        """Return the payload.

        A full buffer, and one that fills a slot in part, is not copied: refill it only once it is
        acknowledged.
        """
        n, layout = self.count, self.layout
        frames, nbytes = self.frames, n * layout.row_bytes
        buffer: RowBuffer | None = self
        if n < self.capacity:
            sizes = layout.sizes(n)
            frames = [memoryview(one)[:size] for one, size in zip(frames, sizes, strict=True)]
            if self.slot is None or nbytes < LEAST_BYTES:
                frames, buffer = [zmq.Frame(one, copy=True) for one in frames], None
        streams = frozenset(np.unique(self.heads["stream"][:n]).tolist())
        return InsertPayload(Insert(n, frames), nbytes, self.finals, streams, buffer)


@dataclass(slots=True, eq=False)
class InsertPayload:
    """An INSERT that is kept until it is acknowledged.

    Attributes
    ----------
    finals : int
        Rows that are not steps.
    streams : frozenset of int
        Streams that it continues.
    buffer : RowBuffer | None
        The buffer that holds its rows; ``None`` if they were copied out.
    over_socket : bool
        Whether its rows were sent, not only the number of their slot.
    """

    insert: Insert
    nbytes: int
    finals: int
    streams: frozenset[int]
    buffer: RowBuffer | None
    over_socket: bool = False

    def in_slot(self, memory: InsertMemory) -> SlotInsert | None:
        """Return the INSERT that names the slot of its rows; ``None`` if the feeder has no such
        slot.
        """
        slot = None if self.buffer is None else self.buffer.slot
        if self.buffer is None or slot is None or not memory.has(slot):
            return None
        return SlotInsert(self.insert.rows, slot.number, self.buffer.capacity)


def ended(rows: Rows) -> list[int]:
    """Return the streams whose last row here ends an episode."""
    assert rows.heads is not None
    streams, flags = rows.heads["stream"], rows.heads["flags"]
    last = len(rows) - 1 - np.unique(streams[::-1], return_index=True)[1]
    return [int(one) for one in streams[last[flags[last] != 0]]]


def checked_priority(priority: object) -> float:
    """Return one priority. Raises ConfigError if ``priority`` is not one."""
    given = one_float(priority, "priority")
    priority_rules.check_sent(given)
    return float(given[0])
