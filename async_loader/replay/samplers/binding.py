"""The base of the package's samplers, their random numbers, and one with numbers of another seed.

The global generators are never used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.array_types import Floats
from async_loader.replay.samplers import priority_rules
from async_loader.replay.samplers.sampler import (
    Draw,
    Items,
    Priorities,
    Reading,
    Rows,
    Sampler,
    shortcut,
    wrong_counts,
)

_AHEAD = 16_384
_TRIES = 64
"""Rows that are looked at for an item, at most, where four are enough on average."""
SPARSE = 4
"""Below one item in this many rows, drawing rows and checking them takes longer than a list."""
_ALL = np.empty(0, np.int64)


class RandomNumbers:
    """Uniform numbers in [0, 1), generated many at a time.

    The generator releases the GIL, and beside a learner that wants it, getting it back takes up to
    5 ms. Thread rule: that of its sampler. Cost: 1 us, and 60 us every 16,384 numbers.

    Parameters
    ----------
    seed : SeedSequence
    """

    __slots__ = ("_ahead", "_least", "_made", "_next", "_rng", "_seed")

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self._seed = seed
        self._rng: np.random.Generator | None = None
        self._ahead: Floats = np.empty(0)
        self._next = self._made = 0
        self._least = _AHEAD

    def ahead(self, count: int) -> Floats:
        """Return the next numbers, ``count`` or more. Read-only; see `drop`."""
        if self._next + count > len(self._ahead):
            if self._rng is None:
                self._rng = np.random.default_rng(self._seed)
            made = self._rng.random(max(count, self._least))
            self._made += len(made)
            self._ahead, self._next = np.concatenate((self._ahead[self._next :], made)), 0
        return self._ahead[self._next :]

    def drop(self, count: int) -> None:
        """Mark ``count`` of the numbers that are `ahead` as used."""
        self._next += count

    def take(self, count: int) -> Floats:
        """Return the next ``count`` numbers. Read-only."""
        numbers = self.ahead(count)[:count]
        self.drop(count)
        return numbers

    @property
    def used(self) -> int:
        """How many numbers were used."""
        return self._made - (len(self._ahead) - self._next)

    def seek(self, batch: int) -> None:
        """Go to the numbers of a batch: each has 2**40 of its own, made when they are needed."""
        if self._rng is None:
            self._rng = np.random.default_rng(self._seed)
        start = batch << 40
        self._rng.bit_generator.advance(start - self._made)  # type: ignore[attr-defined]
        self._made, self._ahead, self._next, self._least = start, np.empty(0), 0, 0

    def state(self) -> dict[str, Any]:
        """Return the seed, and how many numbers were used."""
        return {"seed": seeds_json(self._seed), "used": self.used}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self._seed, self._made = np.random.SeedSequence(**state["seed"]), state["used"]
        self._rng = np.random.default_rng(self._seed)
        self._rng.bit_generator.advance(self._made)  # type: ignore[attr-defined]
        self._ahead, self._next = np.empty(0), 0


def seeds_json(seeds: np.random.SeedSequence) -> dict[str, Any]:
    """Convert a seed sequence to JSON: its arguments, with the number of seeds made of it."""
    entropy: Any = seeds.entropy
    return {
        "entropy": [int(one) for one in entropy] if np.iterable(entropy) else int(entropy),
        "spawn_key": [int(one) for one in seeds.spawn_key],
        "n_children_spawned": seeds.n_children_spawned,
    }


def innermost(sampler: Any) -> Sampler:
    """Return what chooses in the end, behind samplers that have items or numbers of their own."""
    while (inner := getattr(sampler, "sampler", None)) is not None:
        sampler = inner
    chosen: Sampler = sampler
    return chosen


class Seeded:
    """Draws as the table's sampler does, from the same items by the same priorities, with random
    numbers of its own.

    What it draws depends on the seed, on the items and on its earlier draws, not on other draws
    from the table. A sampler without random numbers (`Fifo`, heaps), or with numbers that the
    package does not know, draws as usual. Thread rule and cost: those of the sampler, which alone
    is told of items.

    Parameters
    ----------
    sampler : Sampler
        Of the table.
    words : sequence of int | None
        The seed; ``None``: with the sampler's own numbers.
    masses : bool
        Give what the probability of an item is in proportion to, in place of its weight.
    """

    def __init__(self, sampler: Sampler, words: list[int] | None, masses: bool = False) -> None:
        self._sampler: Any = sampler
        self._words, self._masses = words, masses
        self._numbers = None if words is None else RandomNumbers(np.random.SeedSequence(words))
        self.prioritized, self.weighted, self.repeats = (
            sampler.prioritized,
            sampler.weighted,
            sampler.repeats,
        )

    @property
    def sampler(self) -> Sampler:
        """The sampler that it draws as."""
        chosen: Sampler = self._sampler
        return chosen

    @property
    def own_items(self) -> Items | None:
        """What it draws, where that is not the items of the table."""
        return getattr(self._sampler, "own_items", None)

    @property
    def numbers(self) -> RandomNumbers | None:
        """Its own numbers; ``None``: those of the sampler."""
        return self._numbers

    def over(self, sampler: Sampler) -> Seeded:
        """Return one with the same seed, that draws as another sampler does."""
        return Seeded(sampler, self._words, self._masses)

    def draw(self, count: int) -> Draw:
        drawn: Draw = self._drawn(self._sampler.draw, count)
        return drawn

    def draw_into(self, reading: Reading) -> bool:
        """See sampler.py, NOTE [shortcuts]."""
        quick = shortcut(self._sampler, "draw_into", "draw")
        return quick is not None and bool(self._drawn(quick, reading))

    def _drawn(self, draw: Callable[..., Any], argument: object) -> Any:
        """Draw with its own numbers, and have masses given, in what chooses in the end."""
        chooser: Any = innermost(self._sampler)
        theirs = getattr(chooser, "_numbers", None)
        own = self._numbers is not None and isinstance(theirs, RandomNumbers)
        masses = self._masses and hasattr(chooser, "gives_masses")
        try:
            if own:
                chooser._numbers = self._numbers
            if masses:
                chooser.gives_masses = True
            return draw(argument)
        finally:
            if own:
                chooser._numbers = theirs
            if masses:
                chooser.gives_masses = False

    def __repr__(self) -> str:
        return repr(self._sampler)


class Binding:
    """Base of the package's samplers: each belongs to one table, and ignores priorities unless it
    uses them. Your own sampler need not derive from it.
    """

    _k: Any  # row_kernels

    def __init__(self) -> None:
        self._taken = False
        self._draws = 0
        self._ever = priority_rules.MaxEver()

    def bind(self, items: Items, seed: np.random.SeedSequence) -> None:
        """See `Sampler.bind`.

        Raises
        ------
        ConfigError
            The second time.
        """
        if self._taken:
            raise ConfigError(f"this {self!r} belongs to another table already: make one for each")
        self._items, self._numbers = items, RandomNumbers(seed)
        self._bound()
        self.reset()
        self._taken = True

    def _bound(self) -> None:
        """Check the items, and import kernels."""

    def _there(self) -> Rows:
        """Return the rows that hold an item."""
        items = self._items
        rows: Rows = np.flatnonzero(items.alive[: items.top].view(np.bool_))
        return rows

    def _any_items(self, count: int) -> Rows:
        """Draw rows until ``count`` of them hold an item, each with the same probability."""
        items = self._items
        among = self._there() if items.count * SPARSE < items.top else _ALL
        rows, filled, candidates = np.empty(count, np.int64), 0, len(among) or items.top
        tries = 0
        while filled < count:
            if tries > _TRIES * (count + _TRIES):
                raise wrong_counts(f"{tries:,} draws found {filled} of {items.count:,} items")
            ahead = self._numbers.ahead(count - filled)
            filled, used = self._k.any_items(ahead, items.alive, among, candidates, rows, filled)
            self._numbers.drop(used)
            tries += used
        return rows

    def reset(self) -> None:
        """Forget all items: those that there are come again."""

    def state(self) -> dict[str, Any]:
        """See `Sampler.state`."""
        numbers = self._numbers.state()
        return {"numbers": numbers, "draws": self._draws, "largest": self._ever.largest}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Sampler.restore`."""
        if state["numbers"] is not None:  # else those of another seed go on
            self._numbers.restore(state["numbers"])
        self._draws, self._ever.largest = state["draws"], state["largest"]

    def insert(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.insert`."""

    def remove(self, rows: Rows) -> None:
        """See `Sampler.remove`."""

    def update(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.update`."""

    def check(self, priority: Priorities) -> None:
        """See `Sampler.check`."""


def like(sampler: Sampler) -> Sampler:
    """Make a new sampler of the same class and settings, bound to no table.

    Raises
    ------
    ConfigError
        If the sampler does not keep its settings as attributes of their names.
    """
    kind = type(sampler)
    names = list(inspect.signature(kind).parameters)
    if any(not hasattr(sampler, name) for name in names):
        raise ConfigError(
            f"a {kind.__qualname__} does not say how it was made: give one for sequences, as in "
            f"source(view=..., sampler={kind.__qualname__}(...))"
        )
    made: Sampler = kind(**{name: getattr(sampler, name) for name in names})
    return made
