"""The groups of a table: slots, prompts under way, deadlines, versions.

It has no lock and no clock. A call returns ``None`` for what cannot be done yet.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from async_loader.errors import ConfigError, SchemaError
from async_loader.rollouts.prompts import NEXT, PromptLedger
from async_loader.rollouts.schema import Array, GroupSchema
from async_loader.rollouts.states import (
    MEMBER_BITS,
    SLOT,
    Columns,
    Group,
    Prompt,
    State,
    by_group,
)

Stale = Literal["wait", "drop", "mask"]
_LOAD_BITS = 32
"""Of the ids that are passed over at a load, at random: an id stays below 2 ** 47 for long."""
_EXTENDED = 64
"""Calls of `GroupTable.extend` that may come again."""
MOST_MEMBERS = 1 << MEMBER_BITS


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


class GroupTable(PromptLedger):
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
        self._extended: dict[tuple[Hashable, int], list[int]] = {}

    @property
    def free(self) -> int:
        """Slots that are free."""
        return self.settings.slots - len(self.holders)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        columns = (column for one in self.groups.values() for column in one.columns.values())
        return sum(column.nbytes for column in columns)

    def count(self, state: State) -> int:
        return sum(one.state is state for one in self.groups.values())

    # -- the moves ---------------------------------------------------------------------------------

    def move(self, group: Group, state: State) -> None:
        """Change the state of a group, and what follows from it."""
        group.move(state)
        self.changed = True
        if group.times or state not in SLOT:
            self.holders.pop(group.id, None)
        else:
            self.holders[group.id] = group
        if state is State.RESERVED or (state is State.READY and not group.has(self.needs)):
            self.open[group.id] = group
        else:
            self.open.pop(group.id, None)
        if state is State.ENDED:
            del self.groups[group.id]

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
        """End the groups whose deadline has passed."""
        for group in list(self.open.values()):
            if group.deadline > now:
                continue
            late = [name for name in self.needs if group.lacks.get(name)]
            if group.state is State.RESERVED:
                self.end(group, "deadline", True)
            else:
                self.end(group, f"deadline: no {', '.join(late)}", True)

    def due(self) -> float | None:
        """Return when the next deadline passes."""
        return min((one.deadline for one in self.open.values()), default=None)

    def need(self, names: tuple[str, ...]) -> None:
        """Set which fields a group has to have."""
        if names == self.needs:
            return
        self.needs, self.changed = names, True
        for group in self.groups.values():
            if group.state is State.READY:
                if group.has(names):
                    self.open.pop(group.id, None)
                else:
                    self.open[group.id] = group

    # -- prompts and reservations ------------------------------------------------------------------

    def reserve(
        self,
        owner: Hashable,
        now: float,
        *,
        name: str,
        ticket: int,
        size: int | None = None,
        number: int | None = None,
        value: Any = None,
        limit: int | None = None,
        over: bool = False,
    ) -> dict[str, Any] | None:
        """Reserve a group for the next prompt of a name.

        Parameters
        ----------
        ticket : int
            Drawn by the owner: the same one gets the same group.
        number, value : int, plain value
            A prompt of an iterator, or the `NEXT` one of a program. It is under way from now on,
            whichever is reserved.
        limit : int | None
            How many prompts there are, if they are a sequence.
        over : bool
            The iterator has no more.

        Returns
        -------
        dict | None
            ``None``: there is no free slot, or no prompt yet. ``{"end": True}``: there are no more,
            and none can be given back. ``{"next": True}``: the prompt is under way elsewhere.
        """
        self.note_limit(name, limit, over)
        of = owner, ticket
        if number is not None:
            self.note_prompt(name, of, number, value)
        for group in self.groups.values():
            if (group.owner, group.ticket) == of and group.state is State.RESERVED:
                return self._reserved(group)
        sequence = number is None and not over
        prompt = self.next_prompt(name, sequence) if self.free > 0 else None
        if prompt is not None:
            return self._reserved(self._begin(prompt, owner, ticket, now, size))
        if self._finished(name):
            return {"end": True}
        return {"next": True} if self.free > 0 and number is not None else None

    def _begin(
        self, prompt: Prompt, owner: Hashable, ticket: int, now: float, size: int | None = None
    ) -> Group:
        """Take a slot for a prompt."""
        prompt.tries += 1
        deadline = now + self.settings.deadline_s
        group = Group(
            self.next_id, prompt, self.version, deadline, owner, ticket,
            self.settings.size if size is None else size,
        )  # fmt: skip
        self.next_id += 1
        self.groups[group.id] = self.holders[group.id] = self.open[group.id] = group
        self.changed = True
        return group

    def _reserved(self, group: Group) -> dict[str, Any]:
        prompt = group.prompt
        return {
            "group": group.id, "number": prompt.number, "value": prompt.value,
            "version": group.version, "size": group.size, "tries": prompt.tries,
            "deadline_s": self.settings.deadline_s,
        }  # fmt: skip

    def extend(
        self,
        of: tuple[Hashable, int],
        now: float,
        name: str,
        prompts: list[Any],
        sizes: Array,
        columns: Columns,
        lengths: Array,
    ) -> list[int] | None:
        """Add whole groups, of ``sizes`` members; return their ids. ``None``: too few slots."""
        if of in self._extended:
            return self._extended[of]
        if len(sizes) > self.settings.slots:
            raise ConfigError(
                f"{len(sizes)} groups at once, there are {self.settings.slots} slots: add fewer"
            )
        if self.free < len(sizes):
            return None
        self._check(columns, lengths, len(sizes))
        cuts = np.concatenate(([0], np.cumsum(sizes)))
        starts = np.concatenate(([0], np.cumsum(lengths)))
        found = []
        for i, (a, b) in enumerate(itertools.pairwise(cuts.tolist())):
            number = self.note_prompt(name, (of, i), NEXT, prompts[i])
            if not self.waiting or self.waiting[-1].key != (name, number):  # it was trained
                found.append(-1)
                continue
            group = self._begin(self.waiting.pop(), of[0], 0, now)
            part = {}
            for field, (_, values) in columns.items():
                if field in self.schema.group:
                    part[field] = None, values[i]
                elif field in self.schema.ragged:
                    part[field] = None, values[int(starts[a]) : int(starts[b])]
                else:
                    part[field] = None, values[a:b]
            group.parts.append((part, lengths[a:b]))
            self._commit(group)
            found.append(group.id)
        self._extended[of] = found
        if len(self._extended) > _EXTENDED:
            del self._extended[next(iter(self._extended))]
        return found

    def _finished(self, name: str) -> bool:
        """Whether no prompt of a name is left, and none can be given back."""
        return not self.has_more(name) and not any(
            one.prompt.name == name for one in self.open.values()
        )

    @property
    def exhausted(self) -> bool:
        """Whether no group can come any more."""
        return (
            bool(self.cursors)
            and all(cursor.over for cursor in self.cursors.values())
            and not self.waiting
            and not any(one.state is State.RESERVED for one in self.open.values())
        )

    # -- members -----------------------------------------------------------------------------------

    def put(
        self, owner: Hashable, group: int, part: int, last: bool, columns: Columns, lengths: Array
    ) -> bool:
        """Add members to a reserved group; ``last``: commit it. Return whether it is too late.

        Parts are numbered from 0; one that came before is passed over.
        """
        one = self.groups.get(group)
        if one is not None and one.owner == owner and one.state is not State.RESERVED:
            return False
        if one is None or one.owner != owner:
            self.counts.late += 1
            return True
        if part == len(one.parts) or (not last and part < len(one.parts)):
            self._check(columns, lengths)
            if part == len(one.parts):
                one.parts.append((columns, lengths))
        elif part > len(one.parts):
            raise ConfigError(f"part {part} of group {group} came before part {len(one.parts)}")
        if last:
            self._commit(one)
        return False

    def _check(self, columns: Columns, lengths: Array, groups: int | None = None) -> None:
        """Raise SchemaError for columns that do not fit: a client may send anything."""
        total = int(lengths.sum())
        for name, (has, values) in columns.items():
            field = self.schema.fields.get(name)
            if field is None or values.dtype != field.dtype:
                raise SchemaError(f"field {name!r} of {values.dtype} is not in the schema")
            if name in self.schema.group:
                if groups is not None and len(values) != groups:
                    raise SchemaError(
                        f"field {name!r} has {len(values)} values for {groups} groups"
                    )
                continue
            rows = len(lengths) if has is None else len(has)
            if name in self.schema.ragged:
                rows = total if has is None else int(lengths[has].sum())
            if values.shape != (rows, *field.shape):
                raise SchemaError(
                    f"field {name!r} has shape {list(values.shape)}, {len(lengths)} members take "
                    f"{[rows, *field.shape]}"
                )

    def _commit(self, group: Group) -> None:
        if sum(len(lengths) for _, lengths in group.parts) > MOST_MEMBERS:
            self.end(group, f"more than {MOST_MEMBERS} members")
            return
        if not group.parts or not any(len(lengths) for _, lengths in group.parts):
            self.end(group, "no members", True)
            return
        group.fill(self.schema)
        if "version" in self.schema.ragged and len(versions := group.columns.get("version", ())):
            group.version = min(group.version, max(0, int(np.min(versions))))
        if self.over_stale(group):
            self.end(group, "stale", self.settings.stale == "wait")
            return
        self.move(group, State.READY)

    def abort(self, owner: Hashable, group: int, reason: str) -> None:
        """Give up a reserved group: its prompt is given back."""
        one = self.groups.get(group)
        if one is not None and one.owner == owner and one.state is State.RESERVED:
            self.end(one, reason, True)

    def leave(self, owner: Hashable, reason: str) -> None:
        """Give back what an owner has reserved, who is gone."""
        for group in list(self.open.values()):
            if group.owner == owner and group.state is State.RESERVED:
                self.end(group, reason, True)

    def update(self, index: Array, values: Mapping[str, Array]) -> int:
        """Set fields of members, by their ids; return how many of these were there."""
        applied = 0
        for number, places in by_group(index):
            group = self.groups.get(number)
            members = index[places] & (MOST_MEMBERS - 1)
            if group is None or not len(group) or int(members.max()) >= len(group):
                self.counts.late += len(places)
                continue
            whole = len(members) == len(group) and (members == np.arange(len(group))).all()
            for name, value in values.items():
                if name in self.schema.group:
                    group.set(self.schema, name, None, value[places[0]].copy())
                elif name not in self.schema.ragged:
                    group.set(self.schema, name, members, value[places], bool(whole))
            self.note_fields(group)
            applied += len(places)
        return applied

    def update_member(self, member: int, values: Mapping[str, Array]) -> bool:
        """Set fields of one member, of any kind; return whether it was there."""
        group = self.groups.get(member >> MEMBER_BITS)
        number = member & (MOST_MEMBERS - 1)
        if group is None or number >= len(group):
            self.counts.late += 1
            return False
        for name, value in values.items():
            if name in self.schema.ragged and len(value) != group.lengths[number]:
                raise SchemaError(
                    f"field {name!r} has {len(value)} values, member {number} of group {group.id} "
                    f"has {group.lengths[number]}: one for each"
                )
        for name, value in values.items():
            if name in self.schema.group:
                group.set(self.schema, name, None, value)
            else:
                one = value if name in self.schema.ragged else value[None]
                group.set(self.schema, name, np.array([number]), one)
        self.note_fields(group)
        return True

    def note_fields(self, group: Group) -> None:
        self.changed = True
        self.counts.updates += 1
        if group.state is State.READY and group.has(self.needs):
            self.open.pop(group.id, None)

    def delete(self, groups: Iterable[int]) -> int:
        """End groups that are ready, or kept for replay; return how many."""
        found = [self.groups[one] for one in dict.fromkeys(groups) if one in self.groups]
        found = [one for one in found if one.state in (State.READY, State.TRAINED)]
        for group in found:
            self.end(group, "deleted")
        return len(found)

    # -- versions ----------------------------------------------------------------------------------

    def over_stale(self, group: Group) -> bool:
        lag = self.version - group.version
        return self.settings.stale != "mask" and lag > self.settings.max_lag and not group.times

    def publish(self, version: int) -> None:
        """There is a newer policy, or one of another run."""
        if version != self.version:
            self.changed = True
        self.version = version
        for group in list(self.groups.values()):
            group.version = min(group.version, version)
            if group.state in (State.RESERVED, State.READY) and self.over_stale(group):
                self.end(group, "stale", self.settings.stale == "wait")

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
