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
_NONE = -(1 << 62)
"""Below all versions."""


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

    Where versions are published, a step may come before the version that made it: weights go to the
    shards of a cluster side by side, and an actor has them from one of them while another, which
    its writer is bound to, still receives them. Such steps are drawn. A step does not say its run,
    so a version above the newest may also be of a run that is over: what is still above the next
    version that is published is left out then.

    Thread rule: that of a `Sampler`. Cost: those of ``sampler``, and some 20 us a call for
    additions; a new version takes 2 ms for a million rows. Memory: 9 bytes a row.

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
    """

    _again: bool | None

    def __init__(
        self,
        sampler: Sampler,
        max_lag: int,
        items: Items,
        versions: Callable[[], Array],
        seed: np.random.SeedSequence,
        left_out_by: dict[str, int],
        published: int | None = None,
        end: Callable[[Rows], None] | None = None,
    ) -> None:
        self._versions, self._end_items = versions, end
        self.max_lag = max_lag
        super().__init__(sampler, items, seed)
        self.newest: int | None = published
        self._left_out_by = left_out_by
        self._published = published is not None
        self._of = np.empty(items.rows, np.int64)  # the versions of the steps that it knows
        self.reset()
        # of what is there already, the steps that are left out are counted
        self._again = None if items.count else False

    def reset(self) -> None:
        """Forget all items. Those that come next were counted before."""
        super().reset()
        self._of[:] = _NONE
        self._again = True

    def insert(self, rows: Rows, priority: Priorities) -> None:
        """See `Sampler.insert`."""
        again, self._again = self._again, False
        if not len(rows):
            return
        versions = self._versions()[rows].astype(np.int64)
        if not self._published:
            self.see(int(versions.max()))
        assert self.newest is not None
        left_out = versions < self.newest - self.max_lag
        if again is not False and self._published:  # the table may hold steps of an earlier run
            left_out |= versions > self.newest
        if not again:
            self._count(rows[left_out], "came_old")
        now = ~left_out
        rows, some = rows[now], priority[now]
        if len(rows):
            self._of[rows] = versions[now]
            self._begin(rows)
            self.sampler.insert(rows, some)
            priority[now] = some  # what the sampler put in place of NaN

    def too_old(self, versions: Array) -> Bools:
        """Return which steps that were drawn, and came back, are left out now; count them."""
        newest = _NONE if self.newest is None else self.newest
        versions = versions.astype(np.int64)
        old: Bools = versions < newest - self.max_lag
        if self._published:
            old |= versions > newest
        self._left_out_by["became_old"] += int(old.sum())
        return old

    def see(self, version: int) -> None:
        """Note a version, and leave out the steps that are too old for it."""
        if self.newest is None or version > self.newest:
            self.newest = version
            self._leave_out(self._of < version - self.max_lag, "became_old")

    def publish(self, version: int) -> None:
        """Note the version that is published now, where all of them are told.

        When the versions begin again at a lower one, all steps that are here are of another run,
        and so are those of later versions.
        """
        if self.newest is not None and version < self.newest:
            self._leave_out(self._of > _NONE, "other_run")
            self.newest = version
        self.see(version)
        self._leave_out(self._of > version, "other_run")
        self._published = True

    def _leave_out(self, which: Bools, reason: str) -> None:
        rows = np.flatnonzero(which & (self._of > _NONE))
        self._count(rows, reason)
        self.remove(rows)

    def _count(self, rows: Rows, reason: str) -> None:
        self._left_out_by[reason] += len(rows)
        if self._end_items is not None and len(rows):
            self._end_items(rows)

    def remove(self, rows: Rows) -> None:
        """See `Sampler.remove`."""
        gone = self._end(rows)
        self._of[gone] = _NONE
        if len(gone):
            self.sampler.remove(gone)

    def forget(self) -> None:
        """Forget the newest version: the table's contents are replaced."""
        self.newest, self._published = None, False

    @property
    def left_out(self) -> str:
        """What is left out, as the end of a message; empty if nothing is."""
        stale = sum(self._left_out_by.values())
        if not stale:
            return ""
        return (
            f"; steps more than {self.max_lag} versions behind {self.newest} are left out, "
            f"{stale:,} so far"
        )

    def __repr__(self) -> str:
        return repr(self.sampler)
