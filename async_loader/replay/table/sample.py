"""Draws batches: items are chosen under the table's lock, and their rows are read without it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.lifecycle import seconds
from async_loader.replay.arguments import positive
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.ragged import ragged
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Sampler, one_scale, shortcut
from async_loader.replay.table.batch_arrays import Target
from async_loader.replay.table.read_plans import ReadPlans
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.readers import reader_of
from async_loader.replay.table.source_sampler import drawing_sampler
from async_loader.replay.table.table import Drawn
from async_loader.replay.views import View
from async_loader.shm.segment import check_fits
from async_loader.source import Window

_REDRAWS = 8
_MUCH = 64 << 20
"""Bytes of a batch, from which on its memory is checked first."""


class TableSampler(ReadPlans):
    """Draws batches from a table. Any thread.

    # NOTE [draws]
    `take` chooses items under the lock. Short batches of small fields are read there too, and so
    are items that are used up: no other draw would show a row that is overwritten. All others are
    read without the lock, by `complete`, which draws again what was overwritten meanwhile.

    Parameters
    ----------
    table_state : TableState
    """

    def batch(
        self, sampler: Sampler, batch_size: int, view: View | None, timeout_s: float | None
    ) -> dict[str, Any]:
        """Draw a batch, nested as a step is. Waits as `arrays` does."""
        arrays = self.arrays(sampler, batch_size, view, timeout_s)
        read_plan = self.read_plan(view, sampler)
        return ragged(assembled(read_plan, arrays), read_plan.sequence)

    def arrays(
        self, sampler: Sampler, batch_size: int, view: View | None, timeout_s: float | None
    ) -> Sequence[Array]:
        """Draw a batch: one array for each field of the read plan's schema.

        Waits for enough items, and for the limiter; without a limiter and a ``timeout_s`` it raises
        NotEnoughData instead.
        """
        table_state = self._table_state
        batch_size = positive("batch_size", batch_size)
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        waits = table_state.limiter is not None or timeout_s is not None
        if not table_state.ready:
            if not waits:
                raise self.not_enough(batch_size)

            def begun() -> bool:
                table_state.check_open()
                return table_state.ready

            table_state.waiters.until(
                begun, "sample", lambda: "no step has been added yet", timeout_s
            )
        sampler = drawing_sampler(table_state, sampler, view)
        read_plan = self.read_plan(view, sampler, batch_size)
        readers = self._idle[id(read_plan)]
        try:
            reader = readers.pop()
        except IndexError:
            reader = reader_of(table_state, read_plan)
        with table_state.lock:
            taken = self.take(reader, sampler, batch_size)
        if taken is None:
            if not waits:
                raise self.not_enough(batch_size, sampler)

            def attempt() -> bool:
                nonlocal taken
                taken = self.take(reader, sampler, batch_size)
                return taken is not None

            table_state.waiters.until(
                attempt, "sample", lambda: self.why_not(sampler, batch_size), timeout_s
            )
        if isinstance(taken, Drawn):
            taken = self.complete(reader, sampler, taken)
        assert taken is not None
        readers.append(reader)
        return taken

    def fill(self, reader: ReplayReader, sampler: Sampler, target: Target) -> None:
        """Draw a batch into a target of the reader. `why_not` has returned ``None``."""
        with self._table_state.lock:
            taken = self.take(reader, sampler, len(target.rows), into=target)
        self.complete(reader, sampler, taken, target)

    def take(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        count: int,
        min_size: int = 1,
        into: Target | None = None,
    ) -> Sequence[Array] | Drawn | None:
        """Draw a batch, and read it if that is quick or the items are used up; ``None`` if it
        cannot be drawn now. Under the lock. See NOTE [draws].
        """
        table_state = self._table_state
        table_state.check_open()
        if self.why_not(sampler, count, min_size) is not None:
            return None
        table = table_state.table
        uses_up = bool(table_state.max_times_sampled)
        taken: Sequence[Array] | Drawn | None = None
        if not uses_up and reader.at_once(count):
            quick = shortcut(sampler, "draw_into", "draw")
            taken = None if quick is None else reader.drawn(count, quick, into)
            if taken is None:
                drawn = table.chosen(sampler, count)
                taken = reader.these(drawn.rows, drawn.weight, into)
        if taken is not None:
            table.sampled += count
        else:
            rows = count if sampler.repeats else min(count, table.items.rows)
            _check_memory(reader, rows, f"batch_size={count:,}")
            taken = self.now(sampler, count)
            if uses_up:
                return self._read(reader, sampler, taken, into, contextlib.nullcontext())
        if table_state.waiters.any_waits:
            table_state.waiters.ring()
        return taken

    def now(self, sampler: Sampler, count: int) -> Drawn:
        """Choose items, and count them. Under the lock, when `why_not` has returned ``None``."""
        table_state, table = self._table_state, self._table_state.table
        drawn = table.draw(sampler, count)
        if not table_state.max_times_sampled:
            table.sampled += len(drawn.ids)
        if table_state.waiters.any_waits:
            table_state.waiters.ring()
        return drawn

    def complete(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        taken: Sequence[Array] | Drawn | None,
        into: Target | None = None,
    ) -> Sequence[Array]:
        """Return the arrays of what `take` has drawn."""
        assert taken is not None
        if not isinstance(taken, Drawn):
            return taken
        return self._read(reader, sampler, taken, into, self._table_state.lock)

    def _read(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        drawn: Drawn,
        into: Target | None,
        lock: AbstractContextManager[Any],
    ) -> list[Array]:
        """Read drawn items, and others in place of those that were overwritten since.

        Spare rows make these rare. ``lock``: the table's, or a null context if the caller holds it.
        """
        reader.announce(drawn.ids)
        if into is None:
            window, gone = reader.take(drawn.ids, drawn.weight)
        else:
            window = Window(into.arrays)
            gone = reader.fill(drawn.ids, window, drawn.weight)
        table_state, first = self._table_state, drawn
        for _ in range(_REDRAWS):
            if not len(gone):
                return window.fields
            with lock:
                most = table_state.table.drawable(sampler)
                if most is not None and most < len(gone):
                    break
                again = table_state.table.draw(sampler, len(gone), again=True)
            part, still = reader.take(again.ids, again.weight)
            for array, one in zip(window.fields, part.fields, strict=True):
                array[gone] = one
            if first.weight is not None and again.weight is not None:
                window.fields[-1][...], first = _one_weight(window.fields[-1], gone, first, again)
            gone = gone[still]
        rng = np.random.default_rng(int(drawn.ids.sum()) & 0xFFFFFFFF)
        reader.replace(drawn.ids, gone, window, rng)
        return window.fields

    def these(self, ids: Ids, view: View | None) -> dict[str, Any]:
        """Read steps by id, in their order. Ids that are gone are left out."""
        table_state, read_plan = self._table_state, self.read_plan(view)
        with table_state.lock:
            table_state.check_open()
            table_state.catch_up()
            ids = ids[table_state.table.find(ids) >= 0]
        reader = reader_of(table_state, read_plan)
        _check_memory(reader, len(ids), f"{len(ids):,} ids")
        into, gone = reader.take(ids)
        arrays = (
            [np.delete(array, gone, axis=0) for array in into.fields] if len(gone) else into.fields
        )
        return ragged(assembled(read_plan, arrays), read_plan.sequence)

    def forget(self) -> None:
        """Drop idle readers, which a load has come between. Under the lock."""
        for readers in self._idle.values():
            readers.clear()


def _one_weight(weight: Array, gone: Ids, first: Drawn, again: Drawn) -> tuple[Array, Drawn]:
    """Return the weights of a batch of which the rows ``gone`` were drawn again;
    the batch as one draw.
    """
    assert again.weight is not None
    old, new = np.ones(len(weight), np.bool_), weight[gone]
    old[gone] = False
    both, scale = one_scale([(weight[old], first.scale), (new, again.scale)])
    whole = np.empty_like(weight)
    whole[old], whole[gone] = both[: int(old.sum())], both[int(old.sum()) :]
    return whole, Drawn(first.ids, whole, scale)


def _check_memory(reader: ReplayReader, rows: int, what: str) -> None:
    """Raise OutOfMemory if a batch of ``rows`` rows exceeds the free memory."""
    nbytes = rows * reader.row_bytes
    if nbytes > _MUCH:
        check_fits(nbytes, what)


def assembled(read_plan: ReadPlan, arrays: Sequence[Any]) -> dict[str, Any]:
    """Nest the arrays of a batch as its steps are."""
    root = read_plan.schema.structure
    if isinstance(root, tree.Node) and not any(root.children):
        return tree.fields(root.keys, arrays)
    rebuilt: dict[str, Any] = tree.rebuild_batch(root, arrays)
    return rebuilt
