"""Slots, deadlines and versions of the groups of a table.

It has no lock and no clock.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Literal

from async_loader.rollouts.prompts import PromptLedger
from async_loader.rollouts.schema import GroupSchema
from async_loader.rollouts.states import SLOT, Group, State

Stale = Literal["wait", "drop", "mask"]
_LOAD_BITS = 32
"""Of the ids that are passed over at a load, at random: an id stays below 2 ** 47 for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """See `Rollouts`."""

    schema: GroupSchema
    batch: int
    max_lag: int = 1
    size: int = 8
    deadline_s: float = 600.0
    stale: Stale = "wait"
    tries: int = 2
    replay: int = 0
    policy: str = "policy"

    def plain(self) -> dict[str, Any]:
        """Return the arguments of `Rollouts` as plain values, as in a feeder's configuration."""
        names = "batch", "max_lag", "size", "deadline_s", "stale", "tries", "replay", "policy"
        return {"schema": self.schema.plain(), **{name: getattr(self, name) for name in names}}

    @property
    def slots(self) -> int:
        return (self.max_lag + 1) * self.batch


class SlotTable(PromptLedger):
    """Groups and their prompts.

    Attributes
    ----------
    groups : dict of int to Group
        All that are not ended, in the order of their reservation.
    holders : dict of int to Group
        Those that hold a slot.
    open : dict of int to Group
        Those whose deadline runs: reserved, or without a field that is needed.
    version : int
        Of the newest policy.
    needs : tuple of str
        Fields that a group has to have until its deadline.
    alone_until : float | None
        When prompts end that are `alone`.
    """

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__()
        self.settings, self.schema = settings, settings.schema
        self.groups: dict[int, Group] = {}
        self.holders: dict[int, Group] = {}
        self.open: dict[int, Group] = {}
        self.version = 0
        self.needs = tuple(self.schema.fields)
        self.next_id = 0
        self.alone_until: float | None = None

    @property
    def free(self) -> int:
        """Slots that are free."""
        return self.settings.slots - len(self.holders)

    @property
    def room(self) -> int:
        """Groups that may begin now. Replayed ones of an open step keep the room that new ones of
        it would have: what began beside them might be due with too many others.
        """
        if not self.settings.replay:
            return self.free
        replayed = sum(
            one.state is State.DELIVERED and one.times > 0 for one in self.groups.values()
        )
        return self.free - replayed

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        columns = (column for one in self.groups.values() for column in one.columns.values())
        return sum(column.nbytes for column in columns)

    def count(self, state: State) -> int:
        return sum(one.state is state for one in self.groups.values())

    def lacking(self) -> str:
        """Return how many groups are ready but for late fields, and for which, in words."""
        late = [one for one in self.open.values() if one.state is State.READY]
        names = [name for name in self.needs if any(one.lacks.get(name) for one in late)]
        return f"{len(late)} lack {', '.join(names) or 'fields'}"

    def holding(self) -> str:
        """Return who holds the slots, in words."""
        counts = {one.value: self.count(one) for one in State}
        said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        return f"{said or 'no'} groups, {self.lacking()}"

    # -- the moves ---------------------------------------------------------------------------------

    def move(self, group: Group, state: State) -> None:
        """Change the state of a group, and what follows from it."""
        group.move(state)
        self.changed = True
        if group.times or state not in SLOT:
            self.holders.pop(group.id, None)
        else:
            self.holders[group.id] = group
        self.note_open(group)
        if state is State.ENDED:
            del self.groups[group.id]

    def note_open(self, group: Group) -> None:
        """Note whether a group's deadline runs."""
        late = group.state is State.READY and not group.has(self.needs)
        if group.state is State.RESERVED or late:
            self.open[group.id] = group
        else:
            self.open.pop(group.id, None)

    def end(self, group: Group, reason: str, give_back: bool = False) -> None:
        """End a group; its prompt is given back, unless it was tried as often as it may be."""
        trained = group.times > 0
        group.reason = reason
        self.move(group, State.ENDED)
        group.columns, group.parts = {}, []
        if trained:
            return
        if give_back and group.prompt.tries < self.settings.tries:
            self.counts.given_back[reason] += 1
            self.waiting.appendleft(group.prompt)
        else:
            self.counts.ended[reason] += 1

    def expire(self, now: float) -> None:
        """End the groups whose deadline has passed, and prompts that no generator takes."""
        for group in list(self.open.values()):
            if group.deadline > now:
                continue
            late = [name for name in self.needs if group.lacks.get(name)]
            if group.state is State.RESERVED:
                self.end(group, "deadline", True)
            else:
                self.end(group, f"deadline: no {', '.join(late)}", True)
        if not self.alone:
            self.alone_until = None
        elif self.alone_until is None:
            self.alone_until = now + self.settings.deadline_s
        elif self.alone_until <= now:
            self.counts.ended["no generator"] += len(self.waiting)
            self.waiting.clear()
            self.changed = True

    def due(self) -> float | None:
        """Return when the next deadline passes."""
        ends = [one.deadline for one in self.open.values()]
        ends += [] if self.alone_until is None else [self.alone_until]
        return min(ends, default=None)

    def need(self, names: tuple[str, ...]) -> None:
        """Set which fields a group has to have."""
        self.needs, self.changed = names, True
        for group in self.groups.values():
            self.note_open(group)

    def _finished(self, name: str) -> bool:
        """Whether no prompt of a name waits, and no group of it is being made.

        Groups that are ready may still be given back. A program may read them after its loop, so
        the loop does not wait for that: see `alone`.
        """
        made = [one.prompt for one in self.open.values() if one.state is State.RESERVED]
        return self.cursors[name].over and all(one.name != name for one in (*self.waiting, *made))

    @property
    def _all_drawn(self) -> bool:
        """Whether each prompt was drawn, and no group is being made."""
        return (
            bool(self.cursors)
            and all(cursor.over for cursor in self.cursors.values())
            and not any(one.state is State.RESERVED for one in self.open.values())
        )

    @property
    def exhausted(self) -> bool:
        """Whether no group can come any more."""
        return not self.waiting and self._all_drawn

    @property
    def alone(self) -> bool:
        """Whether the prompts that wait were given back, and no generator is there to take them."""
        return bool(self.waiting) and self.room > 0 and self._all_drawn

    # -- versions ----------------------------------------------------------------------------------

    def over_stale(self, group: Group) -> bool:
        lag = self.version - group.version
        return self.settings.stale != "mask" and lag > self.settings.max_lag and not group.times

    def end_if_stale(self, group: Group) -> bool:
        """End a group that is too old to be delivered; return whether it is."""
        if over := self.over_stale(group):
            self.end(group, "stale", self.settings.stale == "wait")
        return over

    def publish(self, version: int) -> None:
        """There is a newer policy, or one of another run."""
        if version != self.version:
            self.changed = True
        self.version = version
        for group in list(self.groups.values()):
            group.version = min(group.version, version)
            if group.state in (State.RESERVED, State.READY):
                self.end_if_stale(group)

    def skip(self, keys: set[tuple[str, int]]) -> None:
        """These prompts were trained after the save that this table was restored from."""
        for group in list(self.groups.values()):
            if group.prompt.key in keys and not group.times and group.state is not State.DELIVERED:
                keys.discard(group.prompt.key)
                group.times = 1  # so that the end is not counted as one
                self.end(group, "")
                self.counts.trained += 1
        for prompt in [one for one in self.waiting if one.key in keys]:
            keys.discard(prompt.key)
            self.waiting.remove(prompt)
            self.counts.trained += 1
            self.changed = True
        for name, number in keys:
            cursor = self.cursors.get(name)
            if cursor is None or number >= cursor.next:
                self.skipped.add((name, number))

    def pass_over(self) -> None:
        """Give no id that another process may have given since a save, or another load of it."""
        self.next_id += 1 + secrets.randbits(_LOAD_BITS)
