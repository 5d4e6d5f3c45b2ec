"""Members that are claimed for late fields: each once, or again if its claimant has gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from async_loader.rollouts.group_table import MOST_MEMBERS, GroupTable
from async_loader.rollouts.schema import Array
from async_loader.rollouts.states import MEMBER_BITS, State, member_ids

Task = tuple[tuple[str, ...], tuple[str, ...], str]
"""Fields that are needed, fields that are given, a name."""


@dataclass(slots=True, eq=False)
class Queue:
    """The members of one task.

    Attributes
    ----------
    ids : deque of int
        That wait.
    claimed : dict of int to hashable
        By whom.
    known : set of int
        Groups whose members were put into the queue.
    """

    ids: deque[int] = field(default_factory=deque)
    claimed: dict[int, Hashable] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)


class Claims:
    """Hands out members of a `GroupTable`."""

    def __init__(self, table: GroupTable) -> None:
        self.table = table
        self.queues: dict[Task, Queue] = {}
        self._last: dict[tuple[Hashable, int], tuple[int, list[int]]] = {}

    def claim(
        self,
        owner: Hashable,
        task: Task,
        most: int,
        done: Iterable[int],
        turn: tuple[int, int] = (0, 0),
    ) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Return members with what they have of the needed fields; ``None``: not yet.

        Parameters
        ----------
        done : iterable of int
            Members that were claimed before, and are used.
        turn : (int, int)
            The loop of this owner, and its turn: the same one gets the same members.
        """
        needs, give, _ = task
        queue = self.queues.setdefault(task, Queue())
        for number in done:
            if number in queue.claimed and queue.claimed[number] == owner:
                del queue.claimed[number]
                self.table.changed = True
        self._look(queue, needs, give)
        found: list[int] = []
        last = self._last.get((owner, turn[0]))
        if turn[0] and last is not None and last[0] == turn[1]:  # its answer was lost
            found = [number for number in last[1] if queue.claimed.get(number) == owner]
        while queue.ids and len(found) < most:
            number = queue.ids.popleft()
            group = self.table.groups.get(number >> MEMBER_BITS)
            if group is not None and group.state is State.READY:
                found.append(number)
                queue.claimed[number] = owner
        self._last[owner, turn[0]] = turn[1], found
        if not found:
            waits = queue.claimed or any(
                one.state is State.READY and one.id not in queue.known
                for one in self.table.groups.values()
            )
            return ({"end": True}, {}) if self.table.exhausted and not waits else None
        arrays: dict[str, Array] = {}
        names = (*needs, *self.table.schema.group)
        for i, number in enumerate(found):
            group = self.table.groups[number >> MEMBER_BITS]
            values = group.values(self.table.schema, number & (MOST_MEMBERS - 1), names)
            arrays |= {f"{i}.{name}": value for name, value in values.items()}
        return {"members": found}, arrays

    def _look(self, queue: Queue, needs: tuple[str, ...], give: tuple[str, ...]) -> None:
        """Put the members of groups that have come into the queue."""
        groups = self.table.groups
        queue.known &= groups.keys()
        for group in groups.values():
            if group.state is not State.READY or group.id in queue.known or not group.has(needs):
                continue
            queue.known.add(group.id)
            lacking = [group.missing.get(name) for name in give]
            wanted = [
                number
                for i, number in enumerate(member_ids(group.id, len(group)).tolist())
                if not give
                or any(
                    group.lacks[name] and (one is None or one[i])
                    for name, one in zip(give, lacking, strict=True)
                )
            ]
            queue.ids.extend(wanted)

    def give_back(
        self, client: Hashable, ids: Iterable[int] | None = None, done: Collection[int] = ()
    ) -> None:
        """Return members that a client has claimed and not used, and forget those that are done."""
        wanted = None if ids is None else {*ids, *done}
        if wanted is None:
            self._last = {key: one for key, one in self._last.items() if key[0] != client}
        for queue in self.queues.values():
            back = [
                number
                for number, owner in queue.claimed.items()
                if owner == client and (wanted is None or number in wanted)
            ]
            for number in back:
                del queue.claimed[number]
                if number not in done:
                    queue.ids.appendleft(number)
                self.table.changed = True
