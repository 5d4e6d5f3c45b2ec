"""What generators and graders hold: groups that are being made, and members for late fields."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from async_loader.errors import ConfigError, SchemaError
from async_loader.rollouts.batches import Pieces
from async_loader.rollouts.port import Port
from async_loader.rollouts.schema import Array, GroupSchema
from async_loader.rollouts.states import MEMBER_BITS
from async_loader.validation import whole

_TICKETS = itertools.count(1)
_AHEAD, _QUICK_S = 7, 0.005
"""See `Reservations`."""


class OpenGroup:
    """A group that is being made. Made by `Rollouts.groups` and `Rollouts.reserve`.

    As a context manager it commits at the end of the block, and gives its prompt back after an
    exception. Threads: one at a time.

    Attributes
    ----------
    prompt : object
    number : int
        Of the prompt among those of its name.
    version : int
        Of the newest policy when it was reserved.
    size : int
        The members that are asked for; there may be more, or fewer.
    """

    def __init__(
        self, port: Port, schema: GroupSchema, granted: Mapping[str, Any], prompt: object
    ) -> None:
        self._port, self._schema = port, schema
        self.id: int = granted["group"]
        self.number: int = granted["number"]
        self.version: int = granted["version"]
        self.size: int = granted["size"]
        self.tries: int = granted["tries"]
        self.prompt = prompt
        self._until = time.monotonic() + granted["deadline_s"]
        self._members: list[dict[str, list[Array]]] = []
        self._group: dict[str, Array] = {}
        self._ended = ""

    def __len__(self) -> int:
        """Return the number of members so far."""
        return len(self._members)

    def __repr__(self) -> str:
        state = self._ended or f"{len(self)} of {self.size} members"
        return f"<group {self.id} of prompt {self.number}: {state}>"

    @property
    def missing(self) -> int:
        """How many members are to be made yet; 0 when it is over, or its deadline has passed."""
        return 0 if self.over else max(0, self.size - len(self))

    @property
    def over(self) -> bool:
        """Whether it takes no more: it is committed, given back, or too late."""
        return bool(self._ended) or time.monotonic() >= self._until

    def append(self, *, member: int | None = None, **fields: Any) -> int:
        """Add a member, or go on with one; return its number.

        Parameters
        ----------
        member : int, optional
            The number of a member whose ragged fields go on, as in a partial rollout that continues
            under a newer version.
        **fields
            Ragged fields of one length, other fields of the member, and fields of the group. Those
            that are left out may come later: see `Rollouts.members`.

        Raises
        ------
        SchemaError
            Nothing was added.
        """
        schema = self._schema
        values = {name: schema.array(name, one) for name, one in fields.items()}
        schema.same_length({name: len(values[name]) for name in schema.ragged if name in values})
        if member is None:
            member = len(self._members)
            self._members.append({})
        elif not 0 <= whole("member", member, 0) < len(self._members):
            raise ConfigError(f"member={member}: this group has {len(self)} members")
        known = self._members[member]
        for name, value in values.items():
            if name in schema.group:
                self._group[name] = value
            elif name in schema.ragged and name in known:
                known[name].append(value)
            else:
                known[name] = [value]
        return member

    def update(self, **fields: Any) -> None:
        """Set fields of the group. Raises SchemaError."""
        for name, value in fields.items():
            if name not in self._schema.group:
                raise SchemaError(f"field {name!r} is not of the group: say append({name}=...)")
            self._group[name] = self._schema.array(name, value)

    def commit(self, *, timeout_s: float | None = None) -> bool:
        """End the group: learners and graders may see it.

        Returns
        -------
        bool
            False: it was too late, as its deadline has passed or its slot was given to another.
        """
        return self.committed(self.ask_commit(), timeout_s)

    def ask_commit(self, before: Sequence[Any] = (), hold_s: float = 0.0) -> list[Any]:
        """Begin to commit: `committed` has to follow.

        ``before``: what this returned for the group before, whose message takes this one too if it
        was not sent yet. ``hold_s``: how long the message may wait for the next group.
        """
        if self._ended:
            return []
        parts = self._parts()
        self._ended = "committed"
        if len(parts) > 1:
            for i, (arguments, _) in enumerate(parts):
                arguments |= {"part": i, "last": i == len(parts) - 1}
        fits = len(parts) == 1 and not any(map(self._schema.is_ragged, self._group))
        if before and fits and self._port.extend(before[-1], *parts[0]):
            return list(before[-1:])
        return [self._port.ask("put", *one, hold_s=hold_s) for one in parts]

    def committed(self, asked: Sequence[Any], timeout_s: float | None = None) -> bool:
        """Wait for `ask_commit`."""
        late = False
        for one in asked:
            late |= self.id in self._port.answer(one, timeout_s)[0]["late"]
        if late:
            self._ended = "late"
        return not late

    def abort(self, reason: str = "given up", *, timeout_s: float | None = None) -> None:
        """Give the prompt back: it is tried again, or ended with this reason."""
        if not self._ended:
            self._ended = reason
            asked = self._port.ask("abort", {"group": self.id, "reason": str(reason)[:200]})
            self._port.answer(asked, timeout_s)

    def leave(self) -> None:
        """Take no more: its prompt was given back."""
        self._ended = "the loop was left"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.abort("no commit" if kind is None else kind.__name__)

    def _parts(self) -> list[tuple[dict[str, Any], Pieces]]:
        """Return what is sent: arguments and pieces, each within the bytes of a call."""
        members, cuts, size = self._members, [0], 0
        lengths = [
            self._schema.same_length(
                {name: sum(map(len, one[name])) for name in self._schema.ragged if name in one}
            )
            for one in members
        ]
        sizes = [sum([value.nbytes for ones in one.values() for value in ones]) for one in members]
        for i, one in enumerate(sizes):
            if size and size + one > self._port.most_bytes:
                cuts.append(i)
                size = 0
            size += one
        cuts.append(len(members))
        return [
            self._part(members[a:b], lengths[a:b], self._group if b == len(members) else {})
            for a, b in itertools.pairwise(cuts)
        ]

    def _part(
        self, members: list[dict[str, list[Array]]], lengths: list[int], group: dict[str, Array]
    ) -> tuple[dict[str, Any], Pieces]:
        pieces = Pieces(lengths=[np.array(lengths, np.int64)])
        for name, value in group.items():
            pieces[name] = [value if self._schema.is_ragged(name) else value[None]]
        has: dict[str, list[int]] = {}
        for name in (*self._schema.ragged, *self._schema.small):
            there = [i for i, one in enumerate(members) if name in one]
            if not there:
                continue
            values = [value for i in there for value in members[i][name]]
            pieces[name] = values if self._schema.is_ragged(name) else [v[None] for v in values]
            if len(there) < len(members):
                has[name] = there
        arguments: dict[str, Any] = {"groups": [self.id], "sizes": [len(members)]}
        return arguments | ({"has": has} if has else {}), pieces


class Member(Mapping[str, Any]):
    """One member of a group, with the fields that were asked for, and those of the group.

    Made by `Rollouts.members`.

    Attributes
    ----------
    index : int
        Its id, as in the ``index`` of batches.
    group, number : int
        Id of the group; its place there.
    """

    def __init__(
        self, port: Port, schema: GroupSchema, index: int, fields: dict[str, Array]
    ) -> None:
        self._port, self._schema, self._fields = port, schema, fields
        self.index, self.group = index, index >> MEMBER_BITS
        self.number = index & ((1 << MEMBER_BITS) - 1)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def update(self, *, timeout_s: float | None = None, **fields: Any) -> bool:
        """Set fields; return False if the group has ended meanwhile. Raises SchemaError."""
        arrays = {"index": np.array([self.index])}
        for name, given in fields.items():
            value = self._schema.array(name, given)
            arrays[name] = value if self._schema.is_ragged(name) else value[None]
        asked = self._port.ask("update", {}, arrays)
        return bool(self._port.answer(asked, timeout_s)[0]["applied"])


class Prompts:
    """Prompts of a sequence, which are asked for by number, or of an iterator, one after the other.

    Parameters
    ----------
    prompts : sequence or iterable
    epochs : int | None
        How often a sequence is passed; ``None``: without end.
    start : int
        Prompts of an iterator that were drawn before.
    """

    def __init__(self, prompts: Iterable[Any], epochs: int | None, start: int) -> None:
        items: Any = prompts
        self._items, self._held = items, False
        self.is_sequence = hasattr(prompts, "__getitem__") and hasattr(prompts, "__len__")
        self._value: Any = None
        if self.is_sequence:
            self.limit = None if epochs is None and len(items) else len(items) * (epochs or 0)
        else:
            self._begin(iter(items), start)

    def _begin(self, iterator: Iterator[Any], start: int) -> None:
        self._iterator, self._number = itertools.islice(iterator, start, None), start

    def go_back(self, start: int) -> None:
        """Begin again at a number. Raises ConfigError for an iterator, which cannot."""
        iterator = iter(self._items)
        if iterator is self._items:
            raise ConfigError(
                f"the table is from a save before: it has come to prompt {start}, this iterator to "
                f"{self._number}: begin the loop with a new one"
            )
        self._held = False
        self._begin(iterator, start)

    def arguments(self) -> dict[str, Any]:
        """Return what a reservation says of the next prompt."""
        if self.is_sequence:
            return {"limit": self.limit}
        if not self._held:
            try:
                self._value, self._held = next(self._iterator), True
            except StopIteration:
                return {"over": True, "limit": self._number}
        return {"number": self._number, "value": self._value}

    def granted(self, granted: Mapping[str, Any]) -> Any:
        """Return the prompt of a reservation."""
        if self.is_sequence:
            return self._items[granted["number"] % len(self._items)]
        return granted["value"]

    def sent(self) -> None:
        """The table has the prompt of the last `arguments`."""
        if self._held:
            self._held = False
            self._number += 1


class Reservations:
    """Groups that one loop reserves: some ahead in one call, while the loop is quick.

    Those hold slots and get older. So they are given back once the loop is not quick.
    """

    def __init__(
        self, port: Port, prompts: Prompts, task: dict[str, Any], timeout_s: float | None
    ) -> None:
        self._port, self._prompts, self._task, self._timeout_s = port, prompts, task, timeout_s
        self._quick = False
        self._may, self._given_at = prompts.is_sequence and not port.keeps, -math.inf
        self.ahead: deque[dict[str, Any]] = deque()

    @property
    def hold_s(self) -> float:
        """How long a commit may wait for that of the next group, which is reserved."""
        return _QUICK_S if self.ahead else 0.0

    def ask(self) -> None:
        """Begin to reserve, if nothing is reserved ahead: `answer` has to follow."""
        self._quick = self._may and time.monotonic() - self._given_at < _QUICK_S
        if not self._quick:
            self.give_back()
        if self.ahead:
            return
        self._arguments = self._prompts.arguments()
        more = {"ahead": _AHEAD} if self._quick else {}
        call = {**self._task, "ticket": ticket(), **self._arguments, **more}
        self._pending = self._port.ask("reserve", call, wait_s=self._timeout_s)

    @property
    def most(self) -> int:
        """How many commits may be under way."""
        return 2 * _AHEAD if self._quick else 0

    def answer(self) -> bool:
        """Wait for a group to `take`; False: there is no prompt any more."""
        while not self.ahead:
            granted, _ = self._port.answer(self._pending, self._timeout_s)
            if "end" in granted:
                return False
            if "back" in granted:
                self._prompts.go_back(granted["back"])
            elif "number" in self._arguments:
                self._prompts.sent()
            if "group" not in granted:
                self.ask()
            else:
                self.ahead.extend([granted, *granted["more"]])
        return True

    def take(self) -> dict[str, Any]:
        """Return the next group."""
        self._given_at = time.monotonic()
        return self.ahead.popleft()

    def give_back(self) -> None:
        """Give back what is reserved ahead."""
        while self.ahead:
            number = self.ahead.pop()["group"]
            self._port.drop("abort", {"group": number, "reason": "not begun", "begun": False})


def ticket() -> int:
    """Return a number for a reservation."""
    return next(_TICKETS)
