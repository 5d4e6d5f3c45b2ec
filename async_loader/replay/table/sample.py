"""Draws batches: items are chosen under the table's lock, and their rows are read without it."""

from __future__ import annotations

import contextlib
import functools
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
from async_loader.replay.samplers import Sampler, Uniform, one_scale, shortcut
from async_loader.replay.table.batch_arrays import Target
from async_loader.replay.table.read_plans import ReadPlans
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.readers import reader_of
from async_loader.replay.table.source_sampler import drawing_sampler
from async_loader.replay.table.table import Drawn
from async_loader.replay.table.undelivered import UndeliveredItems, joined
from async_loader.replay.views import View
from async_loader.shm.segment import check_fits
from async_loader.source import Window

_REDRAWS = 8
_MUCH = 64 << 20
"""Bytes of a batch, from which on its memory is checked first."""


class TableSampler(ReadPlans):
    """Draws batches from a table. Any thread.

    Parameters
    ----------
    table_state : TableState
    """

    def batch(
        self,
        sampler: Sampler,
        batch_size: int,
        view: View | None,
        timeout_s: float | None,
        taken: UndeliveredItems | None = None,
    ) -> dict[str, Any]:
        """Draw a batch, nested as a step is. Waits as `ids` does.

        Ctrl-C may come at any point: what was counted and not delivered is in ``taken``, see
        `take_back`.
        """
        arrays = self.arrays(sampler, batch_size, view, timeout_s, taken)
        read_plan = self.read_plan(view, sampler)
        return ragged(assembled(read_plan, arrays), read_plan.sequence)

    def take_back(self, taken: UndeliveredItems) -> None:
        """Take back what an interrupted call has drawn.

        Rows that were used up are kept for the next batch, others are not counted.
        """
        with self._table_state.lock:
            # each once
            arrays, count, taken.arrays, taken.counted = taken.arrays, taken.counted, (), 0
            if count:
                self._table_state.table.counted -= count
            if len(arrays):
                self._interrupted.keep(taken.key, arrays)
            self._table_state.waiters.ring()

    def arrays(
        self,
        sampler: Sampler,
        batch_size: int,
        view: View | None,
        timeout_s: float | None,
        taken: UndeliveredItems | None = None,
    ) -> Sequence[Array]:
        """Draw a batch: one array for each field of the read plan's schema. Waits as `ids` does."""
        table_state = self._table_state
        batch_size = positive("batch_size", batch_size)
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if not table_state.ready:
            if table_state.limiter is None and timeout_s is None:
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
        arrays = self.at_once(reader, sampler, batch_size) if reader.at_once(batch_size) else None
        if arrays is None:
            arrays = self._in_turn(
                reader, sampler, batch_size, timeout_s, taken or UndeliveredItems()
            )
        readers.append(reader)
        return arrays

    def fill(self, reader: ReplayReader, sampler: Sampler, target: Target) -> None:
        """Draw a batch into a target of the reader.

        `why_not` has returned ``None``, and nothing was drawn since.
        """
        count = len(target.rows)
        if (
            reader.at_once(count)
            and self.at_once(reader, sampler, count, target, asked=True) is not None
        ):
            return
        if target.parts and self._in_parts(reader, sampler, target.parts):
            return
        into = Window(target.arrays)
        drawn = self.ids(sampler, count, 0.0)
        reader.announce(drawn.ids)
        gone = reader.fill(drawn.ids, into, drawn.weight)
        if len(gone):
            self._draw_again(reader, sampler, drawn, gone, into, self._table_state.lock)

    def _in_parts(self, reader: ReplayReader, sampler: Sampler, parts: Sequence[Target]) -> bool:
        """Draw part by part if that gives what one draw gives. Return whether it did.

        Only a `Uniform` sampler with replacement is known to.
        """
        if type(sampler) is not Uniform or not sampler.repeats:
            return False
        return all(
            self.at_once(reader, sampler, len(part.rows), part) is not None for part in parts
        )

    def at_once(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        count: int,
        into: Target | None = None,
        asked: bool = False,
        min_size: int = 1,
    ) -> Sequence[Array] | None:
        """Draw and read under one lock, if that is quick and no limiter counts draws.

        Returns ``None`` if it is not, or a row that an item shows is missing.

        ``asked``: `why_not` has just returned ``None``.
        """
        table_state = self._table_state
        if table_state.limiter is not None or table_state.max_times_sampled:
            return None
        with table_state.lock:
            table_state.check_open()
            if not asked and self.why_not(sampler, count, min_size) is not None:
                return None
            quick = shortcut(sampler, "draw_into", "draw")
            arrays = None if quick is None else reader.drawn(count, quick, into)
            if arrays is None:
                drawn = table_state.table.chosen(sampler, count)
                arrays = reader.these(drawn.rows, drawn.weight, into)
                if arrays is None:
                    return None
            table_state.table.counted += count
            if table_state.waiters.any_waits:
                table_state.waiters.ring()
        return arrays

    def _in_turn(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        count: int,
        timeout_s: float | None,
        taken: UndeliveredItems,
    ) -> Sequence[Array]:
        """Draw under the lock, read without it, and check that no row was overwritten.

        Where each item counts its draws, all of it is done under the lock.
        """
        rows = count if sampler.repeats else min(count, self._table_state.table.items.rows)
        _check_memory(reader, rows, f"batch_size={count:,}")
        if self._table_state.max_times_sampled:
            return self._used_up(reader, sampler, count, timeout_s, taken)
        drawn = self.ids(sampler, count, timeout_s, taken)
        reader.announce(drawn.ids)
        into, gone = reader.take(drawn.ids, drawn.weight)
        if len(gone):
            self._draw_again(reader, sampler, drawn, gone, into, self._table_state.lock)
        return into.fields

    def _draw_again(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        drawn: Drawn,
        gone: Ids,
        into: Window,
        lock: AbstractContextManager[Any],
    ) -> None:
        """Draw others for items that were overwritten between draw and read.

        Spare rows make that rare.

        ``lock``: the table's, or a null context if the caller holds it.
        """
        table_state, first = self._table_state, drawn
        for _ in range(_REDRAWS):
            with lock:
                most = table_state.table.drawable(sampler)
                if most is not None and most < len(gone):
                    break
                again = table_state.table.draw(sampler, len(gone), again=True)
            part, still = reader.take(again.ids, again.weight)
            for array, one in zip(into.fields, part.fields, strict=True):
                array[gone] = one
            if first.weight is not None and again.weight is not None:
                into.fields[-1][...], first = _one_weight(into.fields[-1], gone, first, again)
            gone = gone[still]
            if not len(gone):
                return
        reader.replace(
            drawn.ids, gone, into, np.random.default_rng(int(drawn.ids.sum()) & 0xFFFFFFFF)
        )

    # -- items that are used up --------------------------------------------------------------------

    def _used_up(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        count: int,
        timeout_s: float | None,
        taken: UndeliveredItems,
    ) -> Sequence[Array]:
        """Draw and read under the lock: no other draw would show a row that is overwritten."""
        table_state = self._table_state
        taken.key = id(reader.read_plan)

        def attempt() -> bool:
            table_state.check_open()
            if self.why_not(sampler, count, key=taken.key) is not None:
                return False
            self.use_up(reader, sampler, count, taken)
            return True

        if table_state.limiter is None and timeout_s is None:
            with table_state.lock:
                done = attempt()
            if not done:
                raise self.not_enough(count)
        else:
            reason = functools.partial(self.why_not, sampler, count, key=taken.key)
            table_state.waiters.until(attempt, "sample", reason, timeout_s)
        return taken.arrays

    def use_up(
        self, reader: ReplayReader, sampler: Sampler, count: int, taken: UndeliveredItems
    ) -> None:
        """Put a batch into ``taken``: rows that interrupted calls have left, then new items.

        Under the lock. Wherever Ctrl-C comes, what was counted is in ``taken`` or is kept for the
        next batch.
        """
        table_state, table = self._table_state, self._table_state.table
        taken.key = id(reader.read_plan)
        old = self._interrupted.first(taken.key, count)
        try:
            if old.rows < count:
                drawn = table.draw(sampler, count - old.rows)
                into, gone = reader.take(drawn.ids, drawn.weight)
                # Overwritten by a writer of another process: not every table keeps its rows.
                if len(gone):
                    self._draw_again(reader, sampler, drawn, gone, into, contextlib.nullcontext())
                new: list[Array] = into.fields
            else:
                new = []
            arrays = joined(old.arrays, new)
        except BaseException:
            drawn = table.taken_back()
            if len(drawn.ids):
                self._interrupted.keep(taken.key, reader.take(drawn.ids, drawn.weight)[0].fields)
            raise
        # No call between these: Ctrl-C finds all or none.
        taken.arrays, table.undelivered, self._interrupted.by_plan = arrays, [], old.rest
        if table_state.waiters.any_waits:
            table_state.waiters.ring()

    def interrupted(self) -> int:
        """Return how many rows interrupted calls have left. Under the lock."""
        return self._interrupted.count()

    def ids(
        self,
        sampler: Sampler,
        count: int,
        timeout_s: float | None,
        taken: UndeliveredItems | None = None,
    ) -> Drawn:
        """Draw ``count`` items. Return their ids, and their weights if the sampler has any.

        Waits for enough items, and for the limiter; without a limiter and a ``timeout_s`` it raises
        NotEnoughData instead.
        """
        table_state, taken = self._table_state, taken or UndeliveredItems()
        if table_state.limiter is None and timeout_s is None:
            with table_state.lock:
                table_state.check_open()
                reason = self.why_not(sampler, count)
                if reason is None:
                    return self.now(sampler, count, taken)
            raise self.not_enough(count, sampler)
        drawn: list[Drawn] = []

        def attempt() -> bool:
            table_state.check_open()
            if self.why_not(sampler, count) is None:
                drawn.append(self.now(sampler, count, taken))
            return bool(drawn)

        table_state.waiters.until(
            attempt, "sample", lambda: self.why_not(sampler, count), timeout_s
        )
        return drawn[0]

    def now(self, sampler: Sampler, count: int, taken: UndeliveredItems | None = None) -> Drawn:
        """As `ids`, under the lock, when `why_not` has returned ``None``."""
        table_state, table = self._table_state, self._table_state.table
        taken = taken or UndeliveredItems()
        drawn = table.draw(sampler, count)
        drawn_now = 0 if table_state.max_times_sampled else len(drawn.ids)
        # no call between: Ctrl-C finds both or none
        table.counted, taken.counted = table.counted + drawn_now, drawn_now
        if table_state.waiters.any_waits:
            table_state.waiters.ring()
        return drawn

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
        """Drop the rows that interrupted calls have left: their steps were taken out.

        Readers that a load has come between begin anew. Under the lock.
        """
        self._interrupted.by_plan = {}
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
