"""A table of rollouts as a loader's source: one step of the learner is one batch."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import AsyncLoaderError, Closed, ConfigError
from async_loader.lifecycle import GAVE_UP, Deadline, EventFd, Patience, WaitTimeout
from async_loader.rollouts.port import Port
from async_loader.rollouts.schema import Array, GroupSchema
from async_loader.source import END, Applied, Plan, Ready
from async_loader.validation import one_of, whole

Keep = Callable[[Mapping[str, Array]], bool]


@dataclass(eq=False, slots=True)
class Lease:
    """One batch that was planned.

    Attributes
    ----------
    keys : list of [str, int]
        Name and number of its prompts.
    """

    step: int
    keys: list[Any]
    handed_out: bool = False
    settled: bool = False


class RolloutSource:
    """Batches of whole groups. Made by `Rollouts.source`; see `async_loader.source.Leasing`.

    A batch counts as trained when the program asks for the next one, when it publishes a version,
    or when the table is saved.

    Attributes
    ----------
    batch_size : int
        Groups of a batch, on all ranks together.
    step : int
        Of the newest batch, counted from 1 in the table.
    """

    def __init__(
        self,
        port: Port,
        schema: GroupSchema,
        part: int,
        learner: dict[str, Any],
        rank: int,
        keep: Keep | None,
        batch_size: int,
        table: Any,
    ) -> None:
        self._port, self._schema, self._part = port, schema, part
        self._learner, self._rank, self._keep = learner, rank, keep
        self._table = table  # lives as long as this does
        self.batch_size, self.step = batch_size, -1
        self._lease: Lease | None = None
        self._closed = self._over = False
        self.trained: dict[tuple[str, int], None] = {}
        self.version = 0
        self._end = weakref.finalize(self, _give_back, port, part)
        self._end.atexit = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"step {max(0, self.step)}"
        return f"<source of rollouts for rank {self._rank}: {state}>"

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Return this rank's part of the next step.

        Raises
        ------
        Timeout, Closed
            With what it waits for: groups that are being made, fields that are late.
        ConfigError
            For another ``batch_size`` than the table's, and a second learner with other wishes.
        """
        if batch_size != self.batch_size:
            raise ConfigError(
                f"batch_size={batch_size}: this table has batches of {self.batch_size} groups, "
                "leave it out or say the same"
            )
        while True:
            if self._closed:
                raise Closed("this source is closed")
            if self._over:
                return END
            head, arrays = self._draw(patience)
            if "judge" in head:
                self._judge(head["judge"], arrays)
            elif "end" in head:
                self._over = True
            else:
                self.step, self.version = head["step"], head["version"]
                self._lease = Lease(self.step, head["keys"])
                return Ready(arrays, lent=True, lease=self._lease)

    def _draw(self, patience: Patience) -> Any:
        arguments = {
            "part": self._part, "after": self.step, "rank": self._rank, "learner": self._learner,
        }  # fmt: skip
        bell = EventFd()
        pending = self._port.ask("draw", arguments, wake=bell.ring)
        own, answered, why = patience.deadline, False, self._port.why(pending)
        try:
            while not pending.over:
                patience.deadline = Deadline(min(own.left_or_inf(), self._port.due_s()))
                try:
                    patience.wait(bell, why)
                except WaitTimeout:
                    why = self._port.explain(pending)
                    if own.expired:
                        raise WaitTimeout(f"{GAVE_UP}{why}") from None
                bell.clear()
                self._port.look()
            answered = True
        finally:
            patience.deadline = own
            if not answered:  # it may have been answered meanwhile
                self._port.cancel(pending)
                self._tell("give_back", part=self._part, after=self.step)
            bell.close()
        return self._port.answer(pending)

    def _judge(self, groups: list[int], arrays: Mapping[str, Array]) -> None:
        """Tell the table which groups `keep` has kept."""
        assert self._keep is not None
        fields: dict[int, dict[str, Array]] = {group: {} for group in groups}
        for name, value in arrays.items():
            group, _, field = name.partition(".")
            fields[int(group)][field] = value
        kept = [group for group in groups if self._keep(fields[group])]
        dropped = sorted(set(groups).difference(kept))
        self._table._ask("judge", kept=kept, dropped=dropped)

    def _tell(self, name: str, /, **arguments: Any) -> None:
        """Ask at an end, when the table may be gone: it has noticed then."""
        try:
            self._table._ask(name, **arguments)
        except AsyncLoaderError:
            return

    # -- leases, see `Leasing` ---------------------------------------------------------------------

    def hand_out(self, lease: object) -> bool:
        """Return whether the batch is still this learner's."""
        assert isinstance(lease, Lease)
        if self._lease is not lease:
            return False
        lease.handed_out = True
        return True

    def settle(self, lease: object) -> None:
        """Note that a batch was used."""
        assert isinstance(lease, Lease)
        if self._lease is lease and not lease.settled:
            self._note(lease)
            self._port.tell("settle", {"part": self._part, "step": lease.step})

    def used(self) -> list[int]:
        """Return part and step of what the program was given, for a table that is published to or
        saved: it is used.
        """
        lease = self._lease
        if lease is None or not lease.handed_out or lease.settled:
            return []
        self._note(lease)
        return [self._part, lease.step]

    def _note(self, lease: Lease) -> None:
        lease.settled = True
        for name, number in lease.keys:
            self.trained[name, number] = None
        while len(self.trained) > _REMEMBERED:
            del self.trained[next(iter(self.trained))]

    def release(self, timeout_s: float) -> None:
        """Give back what was not used. Another loader may use the source afterwards."""
        self._lease = None
        self.step = -1
        self._tell("give_back", part=self._part)

    # -- by id -------------------------------------------------------------------------------------

    def reader(self) -> None:
        """Return None: no rows are planned."""
        return

    def waiting_for(self) -> str | None:
        """Return None: other threads and processes make groups."""
        return None

    def update_priorities(
        self, index: npt.NDArray[np.int64], priority: npt.NDArray[np.float64]
    ) -> Applied:
        """See `Rollouts.update_priorities`."""
        applied: Applied = self._table.update_priorities(index, priority)
        return applied

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """See `Rollouts.update`."""
        applied: Applied = self._table.update(index, **fields)
        return applied

    def close(self, timeout_s: float | None = None) -> None:
        """Give back what was not used, and end. May be called again."""
        self._closed = True
        self._lease = None
        if self._end.detach() is not None:
            self._tell("give_back", part=self._part)


_REMEMBERED = 1 << 14
"""Prompts that a learner has trained, which it names to a table that was restored."""


def _give_back(port: Port, part: int) -> None:
    """Give back what a source had that was dropped. Any thread: it does not wait."""
    try:
        port.drop("give_back", {"part": part})
    except AsyncLoaderError:
        return


def checked_learner(**given: Any) -> dict[str, Any]:
    """Return what a learner wants as plain values. Raises ConfigError."""
    cost = given["cost"]
    for name in ("max_times_sampled", "tokens"):
        if given[name] is not None:
            given[name] = whole(name, given[name], 1)
    one_of("overlong", given["overlong"], ("alone", "error"))
    if len(cost) != 2 or not all(math.isfinite(one) and one >= 0 for one in cost) or not sum(cost):
        raise ConfigError(f"cost={cost!r}: give a and b of a * tokens + b * tokens ** 2")
    rank, world = given.pop("rank"), given["world_size"]
    if type(rank) is not int or type(world) is not int or not 0 <= rank < world:
        raise ConfigError(f"rank={rank} of world_size={world}: ranks count from 0")
    return given
