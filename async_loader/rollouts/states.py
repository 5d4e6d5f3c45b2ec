"""A group, the states that it passes through, and the prompt that it answers."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from async_loader.errors import Broken
from async_loader.rollouts.schema import Array, GroupSchema

MEMBER_BITS = 16
"""Of the id of a member, the lowest ones: its number in the group."""

Columns = Mapping[str, tuple[Array | None, Array]]
"""By field: which members have a value, ``None`` for all, and the values."""


class State(enum.Enum):
    """Where a group is."""

    RESERVED = "reserved"
    READY = "ready"
    DELIVERED = "delivered"
    TRAINED = "trained"
    ENDED = "ended"


MOVES: dict[State, frozenset[State]] = {
    State.RESERVED: frozenset({State.READY, State.ENDED}),
    State.READY: frozenset({State.DELIVERED, State.ENDED}),
    State.DELIVERED: frozenset({State.TRAINED, State.READY, State.ENDED}),
    State.TRAINED: frozenset({State.DELIVERED, State.ENDED}),
    State.ENDED: frozenset(),
}
"""The legal moves. DELIVERED to READY: its learner has gone. TRAINED to DELIVERED: replay."""

SLOT = frozenset({State.RESERVED, State.READY, State.DELIVERED})
"""States in which a group that was not trained yet holds a slot."""


@dataclass(slots=True)
class Prompt:
    """One prompt.

    Attributes
    ----------
    name : str
        Of the prompts that it is one of: see `Cursor`.
    number : int
        Its place there.
    value : plain value
        ``None`` for a sequence, whose users look it up by its number.
    tries : int
        Groups that were reserved for it.
    """

    name: str
    number: int
    value: Any = None
    tries: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.number


@dataclass(slots=True)
class Cursor:
    """How far prompts of one name were drawn.

    Attributes
    ----------
    next : int
        The number of the next one.
    limit : int | None
        How many there are; ``None``: not known, or no end.
    """

    next: int = 0
    limit: int | None = None

    @property
    def over(self) -> bool:
        return self.limit is not None and self.next >= self.limit


@dataclass(slots=True, eq=False)
class Group:
    """One prompt's rollouts.

    Attributes
    ----------
    id : int
        Never reused.
    version : int
        Of the policy that began it, or of its oldest token.
    owner, ticket : hashable
        Who makes it, and the number of the reservation there.
    deadline : float
        For all its fields.
    columns : dict of str to array
        Ragged fields one member behind the other; others ``[members, *shape]``; of the group as
        they are.
    lengths : int64 array [members]
    lacks : dict of str to int
        Members without a value of a field; 1 for a field of the group.
    missing : dict of str to bool array [members]
        Which members these are, of a field that some have.
    times : int
        How often it was trained.
    redelivered : bool
        A learner may have had it before.
    judged : bool
        Whether `keep` has kept it.
    """

    id: int
    prompt: Prompt
    version: int
    deadline: float
    owner: Hashable
    ticket: int
    size: int
    state: State = State.RESERVED
    reason: str = ""
    parts: list[tuple[Columns, Array]] = field(default_factory=list)
    columns: dict[str, Array] = field(default_factory=dict)
    lengths: Array = field(default_factory=lambda: np.empty(0, np.int64))
    starts: Array = field(default_factory=lambda: np.zeros(1, np.int64))
    lacks: dict[str, int] = field(default_factory=dict)
    missing: dict[str, Array] = field(default_factory=dict)
    times: int = 0
    redelivered: bool = False
    judged: bool = False
    priority: float = float("nan")

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self.lengths)

    def move(self, state: State) -> None:
        """Change the state. Raises Broken for a move that is not legal."""
        if state not in MOVES[self.state]:
            raise Broken(f"group {self.id} is {self.state.value}: it cannot become {state.value}")
        self.state = state

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all members have these fields."""
        return not any(self.lacks[name] for name in names)

    def fill(self, schema: GroupSchema) -> None:
        """Take the parts that came: from now on members are fixed."""
        parts, self.parts = self.parts, []
        self.lengths = np.concatenate([lengths for _, lengths in parts])
        self.starts = np.concatenate(([0], np.cumsum(self.lengths)))
        count = len(self.lengths)
        self.columns, self.missing = {}, {}
        self.lacks = {name: 1 if name in schema.group else count for name in schema.fields}
        first = 0
        for columns, lengths in parts:
            for name, (has, values) in columns.items():
                if name in schema.group or (has is None and len(parts) == 1):
                    self.set(schema, name, None, values)
                    continue
                members = np.arange(len(lengths)) if has is None else has
                self.set(schema, name, first + members, values)
            first += len(lengths)

    def set(self, schema: GroupSchema, name: str, members: Array | None, values: Array) -> None:
        """Set a field of these members; ``None``: of the group, or of all, kept without a copy."""
        if members is None:
            self.columns[name], self.lacks[name] = np.asarray(values), 0
            self.missing.pop(name, None)
            return
        ragged = name in schema.ragged
        column = self.columns.get(name)
        if column is None or not column.flags.writeable:
            shape = (int(self.starts[-1]) if ragged else len(self), *values.shape[1:])
            made = np.zeros(shape, values.dtype)
            if column is not None:
                made[...] = column
            column = self.columns[name] = made
        if ragged:
            at = 0
            for member in members.tolist():
                begin, end = int(self.starts[member]), int(self.starts[member + 1])
                column[begin:end] = values[at : at + end - begin]
                at += end - begin
        else:
            column[members] = values
        if self.lacks[name]:
            missing = self.missing.setdefault(name, np.ones(len(self), np.bool_))
            missing[members] = False
            self.lacks[name] = int(np.count_nonzero(missing))
            if not self.lacks[name]:
                del self.missing[name]

    def values(self, schema: GroupSchema, member: int, names: Iterable[str]) -> dict[str, Array]:
        """Return fields of one member, and of the group, that are there."""
        found = {}
        for name in names:
            if name not in self.columns or (name in self.missing and self.missing[name][member]):
                continue
            column = self.columns[name]
            if name in schema.ragged:
                column = column[self.starts[member] : self.starts[member + 1]]
            elif name not in schema.group:
                column = column[member]
            found[name] = column
        return found

    def small(self, schema: GroupSchema) -> dict[str, Array]:
        """Return the fields that a predicate sees: all but those of tokens."""
        names = (*schema.small, *schema.group)
        return {name: self.columns[name] for name in names if not self.lacks[name]}


def member_ids(group: int, count: int) -> Array:
    """Return the ids of the members of a group."""
    return (group << MEMBER_BITS) + np.arange(count, dtype=np.int64)


def by_group(index: Array) -> Iterator[tuple[int, Array]]:
    """Yield the group, and the places in ``index``, of ids of members."""
    groups = index >> MEMBER_BITS
    if len(groups) and (groups[0] == groups).all():
        yield int(groups[0]), np.arange(len(groups))
        return
    order = np.argsort(groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    for places in np.split(order, cuts) if len(order) else ():
        yield int(groups[places[0]]), places
