"""Makes batches in this process: of samples, of arrays that are there, and of rows of a source.

Starts nothing.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import describe
from async_loader.pipeline.batch import Batch
from async_loader.pipeline.batches import arena, collate
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.pipeline.batches.slot_allocator import SlotAllocator
from async_loader.schema import Field, Schema, supported
from async_loader.source import Reader, Seed, Window, finishes


class Transform:
    """Calls the function with arrays that it may write into.

    Parameters
    ----------
    function : callable
        ``f(batch) -> batch``. If it has a parameter ``rng``, it is given a numpy Generator, which
        draws the same numbers for the same batch in any process or thread.
    first : callable | None
        Called with the batch before the function: see `async_loader.source.Finishing`.
    """

    def __init__(
        self, function: Callable[..., Any], first: Callable[[Any], Any] | None = None
    ) -> None:
        self._function, self._first = function, first
        self._takes_rng = _has_parameter(function, "rng")

    @classmethod
    def of(
        cls, source: object, function: Callable[..., Any] | None, collated: bool
    ) -> Transform | None:
        """Return what is called with each batch of a source; ``None``: nothing.

        Raises
        ------
        ConfigError
            If a collate_fn, which is given samples, comes before a source's own function.
        """
        first = finishes(source)
        if first is not None and collated:
            raise ConfigError(
                "collate_fn= is given samples of one length, and whole='ragged' makes batches "
                "without padding: say transform=..., which is given the whole batch, or whole=True"
            )
        if function is None:
            return None if first is None else cls(first)
        return cls(function, first)

    @staticmethod
    def arrays(batch: object) -> Any:
        """The batch with tensors as arrays, and arrays that may not be written copied."""
        return tree.transform(batch, _writable, leave=is_ignored)

    def __call__(self, arrays: object, seed: Seed) -> Any:
        """What the function returns, with numbers in dicts as arrays without dimensions.

        Raises
        ------
        SchemaError
            If that is None: it has changed the batch and forgotten to return it.
        BaseException
            What the function raises.
        """
        function = self._function
        arrays = arrays if self._first is None else self._first(arrays)
        if self._takes_rng:
            result = function(arrays, rng=np.random.default_rng(seed))
        else:
            result = function(arrays)
        if result is None:
            raise SchemaError(
                f"transform {describe(function)} returned None for batch {seed[1]}: return the "
                "batch, also where it was changed in place"
            )
        return _without_numbers(result)


def _without_numbers(value: Any) -> Any:
    if type(value) in (dict, tree.Fields):
        return {
            key: one if is_ignored(key) else _without_numbers(one) for key, one in value.items()
        }
    if type(value) not in (bool, int, float, complex):
        return value
    array = np.asarray(value)
    return value if array.dtype == object else array  # an int of more than 64 bits


def _writable(leaf: object) -> Any:
    array = tensors.as_array(leaf)
    if array is None:
        return leaf
    return array if array.flags.writeable else array.copy()


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, without a signature
        return False


class LocalCollator:
    """Used by the producer thread, and by the pool's thread to put unusual batches together.

    Parameters
    ----------
    slots : SlotAllocator
    collate_fn : callable | None
        The user's; sees the whole list of samples of a batch, in order.
    """

    def __init__(self, slots: SlotAllocator, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._slots = slots
        self._collate_fn = collate_fn
        self.schema: Schema | None = None
        """Of the samples that were collated last, while they have one."""
        # names, dtypes and shapes of the last batch of arrays, and how it was laid out
        self._last: tuple[list[tuple[Any, ...]], BatchLayout] | None = None

    def samples(self, samples: Sequence[Any]) -> Batch:
        """Collate, with the user's collate_fn or by the default rules."""
        if self._collate_fn is not None:
            return self.ready(self._collate_fn(list(samples)))
        # The schema of the last batch first: finding it anew costs as much as writing a few rows.
        batch = self._fill(self.schema, samples) or self._fill(
            collate.schema_of(samples[0]), samples
        )
        return batch or Batch(tree=collate.collate(samples))

    def made(
        self, make: Callable[..., Any], arguments: Iterator[tuple[Any, ...]], rows: int
    ) -> Batch:
        """As `samples`, of one call for each tuple of arguments."""
        if self._collate_fn is not None or self.schema is None:
            return self.samples([make(*each) for each in arguments])
        layout = self._slots.layout(self.schema, rows)
        buffer = self._slots.buffer_here(layout.nbytes)
        left = collate.fill_as_made(self.schema, make, arguments, layout.views(buffer.root))
        if left is None:
            return Batch(buffer, layout)
        del buffer  # free for another layout
        return self.samples(left)

    def _fill(self, schema: Schema | None, samples: Sequence[Any]) -> Batch | None:
        if schema is None:
            return None
        layout = self._slots.layout(schema, len(samples))
        buffer = self._slots.buffer_here(layout.nbytes)
        try:
            collate.fill(schema, samples, layout.views(buffer.root))
        except tree.Misfit:
            return None
        self.schema = schema
        return Batch(buffer, layout)

    def ready(self, batch: object) -> Batch:
        """Copy a batch of arrays, so that its maker may use them again; other objects in it stay as
        they are.
        """
        flat = _flat(batch)
        last = self._last
        if flat is not None and last is not None and last[0] == flat:
            assert isinstance(batch, dict)
            return self.arrays(last[1], list(batch.values()))
        structure = tree.structure_of(batch)
        values = list(tree.leaves(batch, structure))
        arrays = [tensors.as_array(value) for value in values]
        found = [a for a in arrays if a is not None and supported(a.dtype)]
        if not found or len(found) != len(arrays):
            rebuild = tree.rebuild_batch if type(batch) is tree.Fields else tree.rebuild
            return Batch(tree=rebuild(structure, map(tensors.copied, values)))
        fields = tuple(
            Field(a.shape, a.dtype, name=n)
            for n, a in zip(tree.names(structure), found, strict=True)
        )
        layout = BatchLayout.of_arrays(Schema(structure, fields), [a.shape for a in found])
        self._last = None if flat is None else (flat, layout)
        return self.arrays(layout, found)

    def arrays(self, layout: BatchLayout, arrays: Sequence[npt.NDArray[Any]]) -> Batch:
        """Copy arrays into memory of this layout."""
        buffer = self._slots.buffer_here(layout.nbytes)
        for view, array in zip(layout.views(buffer.root), arrays, strict=True):
            view[...] = array
        return Batch(buffer, layout)

    def rows(self, reader: Reader, index: npt.NDArray[np.int64], seed: Seed) -> Batch:
        """Let the reader do the work of a whole plan here."""
        schema = reader.schema
        if schema is None:
            return self.samples(reader.fetch(index, seed))
        layout = self._slots.layout(schema, len(index))
        buffer = self._slots.buffer_here(layout.nbytes)
        reader.read(index, Window(layout.views(buffer.root)), seed)
        return Batch(buffer, layout)

    def transformed(
        self, batch: Batch, transform: Transform, seed: Seed, *, compact: bool
    ) -> Batch:
        """What the user's function makes of a batch.

        Arrays that it hands on stay where they lie; what it adds is copied, so that its maker may
        use it again.

        Parameters
        ----------
        compact : bool
            A device follows, to which the block is copied as a whole.
        """
        layout, buffer = batch.layout, batch.buffer
        if layout is None or buffer is None:
            arrays = transform.arrays(batch.tree)
        else:
            arrays = transform.arrays(layout.rebuild(layout.views(buffer.root)))
        # looked up before the function may change the dict
        structure = tree.structure_of(arrays)
        given = list(tree.leaves(arrays, structure))
        result = transform(arrays, seed)
        after = tree.structure_of(result)
        same = layout is not None and after == structure
        if same and all(map(operator.is_, tree.leaves(result, after), given)):
            return batch
        if compact:
            return self.ready(result)
        kept = set(map(id, given))
        made = tree.transform(result, lambda one: one if id(one) in kept else _copied(one))
        return Batch(buffer, tree=made)


def _copied(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return tensors.copied(value)
    out = arena.empty(value.shape, value.dtype)
    out[...] = value
    return out


def _flat(batch: object) -> list[tuple[Any, ...]] | None:
    """What decides how a dict of arrays is laid out; ``None`` for anything else."""
    if type(batch) is not dict and type(batch) is not tree.Fields:
        return None
    found = []
    for name, value in batch.items():
        if type(value) is not np.ndarray:
            return None
        found.append((name, value.dtype, value.shape))
    return found
