"""The groups of a table: reserved, made, given late fields.

A call returns ``None`` for what cannot be done yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, SchemaError
from async_loader.rollouts.prompts import NEXT
from async_loader.rollouts.schema import Array, Ragged
from async_loader.rollouts.slots import GroupSettings, SlotTable
from async_loader.rollouts.states import (
    MEMBER_BITS,
    Columns,
    Cursor,
    Group,
    Prompt,
    State,
    by_group,
)

_EXTENDED = 64
"""Calls of `GroupTable.extend` that may come again."""
MOST_MEMBERS = 1 << MEMBER_BITS


class GroupTable(SlotTable):
    """Groups and their prompts."""

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self._extended: dict[tuple[Hashable, int], list[int]] = {}

    # -- prompts and reservations ------------------------------------------------------------------

    def reserve(
        self,
        of: tuple[Hashable, int],
        now: float,
        name: str,
        *,
        size: int | None = None,
        number: int | None = None,
        value: Any = None,
        limit: int | None = None,
        over: bool = False,
        ahead: int = 0,
    ) -> dict[str, Any] | None:
        """Reserve a group for the next prompt of a name.

        Parameters
        ----------
        of : (hashable, int)
            The owner, and a ticket of its own: the same one gets the same group.
        number, value : int, plain value
            A prompt of an iterator, or the `NEXT` one of a program. It is under way from now on,
            whichever is reserved.
        limit : int | None
            How many prompts there are, if they are a sequence, or the iterator is at its end.
        over : bool
            The iterator has no more.
        ahead : int
            Further groups, as ``more``, within half of the slots that are free.

        Returns
        -------
        dict | None
            ``None``: there is no free slot, or no prompt yet. ``{"end": True}``: there are no more,
            and none is being made. ``{"next": True}``: the prompt is under way elsewhere.
            ``{"back": number}``: the table is from a save before; the iterator is to go on there.
        """
        at, come = self.cursors.setdefault(name, Cursor()).next, limit if over else number
        if come is not None and come > at:
            return {"back": at}
        self.note_limit(name, limit, over)
        mine = [
            self._reserved(group)
            for group in self.open.values()
            if (group.owner, group.ticket) == of and group.state is State.RESERVED
        ]
        if mine:
            return {**mine[0], "more": mine[1:]}
        room = self.room
        if number == NEXT and room <= 0:  # a call that gives up leaves no prompt behind
            return None
        if number is not None:
            self.note_prompt(name, of, number, value)
        sequence = number is None and not over
        prompt = self.next_prompt(name, sequence) if room > 0 else None
        if prompt is not None:
            granted, more = self._reserved(self._begin(prompt, of, now, size)), []
            for _ in range(min(ahead, (room - 1) // 2)):
                if (prompt := self.next_prompt(name, sequence)) is not None:
                    more.append(self._reserved(self._begin(prompt, of, now, size)))
            return granted | {"more": more}
        if self._finished(name):
            return {"end": True}
        return {"next": True} if room > 0 and number is not None else None

    def _begin(
        self, prompt: Prompt, of: tuple[Hashable, int], now: float, size: int | None = None
    ) -> Group:
        """Take a slot for a prompt."""
        prompt.tries += 1
        deadline = now + self.settings.deadline_s
        size = self.settings.size if size is None else size
        group = Group(self.next_id, prompt, self.version, deadline, *of, size)
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
        if len(prompts) != len(sizes) or int(sizes.sum()) != len(lengths) or (sizes < 1).any():
            raise ConfigError(f"{len(prompts)} prompts, sizes {sizes}, {len(lengths)} members")
        if len(sizes) > self.settings.slots:
            raise ConfigError(
                f"{len(sizes)} groups at once, there are {self.settings.slots} slots: add fewer"
            )
        if self.room < len(sizes):
            return None
        self._check(columns, lengths, len(sizes))
        found = []
        for i, part in enumerate(self._split(sizes.tolist(), columns, lengths)):
            number = self.note_prompt(name, (of, i), NEXT, prompts[i])
            if not self.waiting or self.waiting[-1].key != (name, number):  # it was trained
                found.append(-1)
                continue
            group = self._begin(self.waiting.pop(), (of[0], -of[1]), now)
            group.parts.append(part)
            self._commit(group)
            found.append(group.id)
        self._extended[of] = found
        if len(self._extended) > _EXTENDED:
            del self._extended[next(iter(self._extended))]
        return found

    # -- members -----------------------------------------------------------------------------------

    def put(
        self,
        owner: Hashable,
        groups: list[int],
        part: int,
        last: bool,
        sizes: list[int],
        columns: Columns,
        lengths: Array,
    ) -> list[int]:
        """Add members to reserved groups; ``last``: commit them. Return those that are too late.

        Parts are numbered from 0; one that came before is passed over.
        """
        self._check(columns, lengths, len(groups))
        if len(groups) != len(sizes) or sum(sizes) != len(lengths) or min(sizes, default=0) < 0:
            raise ConfigError(f"{len(groups)} groups, sizes {sizes}, {len(lengths)} members")
        late = []
        for number, given in zip(groups, self._split(sizes, columns, lengths), strict=True):
            one = self.groups.get(number)
            if one is None or one.owner != owner:
                self.counts.late += 1
                late.append(number)
            elif one.state is State.RESERVED:
                if part > len(one.parts):
                    raise ConfigError(
                        f"part {part} of group {number} came before part {len(one.parts)}"
                    )
                if part == len(one.parts):
                    one.parts.append(given)
                if last:
                    self._commit(one)
        return late

    def _split(
        self, sizes: list[int], columns: Columns, lengths: Array
    ) -> Iterator[tuple[Columns, Array]]:
        """Yield the columns and the lengths of each of several groups, or of one as they are."""
        ragged, group, first, begin = self.schema.ragged, self.schema.group, 0, 0
        for i, size in enumerate(sizes):
            members = slice(first, first + size)
            tokens = slice(begin, begin + int(lengths[members].sum()))
            first, begin = members.stop, tokens.stop
            part = {}
            for name, (has, values) in columns.items():
                if name not in group:
                    here = values[tokens if name in ragged else members]
                    part[name] = has, values if len(sizes) == 1 else here
                elif self.schema.is_ragged(name):
                    part[name] = None, values
                else:
                    part[name] = None, values[i]
            yield part, lengths[members]

    def _check(self, columns: Columns, lengths: Array, groups: int) -> None:
        """Raise SchemaError for members that do not fit: a client may send anything.

        Fields of the group come for this number of groups; a ragged one for one.
        """
        if lengths.dtype != np.int64 or lengths.ndim != 1 or (lengths < 0).any():
            raise SchemaError(f"lengths of members are {lengths}")
        for name, (has, values) in columns.items():
            if name in self.schema.group:
                ragged = self.schema.is_ragged(name) and groups == 1
                self._check_values(name, values, None if ragged else groups)
                continue
            if has is not None and groups > 1:
                raise ConfigError(f"{groups} groups at once have field {name!r} in each member")
            counts = lengths if has is None else lengths[has]
            rows = int(counts.sum()) if name in self.schema.ragged else len(counts)
            self._check_values(name, values, rows)

    def _check_values(self, name: str, values: Array, rows: int | None) -> None:
        """Check dtype and shape; ``rows``: of a first axis, if there is one."""
        self.schema.named("a table", (name,))
        field = self.schema.fields[name]
        ragged = isinstance(field, Ragged) and rows is None
        shape = values.shape[1:] if ragged else values.shape
        wanted = field.shape if rows is None else (rows, *field.shape)
        if values.dtype != field.dtype or shape != wanted or (ragged and not values.ndim):
            raise SchemaError(
                f"field {name!r} is {values.dtype}{list(values.shape)}, it takes "
                f"{field.dtype}{list(wanted)}"
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
        if not self.end_if_stale(group):
            self.move(group, State.READY)

    def abort(self, owner: Hashable, group: int, reason: str, begun: bool = True) -> None:
        """Give up a reserved group: its prompt is given back."""
        one = self.groups.get(group)
        if one is not None and one.owner == owner and one.state is State.RESERVED:
            one.prompt.tries -= not begun
            self.end(one, reason, True)

    def leave(self, owner: Hashable, reason: str) -> None:
        """Give back what an owner has reserved, who is gone."""
        begun = set()
        for group in list(self.open.values()):
            if group.owner == owner and group.state is State.RESERVED:
                group.prompt.tries -= group.ticket in begun  # it was reserved ahead
                begun.add(group.ticket)
                self.end(group, reason, True)

    def update(self, index: Array, values: Mapping[str, Array]) -> int:
        """Set fields of members, by their ids; return how many of these were there.

        A ragged field is that of one member, or of its group.
        """
        applied, ragged = 0, []
        for name, value in values.items():
            (known,) = self.schema.named("a table", (name,))
            if not self.schema.is_ragged(known):
                self._check_values(name, value, len(index))
            elif len(index) != 1:
                raise SchemaError(f"field {name!r} is ragged: it is set member by member")
            else:
                ragged.append(name)
        for number, places in by_group(index):
            group = self.groups.get(number)
            members = index[places] & (MOST_MEMBERS - 1)
            if group is None or not len(group) or int(members.max()) >= len(group):
                self.counts.late += len(places)
                continue
            for name in ragged:
                rows = None if name in self.schema.group else int(group.lengths[members[0]])
                self._check_values(name, values[name], rows)
            whole = len(members) == len(group) and (members == np.arange(len(group))).all()
            for name, value in values.items():
                if name in self.schema.group:
                    one = value if name in ragged else value[places[0]].copy()
                    group.set(self.schema, name, None, one)
                else:
                    one = value if name in ragged else value[places]
                    group.set(self.schema, name, None if whole else members, one)
            self.note_fields(group)
            applied += len(places)
        return applied

    def note_fields(self, group: Group) -> None:
        self.changed = True
        self.counts.updates += 1
        self.note_open(group)

    def delete(self, groups: Iterable[int]) -> int:
        """End groups that are ready, or kept for replay; return how many."""
        found = [self.groups[one] for one in dict.fromkeys(groups) if one in self.groups]
        found = [one for one in found if one.state in (State.READY, State.TRAINED)]
        for group in found:
            self.end(group, "deleted")
        return len(found)
