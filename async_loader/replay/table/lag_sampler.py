"""Leaves out the steps of policies that are too old."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from async_loader.errors import ConfigError
from async_loader.interrupts import SignalsDeferred
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.samplers import Items, Sampler
from async_loader.replay.samplers.sampler import Priorities, Rows
from async_loader.replay.table.inner_sampler import InnerSampler
from async_loader.schema import Schema

VERSION = "policy_version"
_SUFFIX = "_version"
REASONS = ("became_old", "came_old", "other_run")
"""Why steps are left out."""


def weights_of(schema: Schema) -> str:
    """Return the name of the weights whose versions steps say. Raises ConfigError."""
    return schema.fields[version_field(schema)].name.removesuffix(_SUFFIX)


def version_field(schema: Schema) -> int:
    """Return the place of the field that says which policy made a step.

    Raises
    ------
    ConfigError
        Without such a field, or with several of other names than ``policy_version``.
    """
    found = {
        field.name: place
        for place, field in enumerate(schema.fields)
        if field.name.endswith(_SUFFIX) and not field.shape and field.dtype.kind in "iu"
    }
    if VERSION in found:
        return found[VERSION]
    if len(found) != 1:
        which = f"has {', '.join(found)}" if found else "has none of whole numbers"
        raise ConfigError(
            f"max_lag needs an integer field that says which policy made a step, and ({schema}) "
            f"{which}: name it {VERSION!r}"
        )
    return next(iter(found.values()))


class LagSampler(InnerSampler):
    """Has a sampler choose among the steps of recent policies.

    It is told of all steps, as any sampler of the table is, and tells ``sampler`` of those that are
    at most ``max_lag`` versions behind the newest. The steps of each such version are linked, so
    that they are found when a newer version comes and they have become too old: nothing is
    searched, and no draw is rejected, however the versions of several actors interleave.

    Thread rule: that of a `Sampler`. Cost: those of ``sampler``, and some 20 us a call for
    additions. Memory: 25 bytes a row.

    Parameters
    ----------
    sampler : Sampler
        Bound to no table.
    max_lag : int
    items : Items
        Of the table.
    versions : callable
        Returns the version that made the step in each row, ``[rows]``, as it is now.
    seed : SeedSequence

    Attributes
    ----------
    newest : int | None
        The newest version that was stored or told; ``None`` before the first.
    left_out_by : dict of str to int
        Steps that were left out so far, by reason: they ``became_old``, or ``came_old``, or are of
        an ``other_run``, see `publish`.
    """

    def __init__(
        self,
        sampler: Sampler,
        max_lag: int,
        items: Items,
        versions: Callable[[], Array],
        seed: np.random.SeedSequence,
    ) -> None:
        from async_loader.replay.samplers import order  # late: see compiled.py

        self._k, self._versions = order, versions
        self.max_lag = max_lag
        super().__init__(sampler, items, seed)
        rows = items.rows
        self.newest: int | None = None
        self.left_out_by = dict.fromkeys(REASONS, 0)
        self._published = False
        self._of = np.zeros(rows, np.int64)
        self._before, self._after, _ = order.fresh(rows)
        # of each version that is drawn from, its first and its last row: at most max_lag + 1
        self._ends: dict[int, Ids] = {}

    def insert(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.insert`."""
        with SignalsDeferred():  # a call that is repeated passes over what is alive
            self._insert(rows, priority)

    def _insert(self, rows: Rows, priority: Priorities) -> None:
        new = self.own_items.alive[rows] == 0  # an interrupted call may be repeated
        rows, priority = rows[new], priority[new]
        if not len(rows):
            return
        versions = self._versions()[rows].astype(np.int64)
        if not self._published:
            self.see(int(versions.max()))
        assert self.newest is not None
        old, other = versions < self.newest - self.max_lag, versions > self.newest
        self.left_out_by["came_old"] += int(old.sum())
        self.left_out_by["other_run"] += int(other.sum())
        young = ~(old | other)
        rows, priority, versions = rows[young], priority[young], versions[young]
        for version in np.unique(versions).tolist():
            ends = self._ends.setdefault(version, np.full(2, self._k.END, np.int64))
            self._k.append(self._before, self._after, ends, rows[versions == version])
        items = self.own_items
        self._of[rows], items.alive[rows] = versions, 1
        items.count += len(rows)
        items.top = max(items.top, int(rows.max(initial=-1)) + 1)
        if len(rows):
            self.sampler.insert(rows, priority)

    def see(self, version: int) -> None:
        """Note a version, and leave out the steps that are too old for it."""
        if self.newest is not None and version <= self.newest:
            return
        for old in [one for one in self._ends if one < version - self.max_lag]:
            self._leave_out(old, "became_old")
        self.newest = version  # last: an interrupted call may be repeated

    def publish(self, version: int) -> None:
        """Note the version that is published now, where all of them are told.

        From here on nothing newer can be stored: steps of later versions, and all that are here
        when the versions begin again at a lower one, are of another run, and are left out.
        """
        if self.newest is not None and version < self.newest:
            for one in list(self._ends):
                self._leave_out(one, "other_run")
            self.newest = version
        self.see(version)
        self._published = True

    def _leave_out(self, version: int, reason: str) -> None:
        rows = np.empty(self.own_items.count, np.int64)
        rows = rows[: self._k.walk(self._after, self._ends[version][0], rows)]
        with SignalsDeferred():  # else they are counted again
            self.left_out_by[reason] += len(rows)
            self.remove(rows)
            self._ends.pop(version, None)

    @property
    def stale(self) -> int:
        """Steps that were left out so far, for all reasons together."""
        return sum(self.left_out_by.values())

    def remove(self, rows: Rows) -> None:
        """See `Sampler.remove`."""
        items = self.own_items
        rows = np.unique(rows[items.alive[rows] != 0])
        if not len(rows):
            return
        versions = self._of[rows]
        with SignalsDeferred():  # a call that is repeated passes over what is gone
            for version in np.unique(versions).tolist():
                self._k.unlink(
                    self._before, self._after, self._ends[version], rows[versions == version]
                )
            items.alive[rows] = 0
            items.count -= len(rows)
            self.sampler.remove(rows)

    def forget(self) -> None:
        """Forget the newest version: the table's contents are replaced."""
        self.newest, self._published = None, False

    @property
    def left_out(self) -> str:
        """What is left out, as the end of a message."""
        return (
            f"; steps more than {self.max_lag} versions behind {self.newest} are left out, "
            f"{self.stale:,} so far"
        )

    def __repr__(self) -> str:
        return repr(self.sampler)
