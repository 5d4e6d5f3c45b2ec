"""Steps as the rows of messages, checked as a table checks them.

See NOTE [the hot path] in row_buffer.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError
from async_loader.feeder.client.insert_memory import InsertSlot
from async_loader.feeder.client.row_buffer import (
    Array,
    CheckedRows,
    InsertPayload,
    RowBuffer,
    StructRowWriter,
)
from async_loader.feeder.wire import FINAL, TERMINATED, TRUNCATED, RowLayout
from async_loader.replay.arguments import floats_of, one_float
from async_loader.replay.samplers import priority_rules
from async_loader.replay.table.episode_ends import Ends
from async_loader.replay.table.step_packer import StepPacker
from async_loader.replay.table.storage import StorageLayout
from async_loader.schema import Schema

_ENDS = TERMINATED | TRUNCATED


class RowPacker:
    """Checks steps of one schema. Any thread.

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

    def __init__(self, schema: Schema, batch_rows: int, message_bytes: int) -> None:
        self.schema = schema
        self.layout = RowLayout.of(schema)
        self.step_packer = StepPacker(StorageLayout.of(schema, 1), 0)
        self.message_rows = self.layout.rows_within(message_bytes)
        self.message_rows = max(
            1, self.message_rows - 1
        )  # and a final observation, which is in its step's message
        # of any message: with a final observation
        self.slot_bytes = self.layout.slot_places(self.message_rows + 1)[1]
        self.fill_rows = min(batch_rows, self.message_rows)
        self.fill_bytes = self.fill_rows * self.layout.row_bytes
        self._row_writer = StructRowWriter(schema, self.layout)
        self._values = self.step_packer.values
        self._said = Ends(schema)
        self.stored = self._said.stored | ({"done"} if self._said.done else frozenset())
        ends = {self.step_packer.terminated, self.step_packer.truncated, self.step_packer.done} - {
            -1
        }
        self._ends = tuple(
            self.schema.fields[i].name for i in sorted(ends)
        )  # what a step itself says of its end

    def goes_on(self, step: dict[str, Any], terminated: object, truncated: object) -> bool:
        """Whether the episode does after this step, which is given what it stores of that."""
        try:
            if terminated or truncated:
                return False
            for name in self.stored:
                if name not in step:
                    step[name] = self._said.value(name, False)
            for end in self._ends:
                if step.get(end):
                    return False
        except Exception:  # an array has no truth value: the full check explains it
            return False
        return True

    def row(
        self, step: dict[str, Any], terminated: object, truncated: object, final: object
    ) -> tuple[list[Any], int, list[Any] | None]:
        """Check one step: return its values, flags and final observation. May change ``step``.

        Raises
        ------
        SchemaError
        """
        said = self._said.into(step, terminated, truncated)
        values = self._values(step)
        ends = None if final is None else self.step_packer.final_values(final)
        return values, self.step_packer.flags(values, final is not None, said) & _ENDS, ends

    def final_values(self, final: object) -> list[Any]:
        return self.step_packer.final_values(final)

    @property
    def followed(self) -> list[int]:
        return self.step_packer.followed

    def rows(
        self, batch: dict[str, Any], streams: npt.NDArray[np.uint32], priority: object,
        final_obs: object, terminated: object = False, truncated: object = False,
    ) -> CheckedRows:  # fmt: skip
        """Check many steps; put final observations in between. May change ``batch``.

        Raises
        ------
        SchemaError, ConfigError
        """
        step_packer = self.step_packer
        ends = self._said.into_columns(batch, terminated, truncated)
        columns = step_packer.columns(batch)
        count = len(columns[0])
        flags = step_packer.column_ends(columns)
        if ends is not None:
            flags |= ends
        has_final, finals = np.zeros(count, np.bool_), None
        if final_obs is not None:
            finals, has_final = step_packer.final_columns(final_obs, (flags & _ENDS) != 0)
        said = (step_packer.check_ends(flags, has_final) & _ENDS).astype(np.uint32)
        priorities = given_priorities(priority, count)
        if priority is not None:
            priority_rules.check_sent(priorities)
        rows = CheckedRows(columns, streams, said, priorities)
        if finals is None or not has_final.any():
            return rows
        return self._with_finals(rows, finals, has_final)

    def _with_finals(
        self, rows: CheckedRows, finals: Sequence[Array], has_final: npt.NDArray[np.bool_]
    ) -> CheckedRows:
        ends = np.flatnonzero(has_final)
        steps = np.arange(len(rows)) + np.concatenate([[0], np.cumsum(has_final)[:-1]])
        after = steps[ends] + 1
        total = len(rows) + len(ends)

        def spread(values: Array) -> Array:
            whole = np.zeros((total, *values.shape[1:]), values.dtype)
            whole[steps] = values
            return whole

        columns = [spread(column) for column in rows.columns]
        for i, final in zip(self.followed, finals, strict=True):
            columns[i][after] = final[ends]
        streams, flags, priorities = (
            spread(rows.streams),
            spread(rows.flags),
            spread(rows.priorities),
        )
        streams[after], flags[after], priorities[after] = rows.streams[ends], FINAL, np.nan
        return CheckedRows(columns, streams, flags, priorities)

    def whole(self, rows: CheckedRows, first: int) -> int:
        """Return how many of the rows from ``first`` on fit into the next message."""
        count = min(len(rows) - first, self.message_rows)
        last = first + count
        return count + (last < len(rows) and bool(rows.flags[last] == FINAL))

    def buffer(self, rows: int, slot: InsertSlot | None = None) -> RowBuffer:
        """Return an empty buffer for ``rows`` rows, which lie in ``slot`` if it is given."""
        return RowBuffer(self.layout, rows, self._row_writer, slot)

    def cut(self, streams: Iterable[int]) -> InsertPayload:
        """Return a message that ends the open episodes of these streams."""
        listed = sorted(streams)
        buffer = self.buffer(max(1, len(listed)))
        for stream in listed:
            buffer.put_final((), (), stream, FINAL | TRUNCATED)
        payload = buffer.sealed()
        payload.buffer = None  # of a size that is not used again
        return payload


def checked_priority(priority: object) -> float:
    """Return one priority. Raises ConfigError if ``priority`` is not one."""
    given = one_float(priority, "priority")
    if not 0 <= given[0] <= priority_rules.LARGEST:
        priority_rules.check_sent(given)
    return float(given[0])


def given_priorities(priority: object, count: int) -> npt.NDArray[np.float64]:
    """Return priorities of ``count`` rows, NaN if ``priority`` is None.

    Raises ConfigError unless there is one for each row.
    """
    if priority is None:
        return np.full(count, np.nan)
    given = floats_of(priority, "priority")
    if given.size != count:
        raise ConfigError(f"priority has shape {given.shape} for {count} rows: one number for each")
    return given
