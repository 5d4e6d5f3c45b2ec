"""How batches get out of a table: items chosen under its lock, rows read without it. Adds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.errors import ConfigError
from async_loader.lifecycle import seconds
from async_loader.replay.arguments import positive
from async_loader.replay.owner import Owner
from async_loader.replay.reader import ReplayReader, Target
from async_loader.replay.rows import LOOKAHEAD
from async_loader.replay.samplers import Sampler, Uniform, shortcut
from async_loader.replay.views import Recipe, Transitions
from async_loader.source import Window

Ids = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Drawn = tuple[Ids, npt.NDArray[np.float32] | None]
_REDRAWS = 8


class Drawer:
    """Draws from a table. Any thread.

    Parameters
    ----------
    owner : Owner
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._recipes: dict[Any, Recipe] = {}
        self._idle: dict[int, list[ReplayReader]] = {}  # by recipe: one per thread that samples at the same time

    def batch(self, sampler: Sampler, batch_size: int, view: Transitions | None, timeout_s: float | None) -> dict[str, Any]:
        """A batch of arrays, nested as the step was. Waits as `ids` does."""
        arrays = self.arrays(sampler, batch_size, view, timeout_s)
        return _assembled(self.recipe(view, sampler), arrays)

    def arrays(self, sampler: Sampler, batch_size: int, view: Transitions | None, timeout_s: float | None) -> Sequence[Array]:
        """A batch as one array for each field of the recipe's schema. Waits as `ids` does."""
        owner = self._owner
        positive("batch_size", batch_size)
        if timeout_s is not None:
            seconds("timeout_s", timeout_s)
        if not owner.ready:
            if owner.limiter is None and timeout_s is None:
                raise self._nothing(batch_size)

            def begun() -> bool:
                owner.check_open()
                return owner.ready

            owner.waiters.until(begun, "sample", lambda: "no step has been added yet", timeout_s)
        recipe = self.recipe(view, sampler)
        readers = self._idle[id(recipe)]
        try:
            reader = readers.pop()
        except IndexError:
            reader = ReplayReader(owner.table.storage, recipe)
        arrays = self._at_once(reader, sampler, batch_size) if reader.at_once(batch_size) else None
        if arrays is None:
            arrays = self._in_turn(reader, sampler, batch_size, timeout_s).fields
        readers.append(reader)
        return arrays

    def fill(self, reader: ReplayReader, sampler: Sampler, target: Target) -> None:
        """A batch into a target of the reader's. `why_not` said ``None``, and nobody has taken anything out since."""
        count = len(target.rows)
        if reader.at_once(count) and self._at_once(reader, sampler, count, target, asked=True) is not None:
            return
        if target.parts and self._in_parts(reader, sampler, target.parts):
            return
        into = Window(target.arrays)
        ids, weight = self.ids(sampler, count, 0.0)
        gone = reader.fill(ids, into, weight)
        if len(gone):
            self._draw_again(reader, sampler, ids, gone, into)

    def _in_parts(self, reader: ReplayReader, sampler: Sampler, parts: Sequence[Target]) -> bool:
        """Whether draws one after the other are as one draw of all, which is known of one sampler only; then it is done."""
        if type(sampler) is not Uniform or not sampler.repeats:
            return False
        return all(self._at_once(reader, sampler, len(part.rows), part) is not None for part in parts)

    def _at_once(
        self, reader: ReplayReader, sampler: Sampler, count: int, into: Target | None = None, asked: bool = False
    ) -> Sequence[Array] | None:
        """Draw and read under one lock, where that is quick and nothing is to be waited for or counted; else ``None``.

        ``asked``: `why_not` has said ``None`` just now.
        """
        owner = self._owner
        if owner.limiter is not None or owner.max_times_sampled:
            return None
        with owner.lock:
            owner.check_open()
            if not asked and self.why_not(sampler, count) is not None:
                return None
            quick = shortcut(sampler, "draw_into", "draw")
            arrays = None if quick is None else reader.drawn(count, quick, into)
            if arrays is None:
                drawn = sampler.draw(count)
                arrays = reader.these(drawn.rows, drawn.weight, into)
            owner.table.sampled += count
            if owner.waiters.anybody:
                owner.waiters.ring()
        return arrays

    def _in_turn(self, reader: ReplayReader, sampler: Sampler, count: int, timeout_s: float | None) -> Window:
        """Draw under the lock, read without it, and look again."""
        ids, weight = self.ids(sampler, count, timeout_s)
        into, gone = reader.take(ids, weight)
        if len(gone):
            self._draw_again(reader, sampler, ids, gone, into)
        return into

    def _draw_again(self, reader: ReplayReader, sampler: Sampler, ids: Ids, gone: Ids, into: Any) -> None:
        """Items that were overwritten between draw and read, which spare rows make rare: draw others."""
        owner = self._owner
        for _ in range(_REDRAWS):
            with owner.lock:
                most = owner.table.drawable(sampler)
                if most is not None and most < len(gone):
                    break
                again, weight = owner.table.draw(sampler, len(gone), again=True)
            part, still = reader.take(again, weight)
            for array, one in zip(into.fields, part.fields, strict=True):
                array[gone] = one
            gone = gone[still]
            if not len(gone):
                return
        reader.replace(ids, gone, into, np.random.default_rng(int(ids.sum()) & 0xFFFFFFFF))

    def recipe(self, view: Transitions | None, sampler: Sampler) -> Recipe:
        """What a batch is made of; the table sees to it from here on."""
        key = (view, sampler.weighted)
        known = self._recipes.get(key)
        if known is None:
            known = self._register(key, view, sampler)
        return known

    def _register(self, key: Any, view: Transitions | None, sampler: Sampler) -> Recipe:
        owner = self._owner
        assert owner.schema is not None
        recipe = Recipe.of(owner.schema, view, weighted=sampler.weighted)
        with owner.lock:
            table = owner.table
            if recipe.lookahead > table.g[LOOKAHEAD] and table.free is not None:
                raise ConfigError(
                    f"n={recipe.n} needs steps that follow each other, and {owner.remover!r} takes them out of order"
                )
            table.look_ahead(recipe.lookahead)
            self._idle[id(recipe)] = []
            return self._recipes.setdefault(key, recipe)

    def ids(self, sampler: Sampler, count: int, timeout_s: float | None) -> Drawn:
        """Ids of ``count`` items, and their weights if there are any.

        Waits for enough items, and for the limiter; without a limiter and with no ``timeout_s`` it raises ConfigError instead.
        """
        owner = self._owner
        if owner.limiter is None and timeout_s is None:
            with owner.lock:
                owner.check_open()
                reason = self.why_not(sampler, count)
                if reason is None:
                    return self.now(sampler, count)
            raise self._nothing(count)
        drawn: list[Drawn] = []

        def attempt() -> bool:
            owner.check_open()
            if self.why_not(sampler, count) is None:
                drawn.append(self.now(sampler, count))
            return bool(drawn)

        owner.waiters.until(attempt, "sample", lambda: self.why_not(sampler, count), timeout_s)
        return drawn[0]

    def why_not(self, sampler: Sampler, count: int, min_size: int = 1) -> str | None:
        """Why so many cannot be drawn now, in numbers. Under the lock.

        Raises
        ------
        ConfigError
            If they never can be.
        """
        self._owner.catch_up()
        reason = self._why_not(sampler, count, min_size)
        if reason is not None:
            self._check_ever(sampler, count)
        return reason

    def _why_not(self, sampler: Sampler, count: int, min_size: int) -> str | None:
        owner = self._owner
        limits = owner.limits
        if limits is not None and not limits.may_sample(count):
            return limits.why_not_sample(count)
        if not owner.ready:
            return _short(0, min_size)
        table = owner.table
        held, most = len(table), table.drawable(sampler)
        if most is None or most >= count:
            return None if held >= min_size else _short(held, min_size)
        if most == 0 and sampler.repeats and not owner.max_times_sampled:
            return _short(held, min_size)
        return _short(held, max(count, min_size))

    def _check_ever(self, sampler: Sampler, count: int) -> None:
        """Raise ConfigError if so many can never be drawn."""
        owner = self._owner
        limits = owner.limits
        if limits is not None and not limits.may_sample(count) and not limits.can_ever_sample(count):
            raise ConfigError(limits.why_not_sample(count))
        if owner.ready and not sampler.repeats and count > (owner.capacity or 0):
            raise ConfigError(f"{sampler!r} draws no item twice, and {count} are more than the capacity of {owner.capacity}")

    def now(self, sampler: Sampler, count: int) -> Drawn:
        """As `ids`, under the lock, when nothing stands in the way."""
        owner = self._owner
        drawn = owner.table.draw(sampler, count)
        if owner.waiters.anybody:
            owner.waiters.ring()
        return drawn

    def _nothing(self, count: int) -> ConfigError:
        held = len(self._owner.table) if self._owner.ready else 0
        said = f"it holds {held} that can be drawn" if held else "the buffer is empty"
        return ConfigError(f"cannot draw {count} steps, {said}: add steps first, give timeout_s, or use a loader, which waits")


def _short(held: int, needed: int) -> str:
    return f"steps: the replay buffer holds {held} of the {needed} that sampling needs, add more"


def _assembled(recipe: Recipe, arrays: Sequence[Any]) -> dict[str, Any]:
    if recipe.split is not None:
        split: dict[str, Any] = recipe.split(arrays)
        return split
    root = recipe.schema.structure
    if isinstance(root, tree.Node) and not any(root.children):
        return dict(zip(root.keys, arrays, strict=True))
    rebuilt: dict[str, Any] = recipe.schema.rebuild(arrays)
    return rebuilt
