"""Which policy versions made the received steps, and how far they are behind the newest.

A step names its weights by an integer field: ``policy_version`` for weights that are published as
``policy``. A table whose steps have no such field has no lag.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.schema import Schema

SUFFIX = "_version"
_REMEMBERED = 4096


class Publications:
    """When each version of weights was published; the last some thousand are kept."""

    def __init__(self) -> None:
        self._at: dict[str, OrderedDict[int, float]] = {}

    def add(self, name: str, version: int, now: float) -> None:
        """Add the newest version. One that is not above the last begins a new run."""
        at = self._at.setdefault(name, OrderedDict())
        if at and version <= next(reversed(at)):
            at.clear()
        at[version] = now
        if len(at) > _REMEMBERED:
            at.popitem(last=False)

    def ages(self, now: float) -> dict[str, float]:
        """Return the seconds since the newest version of each name."""
        return {name: now - next(reversed(at.values())) for name, at in self._at.items()}

    def behind(self, name: str, version: int) -> tuple[int, float] | None:
        """Return how far a version is behind the newest: difference of numbers, and seconds.

        For a forgotten version the seconds are a lower bound. ``None`` if nothing was published.
        """
        at = self._at.get(name)
        if not at:
            return None
        newest = next(reversed(at))
        since = at.get(version)
        if since is None:  # forgotten, or never published here
            since = next((moment for known, moment in at.items() if known > version), at[newest])
        return max(0, newest - version), at[newest] - since


class PolicyVersions:
    """Finds the versions in the steps of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [
            (i, field.name.removesuffix(SUFFIX))
            for i, field in enumerate(schema.fields)
            if field.name.endswith(SUFFIX)
            and field.name != SUFFIX
            and not field.shape
            and field.dtype.kind in "iu"
        ]

    def oldest(self, columns: Sequence[npt.NDArray[Any]]) -> dict[str, int]:
        """Return the oldest version of each weights in these steps, which have no other rows."""
        return {name: int(np.min(columns[i])) for i, name in self._fields}

    def note(self, columns: Sequence[npt.NDArray[Any]], newest: dict[str, int]) -> None:
        """Update ``newest`` with the versions in these steps. Final observations have 0."""
        for i, name in self._fields:
            newest[name] = max(newest.get(name, 0), int(np.max(columns[i])))


def lags(
    made: Iterable[Mapping[str, int]],
    published: Publications,
    given: Mapping[str, int] | None = None,
) -> dict[str, dict[str, float]]:
    """Return, by name of weights, the writers' newest and oldest versions, and the lag.

    ``given``: the oldest versions in the last batch of a queue.
    """
    found: dict[str, dict[str, float]] = {}
    for versions in made:
        for name, version in versions.items():
            one = found.setdefault(name, {"newest": version, "oldest": version})
            one["newest"], one["oldest"] = max(one["newest"], version), min(one["oldest"], version)
    for name, one in found.items():
        behind = published.behind(name, int(one["oldest"]))
        if behind is not None:
            one["lag"], one["lag_s"] = behind
    for name, version in (given or {}).items():
        one = found.setdefault(name, {"newest": version, "oldest": version})
        behind = published.behind(name, version)
        if behind is not None:
            one["batch_lag"] = behind[0]
    return found
