"""Leaves out the steps of policies that are too old."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.array_types import Array, Bools
from async_loader.replay.samplers import Items, Sampler
from async_loader.replay.samplers.sampler import Priorities, Rows
from async_loader.replay.table.sequence_sampler import InnerSampler
from async_loader.schema import Schema

VERSION = "policy_version"
_SUFFIX = "_version"
REASONS = ("became_old", "came_old", "other_run")
"""Why steps are left out."""
_NONE, _MOST = -(1 << 62), 1 << 62
"""Below all versions, and above."""


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
    at most ``max_lag`` versions behind the newest. When a newer version comes, the versions of all
    rows are looked at, so that no draw is rejected.

    # NOTE [steps that come early]
    Where versions are published, a step may come before the version that made it: weights go to the
    shards of a cluster side by side, and an actor has them from one of them while another, which
    its writer is bound to, still receives them. Nothing is drawn from such steps, and they are let
    in when their version is published. A step does not say its
    run, so a version above the newest may also be of a run that is over. While versions up to
    ``_over`` may be, early steps wait for one publication only: versions are published one after
    the other, so the next one brings every version that an actor of this run can have had, and what
    is above it then is of the other run.

    Thread rule: that of a `Sampler`. Cost: those of ``sampler``, and some 20 us a call for
    additions; a new version takes 2 ms for a million rows. Memory: 17 bytes a row.

    Parameters
    ----------
    sampler : Sampler
        Bound to no table.
    max_lag : int
    items : Items
        Of the table.
    versions : callable
        Returns the version that made the step in each row, ``[rows]``, as it is now.
    priorities : callable
        Returns the priorities of the steps in some rows.
    seed : SeedSequence
    left_out_by : dict of str to int
        Where steps are counted that are left out, by reason: they ``became_old``, or ``came_old``,
        or are of an ``other_run``, see `publish`. All samplers of a table share it.
    published : int, optional
        The newest version, where all of them are told, see `publish`.
    end : callable, optional
        Called with the rows of each step that is left out, whose item the table then ends: one of a
        queue would keep its place.

    Attributes
    ----------
    newest : int | None
        The newest version that was stored or told; ``None`` before the first.
    early : int
        Steps that wait until their version is published.
    """

    def __init__(
        self,
        sampler: Sampler,
        max_lag: int,
        items: Items,
        versions: Callable[[], Array],
        priorities: Callable[[Rows], Priorities],
        seed: np.random.SeedSequence,
        left_out_by: dict[str, int],
        published: int | None = None,
        end: Callable[[Rows], None] | None = None,
    ) -> None:
        self._versions, self._priorities, self._end_items = versions, priorities, end
        self.max_lag = max_lag
        super().__init__(sampler, items, seed)
        self.newest: int | None = published
        self._left_out_by = left_out_by
        self._published = published is not None
        # The versions of the steps that it knows, and the order in which they came.
        self._of, self._came = np.empty((2, items.rows), np.int64)
        self._over = _NONE
        self.reset()
        self._again = False
        if self._published:  # the table may hold steps of an earlier run
            there = self._versions()[items.alive != 0].astype(np.int64)
            self._over = int(there.max(initial=_NONE))

    def reset(self) -> None:
        """Forget all items. Those that come next were counted before."""
        super().reset()
        self._of[:] = _NONE
        self._next = 0
        self.early, self._again = 0, True

    def insert(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.insert`."""
        again, self._again = self._again, False
        if not len(rows):
            return
        versions = self._versions()[rows].astype(np.int64)
        if not self._published:
            self.see(int(versions.max()))
        assert self.newest is not None
        old, early = versions < self.newest - self.max_lag, versions > self.newest
        if not again:
            self._count(rows[old], "came_old")
        known = rows[~old]
        self._of[known] = versions[~old]
        self._came[known] = np.arange(self._next, self._next + len(known))
        self._next += len(known)
        self.early += int(early.sum())
        now = ~(old | early)
        some = priority[now]
        self._let_in(rows[now], some)
        priority[now] = some  # what the sampler put in place of NaN

    def _let_in(self, rows: Rows, priority: Priorities) -> None:
        """Draw from these rows from here on."""
        if len(rows):
            self._begin(rows)
            self.sampler.insert(rows, priority)

    def _between(self, low: int, high: int) -> Rows:
        """Return the rows of steps of versions above ``low`` up to ``high``, as they came."""
        rows: Rows = np.flatnonzero((self._of > low) & (self._of <= high))
        return rows[np.argsort(self._came[rows])]

    def too_old(self, versions: Array) -> Bools:
        """Return which steps that were drawn, and came back, are left out now; count them."""
        newest = _NONE if self.newest is None else self.newest
        old: Bools = versions.astype(np.int64) < newest - self.max_lag
        self._left_out_by["became_old"] += int(old.sum())
        return old

    def see(self, version: int) -> None:
        """Note a version, leave out the steps that are too old for it, and let those in that were
        early until now.
        """
        before = _NONE if self.newest is None else self.newest
        if version <= before:
            return
        self.newest = version
        self._leave_out(_NONE, version - self.max_lag - 1, "became_old")
        rows = self._between(before, version)
        self.early -= len(rows)
        self._let_in(rows, self._priorities(rows))

    def publish(self, version: int) -> None:
        """Note the version that is published now, where all of them are told.

        From here on a step of a later version is early: it waits until that one is published. When
        the versions begin again at a lower one, all steps that are here are of another run, and are
        left out. See NOTE [steps that come early].
        """
        if self.newest is not None and version < self.newest:
            self._over = max(self._over, self.newest, int(self._of.max()))
            self._leave_out(_NONE, _MOST, "other_run")
            self.newest = version
        self.see(version)
        if self._over > version:
            self._leave_out(version, _MOST, "other_run")
        else:
            self._over = _NONE
        self._published = True

    def _leave_out(self, low: int, high: int, reason: str) -> None:
        rows = self._between(low, high)
        self._count(rows, reason)
        self.remove(rows)

    def _count(self, rows: Rows, reason: str) -> None:
        self._left_out_by[reason] += len(rows)
        if self._end_items is not None and len(rows):
            self._end_items(rows)

    def remove(self, rows: Rows) -> None:
        """See `Sampler.remove`."""
        rows = np.unique(rows[self._of[rows] != _NONE])
        self._of[rows] = _NONE
        gone = self._end(rows)
        self.early -= len(rows) - len(gone)
        if len(gone):
            self.sampler.remove(gone)

    def forget(self) -> None:
        """Forget the newest version: the table's contents are replaced."""
        self.newest, self._published, self._over = None, False, _NONE

    @property
    def left_out(self) -> str:
        """What is left out, as the end of a message; empty if nothing is."""
        text = ""
        if stale := sum(self._left_out_by.values()):
            text += (
                f"; steps more than {self.max_lag} versions behind {self.newest} are left out, "
                f"{stale:,} so far"
            )
        if self.early:
            text += (
                f"; steps of versions above {self.newest} wait until these are published, "
                f"{self.early:,} now"
            )
        return text

    def __repr__(self) -> str:
        return repr(self.sampler)
