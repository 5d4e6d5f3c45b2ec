"""One source of a mixture, with the rows that it has planned and no batch has taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError
from async_loader.schema import Field, Schema
from async_loader.shm.array_pool import ArrayPool
from async_loader.source import (
    END,
    Applied,
    Leasing,
    Plan,
    Reader,
    Ready,
    Resumable,
    Rows,
    Seed,
    Source,
    Window,
    state_of,
    waiting_for,
)
from async_loader.sources.mixture_rows import Array, Ids, numbers_of, own_ids
from async_loader.table import Table


def split_by_source(
    index: Any, sources: int, values: Mapping[str, Any]
) -> list[tuple[int, Ids, list[Any]]]:
    """Return the number of each source that has rows of ``index``, their ids in it, and their part
    of each of the (nested) values.

    Places of a sequence without a step, -1, are left out; see `in_all`.

    Raises
    ------
    ConfigError
        For rows of other mixtures, and values of another length.
    """
    given = tensors.to_ids(index)
    ids, axes = given.reshape(-1), given.shape
    numbers, parts = numbers_of(ids), []
    for number in np.unique(numbers[ids >= 0]).tolist():
        here = numbers == number
        if number >= sources:
            raise ConfigError(
                f"index {ids[here][0]} is of source {number}, of which there are {sources} at "
                "most: give the index of a batch of this table or mixture"
            )
        picked = [
            tree.transform(value, partial(_picked, name, here=here, axes=axes))
            for name, value in values.items()
        ]
        parts.append((number, own_ids(ids[here]), picked))
    return parts


def in_all(parts: Sequence[Applied], index: Any) -> Applied:
    """Add up what was applied in each source. Rows that are in no table, those of a negative index,
    count as stale, as they do for tables.
    """
    nowhere = int((tensors.to_ids(index) < 0).sum())
    return Applied(sum(one.applied for one in parts), sum(one.stale for one in parts) + nowhere)


def _picked(name: str, value: Any, here: Array, axes: tuple[int, ...]) -> Any:
    array = tensors.to_array(value)
    if not array.ndim:
        return array
    if array.shape[: len(axes)] == axes:
        array = array.reshape(-1, *array.shape[len(axes) :])
    elif array.size == len(here):
        array = array.reshape(-1)
    else:
        raise ConfigError(f"{len(here)} rows, and {name} has {len(array)}: one for each")
    return array[here]


_pool = ArrayPool()


def empty_rows(schema: Schema, count: int) -> list[Array]:
    """Return an array ``[count, ...]`` for each field."""
    return [_pool.array((count, *one.shape), one.dtype) for one in schema.fields]


class Piece(NamedTuple):
    """Rows of one source: one array ``[rows, ...]`` for each field of its schema, the lease of
    their batch, if it has one, and whether the batch ends with them. Also the state of the source
    before they were planned, and how many of the rows were taken.
    """

    arrays: list[Array]
    lease: object = None
    ends: bool = True
    before: dict[str, Any] | None = None
    taken: int = 0


@dataclass(eq=False)
class MixtureMember:
    """A source, its share, and rows of it that were planned and not taken.

    What was planned is kept when a wait for another source of the mixture ends in an error: the
    next plan goes on with it. Thread rule: that of `Source.plan`.

    Parameters
    ----------
    number : int
    source : Source
    share : Fraction
    table : Table | None
        That the source was made of.
    """

    number: int
    source: Source
    share: Fraction
    table: Table | None
    schema: Schema | None = None
    _own_reader: Reader | None = None
    _pieces: deque[Piece] = field(default_factory=deque)
    _held: int = 0
    _same: int = 0
    _passed: int = 0  # rows of the next piece that were taken before the state was

    @property
    def name(self) -> str:
        """For messages."""
        what = self.source if self.table is None else self.table
        return f"source {self.number} of the mixture ({type(what).__name__})"

    @property
    def reader(self) -> Reader | None:
        """The reader of its rows in this process; ``None`` before the source has a reader."""
        if self._own_reader is None:
            self._own_reader = self.source.reader()
            if self._own_reader is not None and self.schema is None:
                self.schema = self._own_reader.schema
        return self._own_reader

    def most(self, batch_size: int) -> int:
        """Return how many rows of a batch it gives at most."""
        whole = self.share * batch_size
        return -(-whole.numerator // whole.denominator)

    def fill(
        self, count: int, batch_size: int, ask: Callable[[Source, int], Plan | None], seed: Seed
    ) -> bool | None:
        """Plan until the next ``count`` rows are there. Return False if the source has ended, and
        ``None`` if ``ask``, which plans a number of rows, returns ``None``.

        A source without a reader delivers batches that were made elsewhere: it is asked for the
        same number each time.
        """
        while self._held < count:
            if self._same == 0 and self.reader is None:
                self._same = self.most(batch_size)
            wanted = self._same if self._own_reader is None else count - self._held
            # rows that are read here are all taken at once, but where a wait was cut short
            before = state_of(self.source) if self._own_reader is None else None
            plan = ask(self.source, wanted)
            if plan is None or plan is END:
                return None if plan is None else False
            piece = self._piece(plan, seed)._replace(before=before)
            if not len(piece.arrays[0]):
                raise ConfigError(f"{self.name} has planned no rows at all")
            self._pieces.append(piece)
            self._held += len(piece.arrays[0])
            if passed := min(self._passed, len(piece.arrays[0])):
                self._passed = 0
                self.take(passed)
        return True

    def state(self) -> tuple[dict[str, Any] | None, int]:
        """Return the state of the source before the rows that are next, and how many rows come
        between.
        """
        if not self._pieces or self._pieces[0].before is None:
            return state_of(self.source), self._passed
        return self._pieces[0].before, self._pieces[0].taken

    def load(self, state: dict[str, Any], taken: int) -> None:
        """Go on where a `state` was."""
        self._pieces.clear()
        self._held, self._passed = 0, taken
        cast(Resumable, self.source).load_state_dict(state)

    def _piece(self, plan: Plan, seed: Seed) -> Piece:
        if isinstance(plan, Rows) and self.reader is not None and self.schema is not None:
            arrays = empty_rows(self.schema, len(plan))
            self.reader.read(plan.index, Window(arrays), (*seed, self.number))
            return Piece(arrays)
        if not isinstance(plan, Ready):
            raise ConfigError(
                f"{self.name} plans {type(plan).__name__}, of no fixed fields: a mixture takes "
                "rows and batches, give a table or a dict of columns"
            )
        if self.schema is None:
            self.schema = _schema_of(plan.batch, self.name)
        try:
            leaves = tree.leaves(plan.batch, self.schema.structure)
            arrays = [_array(one, self.name) for one in leaves]
        except tree.Misfit as error:
            raise ConfigError(
                f"{self.name} delivers batches of different fields: {error}"
            ) from None
        return Piece(arrays if plan.lent else [one.copy() for one in arrays], plan.lease)

    def take(self, count: int) -> list[Piece]:
        """Take the next ``count`` rows, which are there."""
        taken: list[Piece] = []
        self._held -= count
        while count:
            piece = self._pieces.popleft()
            arrays = piece.arrays
            if len(arrays[0]) > count:
                rest = [one[count:] for one in arrays]
                self._pieces.appendleft(piece._replace(arrays=rest, taken=piece.taken + count))
                arrays = [one[:count] for one in arrays]
                piece = piece._replace(arrays=arrays, ends=False)
            taken.append(piece)
            count -= len(arrays[0])
        return taken

    def waiting_for(self) -> str | None:
        """Say what its plan waits for, with its name."""
        reason = waiting_for(self.source)
        return None if reason is None else f"{self.name}: {reason}"

    def release(self, timeout_s: float) -> None:
        """Give leased batches back, with the rows of them that are kept. See `Leasing.release`."""
        if any(piece.lease is not None for piece in self._pieces):
            self._pieces.clear()
            self._held = 0
        if isinstance(self.source, Leasing):
            self.source.release(timeout_s)


def _array(value: object, name: str) -> Array:
    array = value if type(value) is np.ndarray else tensors.as_array(value)
    if array is None or not array.ndim:
        raise ConfigError(f"{name} delivers a batch that is not of arrays [rows, ...]")
    return array


def _schema_of(batch: Any, name: str) -> Schema:
    structure = tree.structure_of(batch)
    arrays = [_array(one, name) for one in tree.leaves(batch, structure)]
    fields = tuple(
        Field(one.shape[1:], one.dtype, name=of)
        for of, one in zip(tree.names(structure), arrays, strict=True)
    )
    return Schema(structure, fields)
