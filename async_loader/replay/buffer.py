"""ReplayBuffer: a ring of steps in shared memory, and the loader's source. Holds its lock for writing, never for reading."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import CannotSend, ConfigError, SchemaError, Unsupported
from async_loader.lifecycle import Bell, Patience
from async_loader.replay.fitting import Fit
from async_loader.replay.reader import ReplayReader
from async_loader.replay.sampler import Uniform
from async_loader.replay.source import ReplaySource
from async_loader.replay.storage import Storage, StorageLayout
from async_loader.schema import RESERVED, Field, Schema, kind_of
from async_loader.source import Applied, Rows

Ids = npt.NDArray[np.int64]


class ReplayBuffer:
    """The newest ``capacity`` steps, in shared memory, sampled uniformly. Also a Source for the loader.

    Any number of threads of the process that made it may add and sample. Worker processes of a loader read its memory
    directly, without a lock. A forked child may sample (it draws what its parent draws) and cannot add.

    Parameters
    ----------
    capacity : int
        Steps.
    schema : Schema | sequence of Field | (nested) dict of ``Field | (shape, dtype) | dtype``, optional
        What a step is. By default it is taken from the first step: arrays as they are, Python floats as float32,
        Python ints as int64. `index`, `weight` and `stream` are reserved names.
    seed : int, optional
        The same seed and the same calls give the same samples; what a loader draws is a sequence of its own.

    Raises
    ------
    ConfigError
        If the capacity is not a positive integer.
    SchemaError
        For a schema that cannot be stored.
    OutOfMemory
        If a schema is given and a full buffer would not fit into the free memory; without one, at the first step.

    Examples
    --------
    >>> buffer = ReplayBuffer(1000, seed=0)
    >>> buffer.add(obs=np.zeros(4, np.float32), action=1, reward=0.5)
    0
    >>> sorted(buffer.sample(32))
    ['action', 'index', 'obs', 'reward']
    """

    def __init__(self, capacity: int, schema: Any = None, *, seed: int | None = None) -> None:
        self._capacity = _positive("capacity", capacity)
        sequence = np.random.SeedSequence(seed)
        for_sample, for_plan = sequence.spawn(2)
        self._sampler = Uniform(for_sample)
        self._planner = Uniform(for_plan)
        self._lock = threading.Lock()
        self._bells: list[Bell] = []
        self._idle: list[ReplayReader] = []  # one per thread that samples at the same time
        self._foreign = False
        self._schema: Schema | None = None
        self._storage: Storage | None = None
        if schema is not None:
            self._allocate(Schema.of(schema))
        _buffers.add(self)

    @property
    def capacity(self) -> int:
        """Steps that are kept."""
        return self._capacity

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the first one if no schema was given."""
        return self._schema

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that a full buffer takes; 0 while the schema is unknown."""
        return 0 if self._storage is None else self._storage.layout.nbytes

    def __len__(self) -> int:
        """Steps that can be drawn."""
        return 0 if self._storage is None else min(self._storage.published(), self._capacity)

    def add(self, step: Mapping[str, Any] | None = None, /, **fields: Any) -> int:
        """Add one step, as a (nested) dict or as keywords; the oldest makes room.

        Parameters
        ----------
        step : mapping
            Numbers, numpy arrays and CPU tensors, shaped like the schema. A value is taken when a row can hold it
            unchanged, apart from rounding floats to the field's precision (fitting.py, NOTE [what fits]).

        Returns
        -------
        int
            The step's id: 64 bits, counting from 0, never reused.

        Raises
        ------
        SchemaError
            Names the field that does not fit. Nothing was written.
        OutOfMemory
            At the first step, if a full buffer would not fit.
        """
        step = _one(step, fields, "step")
        storage = self._storage or self._start(step, Schema.of_step)
        values = self._leaves(step)
        for i, (fit, dtype, shape) in enumerate(self._fits):
            value = values[i]
            if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
                values[i] = fit.value(value)
        with self._lock:
            self._own()
            new = storage.append(values)
            if self._bells:
                self._ring()
        return new

    def extend(self, batch: Mapping[str, Any] | None = None, /, **fields: Any) -> Ids:
        """Add many steps: a (nested) dict of equally long arrays or tensors ``[rows, ...]``, of any length.

        Their ids are consecutive. Of more than ``capacity`` rows the last ones stay.

        Returns
        -------
        int64 array [rows]
            Their ids.

        Raises
        ------
        SchemaError
            Names the field that does not fit, or the lengths that differ. Nothing was written.
        OutOfMemory
            As in `add`.
        """
        batch = _one(batch, fields, "batch")
        storage = self._storage or self._start(batch, _schema_of_columns)
        columns = [fit.column(v) for (fit, _, _), v in zip(self._fits, self._leaves(batch), strict=True)]
        count = _length(storage.layout.schema, columns)
        with self._lock:
            self._own()
            first = storage.extend(columns, count)
            if self._bells:
                self._ring()
        return np.arange(first, first + count)

    def sample(self, batch_size: int) -> dict[str, Any]:
        """Draw ``batch_size`` steps uniformly, with replacement.

        Returns
        -------
        dict
            Contiguous arrays ``[batch_size, ...]`` of your own, nested as the step was, and ``index``: int64 ids.

        Raises
        ------
        ConfigError
            If the buffer is empty, or ``batch_size`` is not a positive integer.
        """
        first, ids = self.draw(batch_size, self._sampler)
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = ReplayReader(self._rows())
        into = reader.fresh(len(ids))
        reader.fill(ids, first, into, self._sampler)
        self._idle.append(reader)
        return self._assemble(into.fields)

    def source(self, *, min_size: int = 1, seed: int | None = None) -> ReplaySource:
        """This buffer as a source of its own, for a second loader or another start.

        Parameters
        ----------
        min_size : int
            Steps that its batches wait for. (The buffer itself, as a source, waits for one.)
        seed : int, optional
        """
        return ReplaySource(self, min_size, Uniform(seed))

    # What the loader asks for: the Source protocol.

    def plan(self, batch_size: int, patience: Patience) -> Rows:
        """``batch_size`` ids, with replacement. Waits through ``patience`` until there is one step to draw.

        As `sample`, it repeats steps while there are few; ``source(min_size=...)`` waits for more.
        """
        return ReplaySource(self, 1, self._planner).plan(batch_size, patience)

    def reader(self) -> ReplayReader | None:
        """A new reader of the rows, for this or any other process.

        ``None`` while the schema is unknown, that is before the first step of a buffer that was given none. Once a
        ``plan`` has returned there is a reader: ask again then, and start worker processes with that one.
        """
        return None if self._storage is None else ReplayReader(self._storage)

    def feedback(self, index: Ids, priority: npt.NDArray[np.float64]) -> Applied:
        """Raises Unsupported: uniform sampling has no priorities."""
        return ReplaySource(self, 1, self._planner).feedback(index, priority)

    def waiting_for(self) -> str | None:
        """What `plan` is waiting for, in numbers; ``None`` when it need not wait."""
        return ReplaySource(self, 1, self._planner).waiting_for()

    def draw(self, count: int, sampler: Uniform) -> tuple[int, Ids]:
        """The first live id, and ``count`` ids of live steps."""
        first, end = (0, 0) if self._storage is None else self._storage.live()
        if _positive("batch_size", count) and first == end:
            raise ConfigError(f"cannot draw {count} steps, the buffer is empty: add steps first, or use a loader, which waits")
        return first, sampler.draw(first, end, count)

    @contextlib.contextmanager
    def ringing(self, bell: Bell) -> Iterator[None]:
        """Ring the bell whenever steps have been added."""
        with self._lock:
            self._bells.append(bell)
        try:
            yield
        finally:
            with self._lock:
                self._bells.remove(bell)

    def _ring(self) -> None:
        for bell in self._bells:
            bell.ring()

    def _start(self, first: Mapping[str, Any], schema_of: Callable[[Any], Schema]) -> Storage:
        """The storage, allocated for what the first step or batch is if no other thread was faster."""
        schema = schema_of(first)
        with self._lock:
            if self._storage is None:
                self._allocate(schema)
        return self._rows()

    def _allocate(self, schema: Schema) -> None:
        _storable(schema)
        root = schema.structure
        flat = root is not None and not any(root.children)
        keys = root.keys if root is not None else ()
        storage = Storage.create(StorageLayout.of(schema, self._capacity), self._lock)
        full = storage.layout.schema
        self._fits = [(Fit(field), field.dtype, field.shape) for field in schema.fields]
        self._leaves: Callable[[Any], list[Any]] = _Flat(schema, keys) if flat else schema.leaves
        self._assemble: Callable[[Any], dict[str, Any]] = _Zip((*keys, "index")) if flat else full.rebuild
        self._schema = schema
        self._storage = storage

    def _rows(self) -> Storage:
        assert self._storage is not None
        return self._storage

    def _own(self) -> None:
        if self._foreign:
            raise Unsupported("only the process that made a replay buffer adds to it: add from there, not from a fork")

    def __reduce__(self) -> Any:
        raise CannotSend("a ReplayBuffer stays in its process: send its reader(), or put a loader in front of it")


class _Flat:
    """The leaves of a step that is not nested, faster than `Schema.leaves`."""

    def __init__(self, schema: Schema, keys: Sequence[str]) -> None:
        self._schema = schema
        self._keys = keys

    def __call__(self, step: Mapping[str, Any]) -> list[Any]:
        if len(step) == len(self._keys):
            with contextlib.suppress(KeyError):
                return [step[key] for key in self._keys]
        return self._schema.leaves(step)


class _Zip:
    """A dict of arrays that is not nested, faster than `Schema.rebuild`."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def __call__(self, arrays: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._keys, arrays, strict=True))


