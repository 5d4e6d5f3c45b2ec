"""The base of the package's samplers: each belongs to one table, and ignores priorities unless it
uses them.
"""

from __future__ import annotations

import inspect

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.samplers.sampler import Items, Priorities, Rows, Sampler


class Binding:
    """Base of the package's samplers. Your own sampler need not derive from it."""

    def __init__(self) -> None:
        self._taken = False

    def bind(self, items: Items, seed: np.random.SeedSequence) -> None:
        """See `Sampler.bind`.

        Raises
        ------
        ConfigError
            The second time.
        """
        if self._taken:
            raise ConfigError(f"this {self!r} belongs to another table already: make one for each")
        self._bound(items, seed)
        self._taken = True

    def _bound(self, items: Items, seed: np.random.SeedSequence) -> None:
        """Allocate the memory of this sampler."""

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
