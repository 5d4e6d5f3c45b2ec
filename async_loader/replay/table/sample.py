"""How batches get out of a table: items chosen under its lock, rows read without it.

Adds nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError, NotEnoughData, OutOfMemory
from async_loader.lifecycle import seconds
from async_loader.replay.arguments import positive
from async_loader.replay.base.row_format import LOOKAHEAD
from async_loader.replay.rate_limiter import UNLIMITED, LimiterState
from async_loader.replay.samplers import Sampler, Uniform, one_scale, shortcut
from async_loader.replay.table.reader import ReplayReader, Target
from async_loader.replay.table.table import Drawn
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import ReadPlan, Transitions
from async_loader.shm.limits import available_bytes, human
from async_loader.source import Window

Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_REDRAWS = 8
_MANY = 1 << 20
"""Of more rows than this it is asked first whether there is memory for them."""


class TableSampler:
    """Draws from a table. Any thread.

    Parameters
    ----------
    table_state : TableState
    """

    def __init__(self, table_state: TableState) -> None:
        self._table_state = table_state
        self._recipes: dict[Any, ReadPlan] = {}
        # by recipe: one per thread that samples at the same time
        self._idle: dict[int, list[ReplayReader]] = {}
        # by recipe: rows that interrupted calls have left
        self._kept: dict[int, list[list[Array]]] = {}

    def batch(
        self,
        sampler: Sampler,
        batch_size: int,
        view: Transitions | None,
        timeout_s: float | None,
        taken: UndeliveredItems | None = None,
    ) -> dict[str, Any]:
        """A batch of arrays, nested as the step was. Waits as `ids` does.

        Ctrl-C may come at any point: what was counted and not delivered is in ``taken``, see
        `take_back`.
        """
        arrays = self.arrays(sampler, batch_size, view, timeout_s, taken)
        return assembled(self.read_plan(view, sampler), arrays)

    def take_back(self, taken: UndeliveredItems) -> None:
        """What a call was interrupted with: rows that were used up are kept for the next batch,
        others are not counted.
        """
        with self._table_state.lock:
            # each once
            arrays, count, taken.arrays, taken.counted = taken.arrays, taken.counted, (), 0
            if count:
                self._table_state.table.counted -= count
            if len(arrays):
                self._kept.setdefault(taken.key, []).append(list(arrays))
            self._table_state.waiters.ring()

    def arrays(
        self,
        sampler: Sampler,
        batch_size: int,
        view: Transitions | None,
        timeout_s: float | None,
        taken: UndeliveredItems | None = None,
    ) -> Sequence[Array]:
        """A batch as one array for each field of the recipe's schema. Waits as `ids` does."""
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
        read_plan = self.read_plan(view, sampler, batch_size)
        readers = self._idle[id(read_plan)]
        try:
            reader = readers.pop()
        except IndexError:
            reader = ReplayReader(table_state.table.storage, read_plan)
        arrays = self._at_once(reader, sampler, batch_size) if reader.at_once(batch_size) else None
        if arrays is None:
            arrays = self._in_turn(
                reader, sampler, batch_size, timeout_s, taken or UndeliveredItems()
            )
        readers.append(reader)
        return arrays

    def fill(self, reader: ReplayReader, sampler: Sampler, target: Target) -> None:
        """A batch into a target of the reader's.

        `why_not` said ``None``, and nobody has taken anything out since.
        """
        count = len(target.rows)
        if (
            reader.at_once(count)
            and self._at_once(reader, sampler, count, target, asked=True) is not None
        ):
            return
        if target.parts and self._in_parts(reader, sampler, target.parts):
            return
        into = Window(target.arrays)
        drawn = self.ids(sampler, count, 0.0)
        gone = reader.fill(drawn.ids, into, drawn.weight)
        if len(gone):
            self._draw_again(reader, sampler, drawn, gone, into, self._table_state.lock)

    def _in_parts(self, reader: ReplayReader, sampler: Sampler, parts: Sequence[Target]) -> bool:
        """Whether draws one after the other are as one draw of all, which is known of one sampler
        only; then it is done.
        """
        if type(sampler) is not Uniform or not sampler.repeats:
            return False
        return all(
            self._at_once(reader, sampler, len(part.rows), part) is not None for part in parts
        )

    def _at_once(
        self,
        reader: ReplayReader,
        sampler: Sampler,
        count: int,
        into: Target | None = None,
        asked: bool = False,
    ) -> Sequence[Array] | None:
        """Draw and read under one lock, where that is quick and nothing is to be waited for or
        counted; else ``None``.

        ``asked``: `why_not` has said ``None`` just now.
        """
        table_state = self._table_state
        if table_state.limiter is not None or table_state.max_times_sampled:
            return None
        with table_state.lock:
            table_state.check_open()
            if not asked and self.why_not(sampler, count) is not None:
                return None
            quick = shortcut(sampler, "draw_into", "draw")
            arrays = None if quick is None else reader.drawn(count, quick, into)
            if arrays is None:
                drawn = sampler.draw(count)
                arrays = reader.these(drawn.rows, drawn.weight, into)
            table_state.table.counted += count
            if table_state.waiters.anybody:
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
        """Draw under the lock, read without it, and look again; where draws are counted, all of it
        under the lock.
        """
        if self._table_state.max_times_sampled:
            return self._used_up(reader, sampler, count, timeout_s, taken)
        if count > _MANY and sampler.repeats:
            _check_memory(reader.read_plan, count)
        drawn = self.ids(sampler, count, timeout_s, taken)
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
        into: Any,
        lock: AbstractContextManager[Any],
    ) -> None:
        """Draw others for items that were overwritten between draw and read, which spare rows make
        rare.

        ``lock``: the table's, or a null context where the caller holds it.
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
        """Draw and read under the lock: nothing may overwrite what no other draw will show."""
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
        """Put a batch into ``taken``: first what interrupted calls have left, then new items. Under
        the lock.

        However it is interrupted, what was counted is in ``taken``, or in what is left for the next
        batch.
        """
        table_state, table = self._table_state, self._table_state.table
        taken.key = id(reader.read_plan)
        old = self._left(taken.key, count)
        try:
            if old.rows < count:
                drawn = table.draw(sampler, count - old.rows)
                into, gone = reader.take(drawn.ids, drawn.weight)
                # a writer of another process overwrote them: this table does not promise to keep
                # rows
                if len(gone):
                    self._draw_again(reader, sampler, drawn, gone, into, contextlib.nullcontext())
                new: list[Array] = into.fields
            else:
                new = []
            arrays = _joined(old.arrays, new)
        except BaseException:
            drawn = table.taken_back()
            if len(drawn.ids):
                self._kept.setdefault(taken.key, []).append(
                    reader.take(drawn.ids, drawn.weight)[0].fields
                )
            raise
        taken.arrays, table.undelivered, self._kept = arrays, [], old.rest  # no call between these
        if table_state.waiters.anybody:
            table_state.waiters.ring()

    def _left(self, key: int, count: int) -> _Left:
        """Up to ``count`` rows that interrupted calls have left, and what is left without them.

        Changes nothing.
        """
        kept = self._kept.get(key)
        if not kept:
            return _Left((), 0, self._kept)
        whole = _joined(*kept) if len(kept) > 1 else kept[0]
        rows = min(count, len(whole[0]))
        rest = {one: arrays for one, arrays in self._kept.items() if one != key}
        if rows < len(whole[0]):
            rest[key] = [[array[rows:] for array in whole]]
        return _Left([np.ascontiguousarray(array[:rows]) for array in whole], rows, rest)

    def interrupted(self, key: int | None = None) -> int:
        """Rows that interrupted calls have left, of one recipe or of all. Under the lock."""
        found = self._kept.values() if key is None else [self._kept.get(key, [])]
        return sum(len(arrays[0]) for kept in found for arrays in kept)

    def read_plan(
        self,
        view: Transitions | None,
        sampler: Sampler | None = None,
        count: int = 0,
        min_size: int = 0,
    ) -> ReadPlan:
        """What a batch is made of, by default with the table's view; the table sees to it from here
        on.

        Parameters
        ----------
        count : int
            Items that are about to be drawn at once by ``sampler``; 0: none.
        min_size : int
            Items that there are to be before any is drawn; 0: that does not matter.

        Raises
        ------
        ConfigError
            For items that the table can never show, or never ``count`` of at once. Then nothing is
            changed.
        """
        if view is None:
            view = self._table_state.view
        key = (view, sampler is not None and sampler.weighted)
        known = self._recipes.get(key)
        if known is None:
            known = self._register(key, view, sampler, count, min_size)
        return known

    def _register(
        self, key: Any, view: Transitions | None, sampler: Sampler | None, count: int, min_size: int
    ) -> ReadPlan:
        table_state = self._table_state
        assert table_state.schema is not None
        read_plan = ReadPlan.of(table_state.schema, view, weighted=key[1])
        with table_state.lock:
            if read_plan.lookahead > table_state.table.g[LOOKAHEAD]:
                table_state.catch_up()
                table_state.check_look_ahead(read_plan)
                if min_size:
                    self.check_size(min_size, read_plan.lookahead)
                if sampler is not None and count:
                    held = self._held(sampler, read_plan.lookahead)
                    if self._why_not(sampler, count, min_size, held) is not None:
                        self._check_ever(sampler, count, min_size, held)
            table_state.look_ahead(read_plan)
            self._idle[id(read_plan)] = []
            return self._recipes.setdefault(key, read_plan)

    def _held(self, sampler: Sampler, ahead: int | None = None) -> _Held:
        """What can be drawn now; or would be, if items had ``ahead`` successors. Under the lock."""
        table = self._table_state.table
        if ahead is None:
            return _Held(len(table), table.drawable(sampler), int(table.g[LOOKAHEAD]))
        wait = table.would_wait(ahead)
        return _Held(len(table) - len(wait), table.drawable(sampler, wait), ahead)

    def ids(
        self,
        sampler: Sampler,
        count: int,
        timeout_s: float | None,
        taken: UndeliveredItems | None = None,
    ) -> Drawn:
        """Ids of ``count`` items, and their weights if there are any.

        Waits for enough items, and for the limiter; without a limiter and with no ``timeout_s`` it
        raises ConfigError instead.
        """
        table_state, taken = self._table_state, taken or UndeliveredItems()
        if table_state.limiter is None and timeout_s is None:
            with table_state.lock:
                table_state.check_open()
                reason = self.why_not(sampler, count)
                if reason is None:
                    return self.now(sampler, count, taken)
            raise self.not_enough(count)
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

    def why_not(
        self, sampler: Sampler, count: int, min_size: int = 1, key: int | None = None
    ) -> str | None:
        """Why ``count`` items cannot be drawn now, in numbers. Under the lock.

        ``key``: of a recipe, whose rows that interrupted calls have left count too.

        Raises
        ------
        ConfigError
            If they never can be.
        """
        if not self._table_state.foreign and self._table_state.ready:
            self._table_state.table.finish()
        self._table_state.catch_up()
        if key is not None and self._kept:
            count -= self.interrupted(key)
            if count <= 0:
                return None
        reason = self._why_not(sampler, count, min_size)
        if reason is not None:
            self._check_ever(sampler, count, min_size)
        return reason

    def _why_not(
        self, sampler: Sampler, count: int, min_size: int, there: _Held | None = None
    ) -> str | None:
        table_state = self._table_state
        limits = table_state.limits
        once = not sampler.repeats or bool(table_state.max_times_sampled)
        wanted = max(count if once else 1, min_size)
        if limits is not None and wanted > limits.needed:
            limits.needed = wanted
            table_state.waiters.ring()  # writers that the ratio has stopped may go on
        if limits is not None and not limits.may_sample(count):
            return limits.why_not_sample(count)
        if not table_state.ready:
            return _short(0, min_size)
        table = table_state.table
        held, most = (len(table), table.drawable(sampler)) if there is None else there[:2]
        if most is None or most >= count:
            return None if held >= min_size else _short(held, min_size)
        return _short(held, max(count, min_size) if most or once else min_size)

    def _check_ever(
        self, sampler: Sampler, count: int, min_size: int, there: _Held | None = None
    ) -> None:
        """Raise ConfigError if ``count`` items can never be drawn at once."""
        table_state = self._table_state
        limits = table_state.limits
        if (
            limits is not None
            and not limits.may_sample(count)
            and not limits.can_ever_sample(count)
        ):
            raise ConfigError(limits.why_not_sample(count))
        if not table_state.ready:
            return
        there = self._held(sampler) if there is None else there
        surely = self.check_size(min_size, there.ahead)
        table = table_state.table
        if sampler.repeats and not table_state.max_times_sampled:
            return
        times = table_state.max_times_sampled if sampler.repeats else 1
        if count > times * surely:
            raise ConfigError(
                f"{sampler!r} draws no item {_too_often(times)}, and {count:,} are more than a "
                "table of "
                f"{table.storage.layout.capacity:,} steps holds at once, {times * surely:,}: "
                "draw fewer at a time, or raise the capacity"
            )
        held = there.most or 0
        if limits is not None:
            self._check_limiter(limits, count, held, times, there.ahead)
        if table.keeps:
            self._check_stuck(
                max(count, 1 if limits is None else limits.config.min_size_to_sample), held
            )

    def check_size(self, min_size: int, ahead: int | None = None) -> int:
        """Raise ConfigError for more items than the table holds while an episode is open, or else
        say how many that are.

        ``ahead``: successors that an item has, where that is about to change.
        """
        table = self._table_state.table
        surely = table.surely(int(table.g[LOOKAHEAD]) if ahead is None else ahead)
        if min_size > surely:
            raise ConfigError(
                f"min_size={min_size:,}: the table keeps {table.storage.layout.capacity:,} steps, "
                f"of which {surely:,} can be "
                f"drawn while an episode is open: use {surely:,} or less, or raise the capacity"
            )
        return surely

    def _check_limiter(
        self, limits: LimiterState, count: int, held: int, times: int, ahead: int
    ) -> None:
        """Raise ConfigError if the limiter stops inserting before there are so many items that each
        is drawn once only.
        """
        more = limits.insertable()
        if more == UNLIMITED or (more and ahead):  # see Limits: waiting steps let others in
            return
        most = max(
            len(self._table_state.table) + self._table_state.table.waiting + more,
            limits.config.min_size_to_sample,
        )
        if count > max(held, times * most):
            buffer = limits.config.buffer_for(count * limits.config.samples_per_insert)
            raise ConfigError(
                f"{count:,} can never be sampled at once: {limits.config} stop inserting at "
                f"{most:,} items, and no item is "
                f"drawn {_too_often(times)}: sample fewer at a time, or use {buffer}"
            )

    def _check_stuck(self, count: int, held: int) -> None:
        """Raise ConfigError if neither this draw nor an insertion can go on.

        See table.py, NOTE [queue tables].
        """
        table_state, table = self._table_state, self._table_state.table
        room, limits = table.room(), table_state.limits
        if table.granted:  # writers in other processes fill rows, or give them back
            return
        blocked = table_state.waiters.anyone("insert") and (limits is None or limits.may_insert(1))
        if not blocked and (room or held + table.waiting >= count):
            return
        if room and table.tail_stream() >= 0:  # that episode may go on, and rows are let go
            return
        raise ConfigError(
            f"{count:,} can never be drawn at once: {table.window:,} rows are full with {held:,} "
            "items and rows beside them "
            "(steps that wait for their successors, observations after an episode's end, the past "
            "of stacks), and a queue "
            f"overwrites no item: draw {held:,} or fewer at a time, or raise the capacity to "
            f"{2 * count:,} or more"
        )

    def now(self, sampler: Sampler, count: int, taken: UndeliveredItems | None = None) -> Drawn:
        """As `ids`, under the lock, when nothing stands in the way."""
        table_state, table = self._table_state, self._table_state.table
        taken = taken or UndeliveredItems()
        drawn = table.draw(sampler, count)
        drawn_now = 0 if table_state.max_times_sampled else len(drawn.ids)
        # no call between: Ctrl-C finds both or none
        table.counted, taken.counted = table.counted + drawn_now, drawn_now
        if table_state.waiters.anybody:
            table_state.waiters.ring()
        return drawn

    def not_enough(self, count: int) -> NotEnoughData:
        held = len(self._table_state.table) if self._table_state.ready else 0
        said = f"the table holds {held} that can be drawn"
        text = f"cannot draw {count} items, {said}: add steps first, give timeout_s, or use a loader, which waits"
        return NotEnoughData(text, count, held)

    def these(self, ids: Ids, view: Transitions | None) -> dict[str, Any]:
        """Rows by id, in their order. Those that are gone are left out."""
        table_state, read_plan = self._table_state, self.read_plan(view)
        with table_state.lock:
            table_state.check_open()
            table_state.catch_up()
            ids = ids[table_state.table.find(ids) >= 0]
        into, gone = ReplayReader(table_state.table.storage, read_plan).take(ids)
        arrays = (
            [np.delete(array, gone, axis=0) for array in into.fields] if len(gone) else into.fields
        )
        return assembled(read_plan, arrays)

    def forget(self) -> None:
        """Rows that interrupted calls have left are of steps that were taken out.

        Under the lock.
        """
        self._kept = {}


class UndeliveredItems:
    """What a call has taken out of a table and not delivered yet.

    Attributes
    ----------
    key : int
        Of the recipe.
    arrays : sequence of arrays [rows, *shape]
        Rows that are used up.
    counted : int
        Rows that were counted as sampled and are not used up.
    """

    __slots__ = ("arrays", "counted", "key")

    def __init__(self) -> None:
        self.key = self.counted = 0
        self.arrays: Sequence[Array] = ()


class _Held(NamedTuple):
    """Items that there are; how many one draw can hold at most (``None``: any number); the
    successors that each has.
    """

    items: int
    most: int | None
    ahead: int


class _Left(NamedTuple):
    """Rows that interrupted calls have left, how many there are, and what is left without them."""

    arrays: Sequence[Array]
    rows: int
    rest: dict[int, list[list[Array]]]


def _joined(*parts: Sequence[Array]) -> list[Array]:
    """Pieces of a batch one behind the other; empty ones are no arrays."""
    there = [part for part in parts if len(part)]
    if len(there) == 1:
        return list(there[0])
    return [np.concatenate(arrays) for arrays in zip(*there, strict=True)]


def _one_weight(weight: Array, gone: Ids, first: Drawn, again: Drawn) -> tuple[Array, Drawn]:
    """The weights of a batch of which the rows ``gone`` were drawn again, divided by one number;
    the batch as one draw.
    """
    assert again.weight is not None
    old, new = np.ones(len(weight), np.bool_), weight[gone]
    old[gone] = False
    both, scale = one_scale([(weight[old], first.scale), (new, again.scale)])
    whole = np.empty_like(weight)
    whole[old], whole[gone] = both[: int(old.sum())], both[int(old.sum()) :]
    return whole, Drawn(first.ids, whole, scale)


def _check_memory(read_plan: ReadPlan, count: int) -> None:
    """Raise OutOfMemory where a batch of ``count`` rows, with their ids, exceeds the free memory."""
    nbytes, there = count * (read_plan.schema.nbytes + 8), available_bytes()
    if nbytes > there:
        raise OutOfMemory(
            f"batch_size={count:,}: a batch of so many rows takes {human(nbytes)}, and "
            f"{human(there)} are free"
        )


def _too_often(times: int) -> str:
    return "twice" if times == 1 else f"more than {times} times"


def _short(held: int, needed: int) -> str:
    return f"steps: the replay buffer holds {held} of the {needed} that sampling needs, add more"


def assembled(read_plan: ReadPlan, arrays: Sequence[Any]) -> dict[str, Any]:
    """The arrays of a batch, nested as its steps are."""
    root = read_plan.schema.structure
    if isinstance(root, tree.Node) and not any(root.children):
        return dict(zip(root.keys, arrays, strict=True))
    rebuilt: dict[str, Any] = read_plan.schema.rebuild(arrays)
    return rebuilt
