"""The base of the package's samplers: each belongs to one table, and ignores priorities unless it
uses them.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.samplers import priority_rules
from async_loader.replay.samplers.random_numbers import RandomNumbers
from async_loader.replay.samplers.sampler import Items, Priorities, Rows, Sampler


class Binding:
    """Base of the package's samplers. Your own sampler need not derive from it."""

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
