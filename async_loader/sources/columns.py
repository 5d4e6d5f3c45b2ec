"""Plain data as a source: a dict of equally long arrays, whose rows are drawn uniformly, with
replacement, by a seeded generator; or a callable, called with the batch size once per batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError, Unsupported
from async_loader.lifecycle import Patience
from async_loader.name_hints import describe
from async_loader.schema import RESERVED, Field, Schema, supported
from async_loader.shm.segment import Segment
from async_loader.source import END, Applied, Jobs, Plan, Reader, Ready, Rows, Samples, Seed, Window


class CallableSource:
    """``function(batch_size)`` gives a list of sample dicts, a list of zero-argument callables, a
    dict of arrays, or END.

    Parameters
    ----------
    function : callable
        Never called concurrently with itself.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Call the function and classify its result.

        Raises
        ------
        SchemaError
            For too few or too many entries, a mixture of jobs and samples, or any other type.
        """
        try:
            data = self.function(batch_size)
        except StopIteration:
            raise StopIteration(f"{self.name} raised it") from None
        if data is END:
            end: Plan = END
            return end
        if isinstance(data, Mapping):
            return Ready(data)
        if isinstance(data, str | bytes) or not isinstance(data, Sequence):
            raise SchemaError(f"{self.name} returned {type(data).__name__}: {EXPECTED}")
        self.check_count(len(data), batch_size)
        jobs = sum(map(callable, data))
        if jobs == len(data):
            return Jobs(data)
        if jobs:
            raise SchemaError(
                f"{self.name} returned {jobs} callables and {len(data) - jobs} other entries: "
                f"{EXPECTED}"
            )
        return Samples(data)

    def check_count(self, count: int, batch_size: int) -> None:
        """Raise SchemaError for too few or too many entries."""
        if count != batch_size:
            raise SchemaError(
                f"{self.name} returned {count} entries, batch_size is {batch_size}: {EXPECTED}"
            )

    @property
    def name(self) -> str:
        return f"data_source {describe(self.function)}"

    def reader(self) -> Reader | None:
        return None

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the function, if it has ``state_dict`` and ``load_state_dict``."""
        function: Any = self.function
        if not (hasattr(function, "state_dict") and hasattr(function, "load_state_dict")):
            return None
        return {"function": copy.deepcopy(function.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Resumable`."""
        function: Any = self.function
        function.load_state_dict(state["function"])

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        raise Unsupported(
            "a callable data_source has no priorities: use a ReplayBuffer with a prioritized "
            "sampler"
        )


EXPECTED = (
    "return batch_size sample dicts, batch_size zero-argument callables, one dict of "
    "arrays, or async_loader.END"
)


_ALIGN = 64


class ColumnsSource:
    """An offline dataset.

    Do not change the arrays while a loader reads them: worker processes may hold copies.

    Parameters
    ----------
    columns : mapping
        Nested at will; leaves are arrays or CPU tensors ``[n, ...]`` with the same ``n``.
    seed : int | None

    Raises
    ------
    ConfigError
        If it is empty, of unequal lengths, of a dtype that cannot be shared, or has a reserved
        name.
    """

    def __init__(self, columns: Mapping[str, Any], seed: int | None) -> None:
        structure = tree.structure_of(columns)
        names = list(tree.names(structure))
        arrays = [
            _column(n, v) for n, v in zip(names, tree.leaves(columns, structure), strict=True)
        ]
        self._rows = _common_length(names, arrays)
        reserved = [name for name in RESERVED if name in columns]
        if reserved:
            raise ConfigError(
                f"column {reserved[0]!r} has a reserved name ({', '.join(RESERVED)}): rename it"
            )
        fields = tuple(
            Field(a.shape[1:], a.dtype, name=n) for n, a in zip(names, arrays, strict=True)
        )
        self._reader = ColumnsReader(
            Schema(structure, fields).with_field("index", np.int64), SharedArrays(arrays)
        )
        self._rng = np.random.default_rng(seed)

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        return self.draw_now(batch_size)

    def draw_now(self, batch_size: int) -> Plan:
        """See `AnyThread`."""
        return Rows(self._rng.integers(0, self._rows, batch_size))

    def reader(self) -> Reader:
        return self._reader

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        return {"generator": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Resumable`."""
        self._rng.bit_generator.state = state["generator"]

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        raise Unsupported(
            "a dict of columns has no priorities: use a ReplayBuffer with a prioritized sampler"
        )


class SchemaReader:
    """Reads rows of a schema that is known from the beginning: a loader makes samples of them."""

    def fetch(self, index: npt.NDArray[np.int64], seed: Seed) -> Sequence[Any]:
        """Raise AssertionError: `read` is what a loader calls."""
        raise AssertionError("a reader with a schema is never asked for samples")


class ColumnsReader(SchemaReader):
    """Reads rows of the columns."""

    def __init__(self, schema: Schema, columns: SharedArrays) -> None:
        self.schema, self._columns = schema, columns

    def read(self, index: npt.NDArray[np.int64], into: Window, seed: Seed) -> None:
        *fields, index_out = into.fields
        for array, out in zip(self._columns.arrays, fields, strict=True):
            if out.flags.c_contiguous:
                # mode="clip" skips numpy's own bounds check, for which it would buffer the output.
                np.take(array, index, axis=0, out=out, mode="clip")
            else:
                out[...] = array[index]
        index_out[...] = index


class SharedArrays:
    """Arrays that forked workers inherit; spawned ones receive them in one segment."""

    def __init__(self, arrays: list[npt.NDArray[Any]], segment: Segment | None = None) -> None:
        self.arrays, self._segment = arrays, segment

    def __reduce__(self) -> tuple[Any, ...]:
        kinds = [(one.shape, one.dtype.str) for one in self.arrays]
        if self._segment is None:
            nbytes = sum(-(-one.nbytes // _ALIGN) * _ALIGN for one in self.arrays)
            segment = Segment.create(
                max(nbytes, _ALIGN),
                "the columns of the dataset, shared with workers that were not forked",
            )
            views = _attached(segment, kinds).arrays
            for view, array in zip(views, self.arrays, strict=True):
                view[...] = array
            self._segment, self.arrays = segment, views
        return _attached, (self._segment, kinds)


def _attached(segment: Segment, kinds: list[tuple[tuple[int, ...], str]]) -> SharedArrays:
    root, offset, views = segment.bytes(), 0, []
    for shape, dtype in kinds:
        view: npt.NDArray[Any] = np.ndarray(shape, dtype, root, offset)
        views.append(view)
        offset += -(-view.nbytes // _ALIGN) * _ALIGN
    return SharedArrays(views, segment)


def _column(name: str, value: object) -> npt.NDArray[Any]:
    array = tensors.as_array(value)
    if array is None and (text := tensors.unheld(value)) is not None:
        raise ConfigError(f"column {name!r} is {text}")
    if array is None or not supported(array.dtype) or not array.ndim:
        kind = type(value).__name__ if array is None else f"dtype {array.dtype}"
        what = "a single number" if np.ndim(cast(Any, value)) == 0 else kind
        raise ConfigError(
            f"column {name!r} is {what}: give an array of bool, integers, floats or complex "
            "numbers with one entry per step, as by numpy.asarray"
        )
    return np.ascontiguousarray(array)


def _common_length(names: list[str], arrays: list[npt.NDArray[Any]]) -> int:
    if not arrays:
        raise ConfigError("the data_source is an empty dict: give at least one column")
    lengths = {name: len(array) for name, array in zip(names, arrays, strict=True)}
    if len(set(lengths.values())) != 1:
        shortest = min(lengths, key=lengths.__getitem__)
        longest = max(lengths, key=lengths.__getitem__)
        raise ConfigError(
            f"columns are of unequal length: {shortest!r} has {lengths[shortest]} rows, "
            f"{longest!r} has {lengths[longest]}"
        )
    if not len(arrays[0]):
        raise ConfigError("the columns have 0 rows: give at least one")
    return len(arrays[0])