def _positive(name: str, value: int) -> int:
    if type(value) is int and value > 0:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or operator.index(value) < 1:
        raise ConfigError(f"{name}={value!r}: it must be a positive integer")
    return operator.index(value)


def _one(given: Mapping[str, Any] | None, fields: dict[str, Any], what: str) -> Mapping[str, Any]:
    if given is None:
        return fields
    if fields:
        raise SchemaError(f"a {what} and the fields {sorted(fields)} as well: pass one or the other")
    if not isinstance(given, Mapping):
        raise SchemaError(f"a {what} is a dict of fields, not {type(given).__name__}")
    return given


def _storable(schema: Schema) -> None:
    root = schema.structure
    if root is None or root.kind is not dict:
        raise SchemaError("a step is a dict of fields: name what you store, as in add(obs=...)")
    strange = [key for key in root.keys if not isinstance(key, str)]
    if strange:
        raise SchemaError(f"a step has the key {strange[0]!r}: fields are named by strings")
    taken = [name for name in RESERVED if name in root.keys]
    if taken:
        raise SchemaError(f"a step has the field {taken[0]!r}: {', '.join(RESERVED)} are reserved names, choose another")


def _schema_of_columns(batch: Mapping[str, Any]) -> Schema:
    """The schema of one row of a batch, which must be a good one: the schema stays."""
    structure = tree.structure_of(batch)
    fields = []
    columns = list(tree.leaves(batch, structure))
    for name, value in zip(tree.names(structure), columns, strict=True):
        kind = kind_of(value)
        if kind is None or not kind[0]:
            raise SchemaError(
                f"field {name!r} is {type(value).__name__}, not an array or tensor [rows, ...]: "
                "np.asarray for lists, add() for one step"
            )
        fields.append(Field(name, kind[0][1:], kind[1]))
    schema = Schema(structure, tuple(fields))
    _length(schema, columns)
    return schema


def _length(schema: Schema, columns: Sequence[Any]) -> int:
    lengths = {field.name: len(column) for field, column in zip(schema.fields, columns, strict=False)}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"columns of unequal length: {lengths}: give every field one value per row")
    return len(columns[0]) if columns else 0


_buffers: weakref.WeakSet[ReplayBuffer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for buffer in list(_buffers):
        buffer._foreign = True
        buffer._lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)
