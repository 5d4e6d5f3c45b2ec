"""A table under its lock: ids, links, items, and the samplers that choose among them.

It is built in layers, each in a file of its own and each using those below it::

    table.py    Table         draws items, changes them by id, goes into checkpoints
    write.py    TableWriting  writes steps
    room.py     TableRoom     counts the rows that may be written
    streams.py  TableStreams  numbers streams, and ends their episodes
    items.py    TableItems    knows which rows hold items, and tells the samplers
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.errors import Broken
from async_loader.replay.array_types import Array, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.base.field_table import NO_FIELDS
from async_loader.replay.samplers import Draw, Items, Sampler, one_scale, shortcut
from async_loader.replay.table.items import NO_ROWS
from async_loader.replay.table.write import TableWriting
from async_loader.source import Applied


class Drawn(NamedTuple):
    """Ids of drawn items; their weights, and what the weights were divided by, if the sampler has
    weights.
    """

    ids: Ids
    weight: npt.NDArray[np.float32] | None
    scale: Callable[[], float] | None = None


class Table(TableWriting):
    """The ids, links and items of a table. Every method is called under its lock; none waits."""

    def held_for(self, sampler: Sampler) -> int:
        """Return how many items a sampler chooses among: those of the table, or sequences."""
        own: Items | None = getattr(sampler, "own_items", None)
        return len(self) if own is None else own.count

    def drawable(self, sampler: Sampler, but: Ids = NO_ROWS) -> int | None:
        """Return how many items one draw can hold; ``None``: any number, as long as there is one
        item. Items in the rows ``but`` do not count.
        """
        held = self.held_for(sampler) - len(but)
        if not held:
            return 0
        if self._most and sampler.repeats:
            left = int((self._most - self.times[self.items.alive != 0]).sum())
            return left - int((self._most - self.times[but]).sum())
        return None if sampler.repeats else held

    def chosen(self, sampler: Sampler, count: int) -> Draw:
        """Have a sampler choose ``count`` items; there must be that many. Raises Broken if it finds
        fewer.
        """
        drawn = sampler.draw(count)
        if len(drawn.rows) < count:
            raise Broken(
                f"{sampler!r} drew {len(drawn.rows)} items where {count} are wanted and "
                f"{self.held_for(sampler):,} are counted. The counts of this table are wrong: save "
                "it, and load it again, which counts anew"
            )
        return drawn

    def draw(self, sampler: Sampler, count: int, *, again: bool = False) -> Drawn:
        """Draw ``count`` items. There must be that many; see `drawable`.

        The caller counts them as sampled, unless each item counts its draws. Then a draw may choose
        an item more often than it has draws left, and other items take its places.

        ``again``: they replace items that were counted and could not be read.
        """
        drawn = self.chosen(sampler, count)
        if not self._most:
            return Drawn(self.names(drawn.rows), drawn.weight, drawn.scale)
        draws: list[tuple[Draw, Ids]] = []
        self.undelivered = draws
        more = shortcut(sampler, "draw_more", "draw") or sampler.draw
        while True:
            kept = np.full(len(drawn.rows), -1, np.int64)
            draws.append((drawn, kept))
            self._k.use_up(
                self.times,
                self.dirty,
                drawn.rows,
                self._most,
                kept,
                self._lost if again else self._used,
            )
            used = np.unique(drawn.rows)
            self.remove(used[self.times[used] >= self._most])
            taken = int(np.count_nonzero(kept >= 0))
            count -= taken
            if count <= 0 or not len(self):
                return self._joined(draws)
            if not taken:
                raise Broken(
                    f"{sampler!r} drew {len(drawn.rows)} rows, and none of them holds an item with "
                    f"a draw left, where {count} more are wanted and {len(self):,} are counted. "
                    "The counts of this table are wrong: save it, and load it again, which counts "
                    "anew"
                )
            drawn = more(count)

    def taken_back(self) -> Drawn:
        """Return the items that an interrupted draw has used up and not delivered; forget them.

        Completes the draw: samplers are told of the items that are gone.
        """
        draws, self.undelivered = self.undelivered, []
        self.finish()
        for one, _ in draws:
            used = np.unique(one.rows)
            self.remove(used[self.times[used] >= self._most])
        return self._joined(draws)

    def _joined(self, draws: list[tuple[Draw, Ids]]) -> Drawn:
        """Join the parts of a draw, with weights of one scale."""
        picked = [(one, kept[kept >= 0]) for one, kept in draws]
        ids = (
            np.concatenate([self.names(one.rows[kept]) for one, kept in picked])
            if picked
            else np.empty(0, np.int64)
        )
        if not picked or any(one.weight is None for one, _ in picked):
            return Drawn(ids, None)
        parts = [(one.weight[kept], one.scale) for one, kept in picked]  # type: ignore[index]
        return Drawn(ids, *one_scale(parts))

    def prioritize(self, ids: Ids, priority: Floats) -> Applied:
        """Change the priorities of items.

        A step that becomes an item later keeps its new priority until then.
        """
        if self._update_by_id is not None:
            there = self._update_by_id(self.g, ids, priority)
            return Applied(there, len(ids) - there)
        rows = np.empty(len(ids), np.int64)
        there = int(self._k.find(self.g, ids, rows))
        if there < len(ids):
            known = rows >= 0
            rows, priority = rows[known], priority[known]
        if self._k.note_priorities(self.g, rows, priority) < there:
            alive = self.items.alive[rows] != 0
            rows, priority = rows[alive], priority[alive]
        for one in self.prioritized:
            one.update(rows, priority)
        return Applied(there, len(ids) - there)

    def delete(self, ids: Ids) -> Applied:
        """End the items of these ids.

        Their rows stay, for the stacks of their neighbours, until they are overwritten.
        """
        rows = np.unique(self.find(ids))
        rows = rows[rows >= 0]
        if self.keeps and self.free is None and len(rows):
            self._k.lend(self.g, len(rows), int(self.names(rows).max()))
        self.remove(rows)
        return Applied(len(rows), len(ids) - len(rows))

    def clear(self) -> None:
        """End all open episodes, and all items.

        Ids go on, counts begin anew. It may be called again after Ctrl-C.
        """
        for number in np.flatnonzero(self.last >= 0).tolist():
            self.end_stream(number, r.TRUNCATED, NO_FIELDS)
        self.remove(np.flatnonzero(self.ids >= 0))
        self.inserted, self.cleared = 0, self.steps_had
        self._used[0] = self._lost[0] = self.counted = self.deleted = 0
        self.moved = self.carried = 0

    @property
    def steps_had(self) -> int:
        """How many items were inserted since the table was made: never less than before."""
        return self.cleared + self.inserted

    def empty(self) -> None:
        """Remove all items from the samplers, and all ids from the rows: no process can read a row
        from here on.
        """
        there = np.flatnonzero(self.items.alive)
        for one in self._told:
            one.remove(there)
        self.items.alive[:] = 0
        self.items.count = self.items.top = 0
        self.storage.heads()[:, r.ID // 8] = 0
        # a fence: before anything is written to the rows
        self._k.turn_version(self.g, np.empty(0, np.int64), True)

    def publish(self, ids: Ids) -> None:
        """Give rows that were written without ids these ids; -1: the row holds nothing."""
        # a fence: after everything that was written
        self._k.turn_version(self.g, np.empty(0, np.int64), True)
        self.storage.heads()[:, r.ID // 8] = ids + 1

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return counters, and copies of the arrays that have no entry per row; ``last`` in the
        order of `streams`.
        """
        self.forget_ended()
        counters: dict[str, Any] = {
            "cursor": int(self.g[r.CURSOR]),
            "top": int(self.g[r.TOP]),
            "lookahead": int(self.g[r.LOOKAHEAD]),
            "inserted": self.inserted,
            "sampled": self.sampled,
            "deleted": self.deleted,
            "carried": self.carried,
            "cleared": self.cleared,
            "window": self.window,
            "lent": [int(self.g[r.LENT]), int(self.g[r.LENT_TO])],
        }
        arrays = {"last": self.last[list(self.streams.values())]}
        if self.ring is not None:
            counters["ring"] = [self.ring.floor, self.ring.head, self.ring.size]
        if self.free is not None:
            free = self.free.state()
            counters["unused"], arrays["free"] = free["unused"], free["free"]
        return counters, arrays

    def restore(self, counters: Mapping[str, int], streams: Iterable[Hashable], last: Ids) -> None:
        """Continue from a `state`, when the rows and what has an entry per row are in place.

        Samplers are told later.
        """
        numbers = self.numbers(streams)
        self.last[numbers] = last
        self._stale = set(numbers[last >= 0].tolist())
        self.ids[:] = self.storage.heads()[:, r.ID // 8] - 1
        used = np.flatnonzero(self.ids >= 0)
        g, alive = self.g, self.items.alive
        g[r.COUNT] = self.items.count = int(np.count_nonzero(alive))
        g[r.TOP] = self.items.top = max(counters["top"], int(used[-1]) + 1 if len(used) else 0)
        g[r.CURSOR] = counters["cursor"]
        g[r.LOOKAHEAD] = max(int(g[r.LOOKAHEAD]), counters["lookahead"])
        heads = self.storage.heads()
        newest = (self.ids >= g[r.CURSOR] - self.window) if g[r.ORDERED] else self.ids >= 0
        steps = heads[:, r.FLAGS // 8] & (r.FINAL | r.DELETED) == 0
        g[r.WAITING] = np.count_nonzero(newest & steps & (self.ids >= 0) & (alive == 0))
        self.inserted, self.counted, self.deleted = (
            counters[name] for name in ("inserted", "sampled", "deleted")
        )
        if self._most:
            left = int((self._most - self.times[alive != 0]).sum())
            self._lost[0] = self.inserted * self._most - self.sampled - left
        self.cleared = counters["cleared"]
        self.carried = counters["carried"]

    def lend_as_saved(self, counters: Mapping[str, Any]) -> None:
        """Lend a queue the rows that the saved one had been lent, and more where it holds items
        that would not be kept otherwise. Before `restore`, when the rows are in place.
        """
        if not self.keeps or self.free is not None:
            return
        lent, newest = counters["lent"]
        alive = self.items.alive != 0
        if alive.any():
            names = self.storage.heads()[alive, r.ID // 8] - 1
            missing = counters["cursor"] - int(names.min()) - self.window
            if missing > lent:
                lent, newest = missing, counters["cursor"]
        self._k.lend(self.g, lent, newest)

    def expire_old(self, window: int) -> None:
        """End what lies outside of this table's window, where the saved one had a larger one.

        Called after `restore`, when samplers know the items.
        """
        if self.free is None and self.window < window:
            self._k.expire_old(self.g, self._changes)
            self.settle()
