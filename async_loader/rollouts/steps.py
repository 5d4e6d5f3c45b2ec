"""Which groups a learner gets next, in steps of one batch for all its ranks.

# NOTE [one step at a time]
The next step is drawn when all groups of the one before are trained, or back in the table: so no
batch is drawn ahead of its version. A group counts as trained when its learner asks for the next
batch, publishes, or saves. Ranks train a step together: the word of one holds for all that have
their part.

# NOTE [due]
A group is due when its version + max_lag is the newest one: it must be in this step. That alone
does not bound the lag, as twice a batch of groups might be due at once. So of the groups that are
due within k versions, at most k batches may stay; the others must be in this step, which waits for
them. There are (max_lag + 1) * batch slots, so that the oldest versions first always do. A sampler
chooses among the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.sampler import Items
from async_loader.rollouts import balance
from async_loader.rollouts.batches import pack
from async_loader.rollouts.group_table import GroupTable
from async_loader.rollouts.learner import Learner, Owner, Part, Step
from async_loader.rollouts.schema import Array
from async_loader.rollouts.states import Group, State

_JUDGED = 256
"""Groups that one answer asks about."""
_DRAWS = 8
"""Draws of a sampler that may repeat an item, until it has named as many as are needed."""


class Steps:
    """Draws from a `GroupTable`, under the same rules.

    Attributes
    ----------
    number : int
        Of the newest step.
    kept : dict of int to Group
        Trained ones that may be drawn again, in the order in which they were trained.
    users : set of Owner
        Who draws.
    holds : dict of Owner to int
        Steps whose versions are about to come.
    bound : dict of Sampler to Items
        Samplers that were used. One belongs to a table for its life.
    why : callable
        What the last draw has waited for.
    """

    def __init__(self, table: GroupTable) -> None:
        self.table = table
        self.number = 0
        self.step = Step(0, 0)
        self.learner: Learner | None = None
        self.kept: dict[int, Group] = {}
        self.why: Callable[[], str] = str
        self.lags: list[int] = []
        self.users: set[Owner] = set()
        self.holds: dict[Owner, int] = {}
        self.bound: dict[Sampler, Items] = {}
        self._sampler: Sampler | None = None

    # -- draws -------------------------------------------------------------------------------------

    def draw(
        self, owner: Owner, after: int, rank: int, learner: Learner, sampler: Sampler | None
    ) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Return a rank's part of the step that follows ``after``; ``None``: not yet.

        Or the small fields of groups that `judge` has to be told of, or the end.
        """
        self._begin(owner, learner, sampler)
        part = self.step.parts.get(rank)
        if part is not None and part.owner in (None, owner) and after < self.number:
            part.owner = owner  # again, if its answer was lost
            return self._batch(part)
        if self.step.parts:
            ranks = ", ".join(map(str, sorted(self.step.parts)))
            self.why = lambda: (
                f"the end of step {self.number}: rank {ranks} has not used its part yet"
            )
            return None
        ready = self._eligible(learner)
        if learner.judges and (unjudged := [one for one in ready if not one.judged][:_JUDGED]):
            self.why = str
            return self._candidates(unjudged)
        chosen = self._choose([one for one in ready if one.judged or not learner.judges])
        if chosen is None:
            return None
        if not chosen:
            return {"end": True}, {}
        self.number = max(self.number, after)  # a table that was restored is behind its learner
        self._open(chosen, learner)
        return self.draw(owner, after, rank, learner, sampler)

    def _begin(self, owner: Owner, learner: Learner, sampler: Sampler | None) -> None:
        """Take what a learner wants, in place of an earlier one's."""
        if learner == self.learner:
            self.users.add(owner)
            return
        if self.users - {owner}:
            raise ConfigError(
                f"{len(self.users - {owner})} sources draw with {self.learner}, this one has "
                f"{learner}: close them, or say the same on each rank"
            )
        if learner.max_times_sampled != 1 and not self.table.settings.replay:
            raise ConfigError(
                f"max_times_sampled={learner.max_times_sampled}: this table keeps no "
                "trained group, say Rollouts(..., replay=256)"
            )
        if learner.world_size > self.table.settings.batch:
            raise ConfigError(
                f"world_size={learner.world_size} ranks share {self.table.settings.batch} groups: "
                "raise batch, each rank gets one at least"
            )
        for rank in list(self.step.parts):
            self._return(rank)
        if sampler is not None and sampler not in self.bound:
            settings = self.table.settings
            self.bound[sampler] = Items(settings.slots + settings.replay)
            sampler.bind(self.bound[sampler], np.random.SeedSequence())
        self.learner, self._sampler, self.users = learner, sampler, {owner}
        self.table.need(learner.needs)

    def _eligible(self, learner: Learner) -> list[Group]:
        """Return the groups that may be drawn, the oldest first."""
        most = learner.max_times_sampled
        kept = [
            one
            for one in self.kept.values()
            if one.state is State.TRAINED and (most is None or one.times < most)
        ]
        holders, late = self.table.holders.values(), self.table.open
        fresh = [one for one in holders if one.state is State.READY and one.id not in late]
        return [*kept, *fresh]

    def _candidates(self, groups: Sequence[Group]) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the small fields of groups that are to be judged."""
        arrays: dict[str, Array] = {}
        listed = []
        for group in groups:
            small = group.small(self.table.schema)
            arrays |= {f"{group.id}.{name}": value for name, value in small.items()}
            listed.append(group.id)
        return {"judge": listed}, arrays

    def judge(self, kept: Sequence[int], dropped: Sequence[int]) -> None:
        """Note which groups a predicate has kept; others give their slot back."""
        groups = self.table.groups
        for number in kept:
            if (group := groups.get(number)) is not None:
                group.judged = self.table.changed = True
        for number in dropped:
            if (group := groups.get(number)) is not None and group.state is State.READY:
                self.table.end(group, "filtered")

    def _choose(self, ready: list[Group]) -> list[Group] | None:
        """Return the groups of the next step; ``None``: not yet; none at all: the end."""
        table, settings = self.table, self.table.settings
        fresh = [one for one in ready if not one.times]
        last = not table.open and table.exhausted
        if last and not fresh:
            return []
        if len(ready) < settings.batch and not last:
            self.why = lambda: self._batch_lacks(len(ready))
            return None
        order = self._order(ready)
        chosen: dict[int, Group] = {}
        if settings.stale == "wait" and not self._due(order, chosen):
            return None
        for group in order:
            if len(chosen) >= settings.batch:
                break
            chosen[group.id] = group
        found = list(chosen.values())
        world = 1 if self.learner is None else self.learner.world_size
        if last and len(found) < world:  # a rank would have none
            for group in found:
                table.end(group, "fewer groups than ranks")
            return []
        return found

    def _batch_lacks(self, ready: int) -> str:
        """Return what a batch waits for, in words."""
        table, settings = self.table, self.table.settings
        alone = f", for a generator: each is gone, they end in {settings.deadline_s:g} s"
        return (
            f"{settings.batch} groups: {ready} are there, {table.lacking()}, "
            f"{table.count(State.RESERVED)} are being made, {len(table.waiting)} prompts wait"
            f"{alone if table.alone else ''}"
        )

    def _due(self, order: list[Group], chosen: dict[int, Group]) -> bool:
        """Choose what has to be in this step; False: some of it is not ready. See NOTE [due]."""
        table, settings = self.table, self.table.settings
        undelivered = [one for one in table.holders.values() if one.state is not State.DELIVERED]
        for k in range(settings.max_lag + 1):
            latest = table.version + k - settings.max_lag
            due = {one.id for one in undelivered if one.version <= latest}
            need = len(due) - k * settings.batch - len(due & chosen.keys())
            need = max(0, min(need, settings.batch - len(chosen)))
            there = [one for one in order if one.id in due and one.id not in chosen]
            if len(there) < need:
                late = sorted(due - chosen.keys() - {one.id for one in there})
                text = "{} of the groups {}, which are due at version {}"
                self.why = partial(text.format, need - len(there), late[:8], table.version + k)
                return False
            chosen |= {one.id: one for one in there[:need]}
        return True

    def _order(self, ready: list[Group]) -> list[Group]:
        """Return the groups in the order in which the sampler would draw them."""
        sampler = self._sampler
        if sampler is None or not ready:
            return sorted(ready, key=lambda one: one.id)
        items = self.bound[sampler]
        rows = np.arange(len(ready))
        sampler.remove(np.arange(items.rows))
        items.alive[:] = 0
        items.alive[: len(ready)] = 1
        items.count = items.top = len(ready)
        sampler.insert(rows, np.array([one.priority for one in ready]))
        wanted, found = min(len(ready), self.table.settings.batch), dict[int, None]()
        for _ in range(_DRAWS):
            drawn = sampler.draw(wanted).rows.tolist()
            found |= dict.fromkeys(drawn)
            if len(found) >= wanted or not sampler.repeats:
                break
        rest = [i for i in range(len(ready)) if i not in found]
        return [ready[i] for i in (*found, *rest)]

    # -- steps -------------------------------------------------------------------------------------

    def _open(self, chosen: list[Group], learner: Learner) -> None:
        """Begin a step: share the groups among the ranks."""
        a, b = learner.cost
        if learner.tokens is not None and learner.overlong == "error":
            for group in chosen:
                if int(group.lengths.max()) > learner.tokens:
                    self.table.end(group, "longer than tokens")
                    raise ConfigError(
                        f"a member of group {group.id} has {int(group.lengths.max())} tokens, a "
                        f"micro-batch {learner.tokens}: raise tokens, or say overlong='alone'"
                    )
        shares, costs = [chosen], {}
        if learner.world_size > 1 or learner.tokens is not None:
            for one in chosen:
                costs[one.id] = a * one.lengths + b * one.lengths.astype(np.float64) ** 2
            sums = [float(costs[one.id].sum()) for one in chosen]
            ranks = balance.shares(sums, learner.world_size, [0] * len(chosen), 0.0)
            shares = [[chosen[i] for i in rank] for rank in ranks]
        parts = [Part(groups, None, [0, sum(map(len, groups))]) for groups in shares]
        if learner.tokens is not None:
            lengths = [[n for one in part.groups for n in one.lengths.tolist()] for part in parts]
            each = [[c for one in part.groups for c in costs[one.id].tolist()] for part in parts]
            micro = balance.micro_batches(lengths, learner.tokens, each)
            for part, bins in zip(parts, micro, strict=True):
                part.order = [j for one in bins for j in one]
                part.micro = np.cumsum([0, *map(len, bins)]).tolist()
        self.number += 1
        self.step = Step(self.number, self.table.version, list(chosen), dict(enumerate(parts)))
        self.lags = [self.table.version - one.version for one in chosen]
        for group in chosen:
            self.table.move(group, State.DELIVERED)

    def _batch(self, part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
        learner, table = self.learner, self.table
        fields = None if learner is None else learner.fields
        if fields is None:
            fields = tuple(
                name for name in table.schema.fields if all(one.has((name,)) for one in part.groups)
            )
        settings = table.settings
        most = settings.max_lag if settings.stale == "mask" else None
        arrays = pack(
            table.schema, part.groups, part.order, part.micro, fields, self.step.version, most
        )
        keys = [[one.prompt.name, one.prompt.number] for one in self.step.groups]
        self.why = str
        return {"step": self.number, "version": self.step.version, "keys": keys}, arrays

    def hold(self, step: int, owner: Owner) -> None:
        """As `settle`, when its client's version of it has come: else slots that it frees would be
        taken for the version before.
        """
        self.holds[owner] = step

    def release_holds(self, client: Hashable | None = None) -> None:
        """Settle what was held; ``None``: of any client."""
        for owner in [one for one in self.holds if client in (None, one[0])]:
            self.settle(self.holds.pop(owner), owner)

    def settle(self, step: int, owner: Owner) -> None:
        """The learner has used what it was given of a step: see NOTE [one step at a time]."""
        if step != self.number or not any(part.owner == owner for part in self.step.parts.values()):
            return
        for rank, part in list(self.step.parts.items()):
            if part.owner is not None:
                del self.step.parts[rank]
                for group in part.groups:
                    self._trained(group)

    def _trained(self, group: Group) -> None:
        table = self.table
        group.times += 1
        group.redelivered = False
        if group.times == 1:
            table.counts.trained += 1
        table.move(group, State.TRAINED)
        most = 1 if self.learner is None else self.learner.max_times_sampled
        self.kept.pop(group.id, None)
        if table.settings.replay and (most is None or group.times < most):
            self.kept[group.id] = group
        else:
            table.end(group, "")
        while len(self.kept) > table.settings.replay:
            oldest = next((one for one in self.kept.values() if one.state is State.TRAINED), None)
            if oldest is None:
                break
            del self.kept[oldest.id]
            table.end(oldest, "")

    def give_back(self, owner: Owner, leaves: bool = True) -> None:
        """Return the parts that an owner has not used; ``leaves``: it draws no more.

        A step that no rank has any more is returned as a whole: ranks that begin anew would get
        parts of different steps. One that another rank has keeps the part of a draw that was given
        up, which comes again.
        """
        parts, mine = self.step.parts, []
        if leaves:
            self.users.discard(owner)
        for rank, part in parts.items():
            if part.owner == owner:
                part.owner = None
                mine.append(rank)
        others = any(part.owner is not None for part in parts.values())
        if mine and not others:
            mine = list(parts)
        for rank in mine if leaves or not others else ():
            self._return(rank, seen=True)

    def _return(self, rank: int, seen: bool = False) -> None:
        table = self.table
        for group in self.step.parts.pop(rank).groups:
            group.redelivered = group.redelivered or seen
            if group.times:
                group.move(State.TRAINED)
                table.changed = True
                continue
            table.move(group, State.READY)
            table.end_if_stale(group)

    def prioritize(self, groups: Array, priority: Array) -> int:
        """Set priorities of groups; return how many were there. Of one named twice, the largest."""
        found: dict[int, float] = {}
        for number, value in zip(groups.tolist(), priority.tolist(), strict=True):
            if number in self.table.groups:
                found[number] = max(value, found.get(number, value))
        for number, value in found.items():
            self.table.groups[number].priority = value
        return len(found)
