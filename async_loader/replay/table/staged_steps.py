"""Steps that were added by themselves or in small batches and are not in their rows yet.

# NOTE [staged steps]
One call of the kernel that writes rows takes as long as ten small steps in it. So `add` copies a
step into columns here, and the kernel is called for many steps at once: by `TableWriting.finish`,
which every access to the table calls first, under the same lock. So no call can tell whether a step
was staged: ids, counts, draws and errors are those of a step that was written.

`extend` does the same with whole batches, where it saves their checks too: from the third of three
batches of one shape and the same streams on, a batch is compared with the one before. It is either
single steps or batches that are staged; the first of the other kind has them written.

A step is staged only where nothing can go wrong later: it has exactly the fields of the schema in
their dtypes, no priority and no final observation; no limiter waits, no writer of another process
holds rows, and the samplers are those of this package. All other steps are written at once.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.replay.array_types import Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.base.array_address import address_of
from async_loader.replay.base.field_table import ARRAY_STRIDE, NO_FIELDS, NO_PRIORITIES
from async_loader.replay.samplers import (
    Balanced,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    RankPrioritized,
    Recency,
    Uniform,
)
from async_loader.replay.table.last_streams import comparable
from async_loader.replay.table.staged_batches import StagedBatches, look, order
from async_loader.replay.table.step_packer import StepPacker, end_fields
from async_loader.replay.table.table import Table
from async_loader.replay.table.waiters import Waiters
from async_loader.schema import Field

_MOST = 64
_ROW_BYTES = 1 << 12
"""Bytes of a row, beyond which a second copy costs more than a call."""
_KNOWN: frozenset[type] = frozenset(
    (Balanced, Fifo, Lifo, MaxHeap, MinHeap, Prioritized, RankPrioritized, Recency, Uniform)
)
_FORMATS = {np.dtype(name).char: sign for name, sign in (
    ("bool", "?"), ("int8", "b"), ("uint8", "B"), ("int16", "h"), ("uint16", "H"),
    ("int32", "i"), ("uint32", "I"), ("int64", "q"), ("uint64", "Q"),
    ("float16", "e"), ("float32", "f"), ("float64", "d"),
)}  # fmt: skip
"""Formats of `struct` for numbers. It refuses what a field does not hold, as `FieldValidator`."""
NOT_STAGED = -1
"""What `StagedSteps.add` returns for a step that has to be written at once."""


class StagedSteps:
    """The steps that a table takes when it is used next. Under its lock, but for `add`.

    Parameters
    ----------
    step_packer : StepPacker
    lock, waiters : Lock, Waiters
        Of the table.

    Attributes
    ----------
    count : int
        Steps that are staged.
    stopped : bool
        Whether `add` and `extend` stage no more.
    """

    __slots__ = (
        "_are_batches",
        "_arrays",
        "_batches",
        "_ends",
        "_fields",
        "_first",
        "_get",
        "_get_batch",
        "_heads",
        "_lock",
        "_memory",
        "_pack_into",
        "_scalars",
        "_seen",
        "_size",
        "_step_packer",
        "_step_width",
        "_waiters",
        "_width",
        "count",
        "stopped",
    )

    def __init__(self, step_packer: StepPacker, lock: threading.Lock, waiters: Waiters) -> None:
        self._step_packer = step_packer
        self._lock, self._waiters = lock, waiters
        fields = step_packer.schema.fields
        self._width = len(fields)
        # A step whose end is an array is written at once: here it would be compared as bytes.
        self._step_width = -1 if any(fields[i].shape for i in step_packer.ends) else self._width
        self._get = _getter([field.name for field in fields])
        self._get_batch = _getter([fields[i].name for i in order(step_packer)])
        # two lists: a test in one loop over all would cost 15 ns a field
        self._scalars = [(i, _types(one)) for i, one in enumerate(fields) if _is_number(one)]
        self._arrays = [
            (i, one.dtype, one.shape) for i, one in enumerate(fields) if not _is_number(one)
        ]
        # As the kernel takes it, the fields of a step lie beside each other, without gaps.
        # Before them: the number of its stream, and its flags.
        packer = struct.Struct("=qq" + "".join(_format(field) for field in fields))
        self._pack_into, self._size = packer.pack_into, packer.size
        memory = np.zeros(_MOST * packer.size, np.uint8)
        self._memory = memory.data
        offsets = np.cumsum([16, *(field.nbytes for field in fields)])[:-1]
        self._fields = step_packer.fields_at(
            step_packer.everything, (address_of(memory) + offsets).tolist()
        )
        self._fields[:, ARRAY_STRIDE] = packer.size
        self._ends = step_packer.ends
        self._heads = np.ndarray((_MOST, 2), np.int64, memory, strides=(packer.size, 8))
        self._first = 0
        self.count = 0
        self.stopped = False
        # What batches look like that are staged, and whether steps of such are staged now.
        self._batches: StagedBatches | None = None
        self._are_batches = False
        self._seen: object = None

    @staticmethod
    def suits(table: Table) -> bool:
        """Return whether steps of this table can be staged, as far as it does not change."""
        schema = table.storage.layout.schema
        root, ends = schema.structure, end_fields(schema)
        return (
            table.free is None
            and not table.uses_up
            and schema.nbytes <= _ROW_BYTES
            and isinstance(root, tree.Node)
            and root.kind is dict
            and not any(root.children)
            and all(field.dtype.isnative for field in schema.fields)
            and all(schema.fields[i].dtype.char in _FORMATS for i in ends if i >= 0)
        )

    @staticmethod
    def allowed(table: Table) -> bool:
        """Return whether steps may be staged now.

        Errors of samplers belong to the call that adds the step, and the first step of a stream
        after a load ends its old episode.
        """
        if table.stale or any(type(one) not in _KNOWN for one in table.samplers):
            return False
        try:
            for one in table.prioritized:
                one.check(np.full(1, np.nan))
        except ConfigError:  # it takes no step without a priority
            return False
        return True

    def add(
        self,
        table: Table,
        step: Mapping[str, Any],
        stream: Hashable,
        said: int,
    ) -> int:
        """Stage one step and return its id; `NOT_STAGED` if it has to be written at once, or to be
        refused. Takes the lock.

        ``table``: that of the lock. It holds these steps, so they hold no reference to it. The
        other parameters are as in `Inserter.add`.
        """
        if len(step) != self._step_width or type(step) is not dict:
            return NOT_STAGED
        try:
            values = list(self._get(step))
        except KeyError:
            return NOT_STAGED
        for i, types in self._scalars:
            if type(values[i]) not in types:
                return NOT_STAGED
        for i, dtype, shape in self._arrays:
            value = values[i]
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                return NOT_STAGED
            values[i] = value.tobytes()
        for i in self._ends:
            if values[i]:
                said = self._step_packer.flags(values, False, said)
                break
        else:
            if said:
                said = self._step_packer.check_end(said, False)
        with self._lock:
            number = table.streams.get(stream)
            if number is None or self.stopped or table.unfinished:
                return NOT_STAGED
            place = self.count
            if self._are_batches:
                if place:
                    return NOT_STAGED
                self._are_batches = False
            try:
                self._pack_into(self._memory, place * self._size, number, said, *values)
            except (struct.error, OverflowError):  # a number that the field cannot hold
                return NOT_STAGED
            if not place:
                self._first = int(table.g[r.CURSOR])
            id_ = self._first + place
            self.count = place + 1
            if place + 1 == _MOST or self._waiters.any_waits:
                try:
                    table.finish()
                finally:
                    self._waiters.ring()
        return id_

    def extend(
        self,
        table: Table,
        batch: Mapping[str, Any],
        stream: object,
        said: Ids | None,
        ids: Callable[[int], Ids] | None,
    ) -> Ids | None:
        """As `add`, for a batch. Return its ids; ``None`` if it is not staged.

        The other parameters are as in `Inserter.extend`.
        """
        batches = self._batches
        if batches is None or len(batch) != self._width or type(batch) is not dict:
            return None
        try:
            values: Sequence[Any] = self._get_batch(batch)
            if list(map(look, values)) != batches.looks:
                return None
        except (KeyError, AttributeError):
            return None
        given = batches.given
        if stream is not given and comparable(stream) != given:
            return None
        if batches.converted:
            values = batches.convert(values)
        try:
            packed = b"".join(values)
        except TypeError:  # not contiguous, or without a buffer, as times
            return None
        flags = None
        if said is not None or not packed.endswith(batches.no_ends):
            flags = batches.flags(values, said)
        rows = batches.rows
        new = None if ids is None else ids(rows)
        with self._lock:
            if (
                self._batches is not batches
                or batches.known_to is not table.streams
                or self.stopped
                or table.unfinished
            ):
                return None
            if self.count and not self._are_batches:
                table.finish()
            place = self.count
            if not place:
                batches.begin(int(table.g[r.CURSOR]))
            batches.flag(place, flags)
            batches.pack_into(batches.memory, place * batches.row_bytes, packed)
            after = place + rows
            made = batches.ids[place:after]
            if new is None:
                new = made
            self.count, self._are_batches, new[:] = after, True, made
            if after == batches.most or self._waiters.any_waits:
                try:
                    table.finish()
                finally:
                    self._waiters.ring()
        return new

    def prepare(self, table: Table, batch: Mapping[str, Any], stream: object, numbers: Ids) -> None:
        """Prepare for batches like this one, which was written. Under the lock.

        Not for the first of a kind: batches of changing lengths would each prepare for nothing.
        """
        if len(batch) != self._width or type(batch) is not dict:
            return
        seen = given, _ = comparable(stream), len(numbers)
        if seen == self._seen:
            self._batches = StagedBatches.of(
                self._step_packer, self._get_batch(batch), given, numbers, table.streams
            )
        self._seen = seen

    def taken(self) -> tuple[Any, ...]:
        """See `write.Staged`."""
        count = self.count
        if self._are_batches:
            assert self._batches is not None
            return self._batches.taken(count)
        return (
            self._fields,
            (count, 0),
            NO_FIELDS,
            count,
            self._heads[:count, 0].copy(),
            self._heads[:count, 1].copy(),
            NO_PRIORITIES,
            np.full(count, -1, np.int64),
            self,
        )


def _getter(names: list[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return what takes the values of these names out of a step."""
    if len(names) > 1:
        return itemgetter(*names)
    (name,) = names
    return lambda step: (step[name],)


def _is_number(field: Field) -> bool:
    """Return whether `struct` has a format for the field's values."""
    return not field.shape and field.dtype.char in _FORMATS


def _types(field: Field) -> frozenset[type]:
    """Return the types of values that a number's place in the format takes as they are."""
    dtype = field.dtype
    others = {"b": (), "f": (float, np.float64)}.get(dtype.kind, (int,))
    return frozenset((dtype.type, bool, *others))


def _format(field: Field) -> str:
    """Return the format of a field for `struct`."""
    if not _is_number(field):
        return f"{field.nbytes}s"
    return _FORMATS[field.dtype.char]
