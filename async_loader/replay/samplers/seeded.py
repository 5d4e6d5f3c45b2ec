"""The table's sampler with random numbers of another seed, or with masses, for one source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.samplers.sampler import Draw, Items, Reading, Sampler, shortcut


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
