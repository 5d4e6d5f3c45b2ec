"""A table under its lock: ids, links, items, and the samplers that choose among them.

It is built in layers, each in a file of its own and each using those below it::

    table.py    Table         draws items, changes them by id, goes into checkpoints
    write.py    TableWriting  writes steps
    streams.py  TableStreams  numbers streams, ends their episodes, counts the room for them
    items.py    TableItems    knows which rows hold items, and tells the samplers
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.replay.array_types import Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.samplers import Draw, Items, Sampler, one_scale
from async_loader.replay.samplers.sampler import wrong_counts
from async_loader.replay.table.rebuild import derive, rebuild
from async_loader.replay.table.write import TableWriting
from async_loader.source import Applied

_COUNTS = ("inserted", "sampled", "carried", "cleared")


class Drawn(NamedTuple):
    """Ids of drawn items, and their weights if the sampler has any."""

    ids: Ids
    weight: npt.NDArray[np.float32] | None


class Table(TableWriting):
    """The ids, links and items of a table. Every method is called under its lock; none waits."""

    def held_for(self, sampler: Sampler) -> int:
        """Return how many items a sampler chooses among: those of the table, or sequences."""
        own: Items | None = getattr(sampler, "own_items", None)
        return len(self) if own is None else own.count

    def drawable(self, sampler: Sampler) -> int | None:
        """Return how many items one draw can hold; ``None``: any number, as long as there is one
        item.
        """
        held = self.held_for(sampler)
        if not held:
            return 0
        if self._most and sampler.repeats:
            return int((self._most - self.times[self.items.alive != 0]).sum())
        return None if sampler.repeats else held

    def chosen(self, sampler: Sampler, count: int) -> Draw:
        """Have a sampler choose ``count`` items; there must be that many. Raises Broken if it finds
        fewer.
        """
        drawn = sampler.draw(count)
        if len(drawn.rows) < count:
            raise wrong_counts(
                f"{sampler!r} drew {len(drawn.rows)} items of {self.held_for(sampler):,}"
            )
        return drawn

    def draw(self, sampler: Sampler, count: int) -> Drawn:
        """Draw ``count`` items. There must be that many; see `drawable`.

        The caller counts them as sampled, unless each item counts its draws. Then a draw may choose
        an item more often than it has draws left, and other items take its places.
        """
        drawn = self.chosen(sampler, count)
        if not self._most:
            return Drawn(self.ids[drawn.rows], drawn.weight)
        ids, weights = [], []
        while True:
            rows = drawn.rows
            kept = np.full(len(rows), -1, np.int64)
            self.unfinished = True
            self._k.use_up(self.times, rows, self._most, kept)
            kept = kept[kept >= 0]
            self.sampled += len(kept)
            ids.append(self.ids[rows[kept]])
            if drawn.weight is not None:
                weights.append((drawn.weight[kept], drawn.scale))
            used = np.unique(rows)
            self.remove(used[self.times[used] >= self._most])
            count -= len(kept)
            if count <= 0 or not len(self):
                weight = one_scale(weights)[0] if weights else None
                return Drawn(np.concatenate(ids), weight)
            if not len(kept):
                raise wrong_counts(f"{sampler!r} drew none with a draw left of {len(self):,}")
            drawn = sampler.draw(count)

    def prioritize(self, ids: Ids, priority: Floats) -> Applied:
        """Change the priorities of items.

        A step that becomes an item later keeps its new priority until then.
        """
        self.unfinished = True
        if self._update_by_id is not None:
            there = self._update_by_id(self.g, ids, priority)
            self.unfinished = False
            return Applied(there, len(ids) - there)
        rows = np.empty(len(ids), np.int64)
        there = int(self._k.find(self.g, ids, rows, False))
        if there < len(ids):
            known = rows >= 0
            rows, priority = rows[known], priority[known]
        if self._k.note_priorities(self.g, rows, priority) < there:
            alive = self.items.alive[rows] != 0
            rows, priority = rows[alive], priority[alive]
        for one in self.prioritized:
            one.update(rows, priority)
        self.unfinished = False
        return Applied(there, len(ids) - there)

    def delete(self, ids: Ids) -> Applied:
        """End the items of these ids.

        Their rows stay, for the stacks of their neighbours, until they are overwritten.
        """
        rows = np.unique(self.find(ids))
        rows = rows[rows >= 0]
        self.remove(rows)
        return Applied(len(rows), len(ids) - len(rows))

    def clear(self) -> None:
        """End all open episodes, and all items.

        Ids go on, counts begin anew.
        """
        self.end(np.flatnonzero(self.last >= 0).tolist(), r.TRUNCATED)
        self.remove(np.flatnonzero(self.ids >= 0))
        self.inserted, self.cleared = 0, self.steps_had
        self.lost = self.sampled = self.deleted = self.carried = 0

    @property
    def steps_had(self) -> int:
        """How many items were inserted since the table was made: never less than before."""
        return self.cleared + self.inserted

    def publish(self, ids: Ids) -> None:
        """Give rows that were written without ids these ids; -1: the row holds nothing."""
        # a fence: after everything that was written
        self._k.turn_version(self.g, np.empty(0, np.int64), True)
        self.storage.heads()[:, r.ID // 8] = ids + 1

    def state(self) -> dict[str, Any]:
        """Return what a save holds beside the rows, with the last step of each stream."""
        self.forget_ended()
        found: dict[str, Any] = {name: getattr(self, name) for name in _COUNTS}
        if self.ring is not None:
            found["ring"] = [self.ring.floor, self.ring.head, self.ring.size]
        streams = [(name, int(self.last[number])) for name, number in self.streams.items()]
        return found | {
            "cursor": int(self.g[r.CURSOR]),
            "lookahead": int(self.g[r.LOOKAHEAD]),
            "ordered": self.free is None,
            "streams": streams,
        }

    def restore(self, saved: Mapping[str, Any], streams: Mapping[Hashable, int]) -> None:
        """Continue from a `state`, when rows and what has an entry per row are in place."""
        numbers, last = self.numbers(streams), np.array(list(streams.values()), np.int64)
        self.last[numbers] = last
        self._stale = set(numbers[last >= 0].tolist())
        g = self.g
        g[r.CURSOR], g[r.LOOKAHEAD] = saved["cursor"], max(g[r.LOOKAHEAD], saved["lookahead"])
        self.inserted, self.sampled, self.carried, self.cleared = (saved[name] for name in _COUNTS)
        derive(self)
        rebuild(self)
