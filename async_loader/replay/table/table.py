"""A table's ids, links and items, and who chooses among them.

Waits for nothing; every method is called under one lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.replay.base import row_format as r
from async_loader.replay.base.field_table import NO_FIELDS
from async_loader.replay.samplers import Draw, Fifo, Items, Sampler, one_scale, shortcut
from async_loader.replay.table.free_rows import FreeRows
from async_loader.replay.table.step_packer import end_fields
from async_loader.replay.table.storage import Storage
from async_loader.replay.views import depth_and_lookahead
from async_loader.source import Applied

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_NO_FLOATS = np.empty(0)
_NO_ROWS = np.empty(0, np.int64)


class Drawn(NamedTuple):
    """Ids of drawn items; their weights and what the weights were divided by, where the sampler has
    weights.
    """

    ids: Ids
    weight: npt.NDArray[np.float32] | None
    scale: Callable[[], float] | None = None


_FIRST_STREAMS = 64


class Table:
    """What one process alone decides: which ids there are, how steps are linked, which of them are
    items.

    Parameters
    ----------
    storage : Storage
    samplers : sequence of Sampler
        Told of every item.
    remover : Sampler
        `Fifo` means that rows are overwritten in order; any other chooses the item that makes room.
    seed : SeedSequence
        For the remover.
    max_times_sampled : int
        Draws after which an item is no more; 0: any number.
    keeps : bool
        The limiter promises that every item is drawn: see NOTE [queue tables].
    successor_of : Table, optional
        Whose rows and samplers this table takes over, with the streams that writers elsewhere know
        by number. It holds nothing then, and neither does this one.

    # NOTE [queue tables]
    Rows are written in order, and the limiter counts items. Rows that are none (final observations,
    steps that wait for their successors, the past of stacks) take room beside them. So where no
    item may be lost, a row is overwritten only when nothing in it is still to be drawn, which
    `room` tells, and writers wait for that. Spare rows are taken for what one open episode needs
    beside its items, so that a queue of ``capacity`` items fits.
    """

    def __init__(
        self,
        storage: Storage,
        samplers: Sequence[Sampler],
        remover: Sampler,
        seed: np.random.SeedSequence,
        max_times_sampled: int = 0,
        keeps: bool = False,
        successor_of: Table | None = None,
    ) -> None:
        from async_loader.replay import kernels  # late: see compiled.py

        self._k = kernels
        self.storage = storage
        layout = storage.layout
        self.items: Items = Items(layout.rows) if successor_of is None else successor_of.items
        self.held = np.zeros(layout.rows, np.uint8)
        self.dirty = np.zeros(layout.rows, np.uint8)
        self.given: Floats = _NO_FLOATS
        self.ids = np.full(layout.rows, -1, np.int64)
        self.last = np.full(_FIRST_STREAMS, -1, np.int64)
        self.streams: dict[Hashable, int] = {}  # see NOTE [streams]
        self._numbers = 0
        self._spare: list[int] = []
        self._held: dict[int, int] = {}
        self._stale: set[int] = set()  # open since before the table was loaded
        self._born = np.empty(2 * layout.rows, np.int64)
        self._died = np.empty(2 * layout.rows, np.int64)
        # see `kernels`; items born, items died, an answer, died but not deleted
        self._changes = np.zeros(4, np.int64)
        self._unsettled = self._changes.data
        self._rest: tuple[Any, ...] | None = None
        self._patching: Ids | None = None
        self._none = np.full(256, np.nan)
        self.inserted = self.counted = self.deleted = 0
        # draws that are counted for each item, as kernels count them
        self._used = np.zeros(1, np.int64)
        self.undelivered: list[tuple[Draw, Ids]] = []
        self._parted = False
        self._most = max_times_sampled
        self.times = np.zeros(layout.rows if max_times_sampled else 0, np.int64)
        g = self.g = storage.geometry
        g[r.DEPTH], g[r.LOOKAHEAD] = depth_and_lookahead(layout.schema)
        g[r.FOLLOWED] = g[r.LOOKAHEAD]
        self.schema_lookahead = int(g[r.LOOKAHEAD])
        # the past, the newest step, and what comes after an end
        beside = int(g[r.DEPTH] - 1 + 2 * g[r.FOLLOWED])
        self.keeps = keeps
        self.window = layout.capacity
        if keeps and type(remover) is Fifo:
            self.window += min(beside, layout.spare - 2)
        g[r.CAPACITY] = self.window
        self._burst = max(1, (layout.rows - self.window) // 2 - 1)
        private = (self.items.alive, self.held, self.dirty, self.ids)
        g[r.ALIVE], g[r.HELD], g[r.DIRTY], g[r.NAMES] = (a.ctypes.data for a in private)
        g[r.LAST], g[r.BORN], g[r.DIED] = (
            a.ctypes.data for a in (self.last, self._born, self._died)
        )
        places = (r.TERMINATED_FIELD, r.TRUNCATED_FIELD, r.DONE_FIELD)
        for place, i in zip(places, end_fields(layout.schema), strict=True):
            if i >= 0:
                (offset, stride), dtype = layout.places[i], layout.schema.fields[i].dtype
                yes = int.from_bytes(
                    np.ones((), dtype).tobytes()[:8], "little", signed=dtype.itemsize >= 8
                )
                g[place : place + 4] = storage.base + offset, stride, min(8, dtype.itemsize), yes
        self.remover = remover
        self.free = None if type(remover) is Fifo else FreeRows(layout.rows, layout.capacity)
        g[r.ORDERED] = self.free is None
        self._told: list[Sampler] = []
        # to be detached: finalizers add to it, and cannot wait for the lock
        self.leaving: deque[Sampler] = deque()
        self.prioritized: list[Sampler] = []  # those that go by priorities
        self._update_by_id: Callable[..., Any] | None = None
        if self.free is not None:
            if successor_of is None:
                remover.bind(self.items, seed)
            self._tell(remover)
        for sampler in samplers:
            self._tell(sampler)
        if successor_of is not None:
            self._succeed(successor_of)

    def _succeed(self, before: Table) -> None:
        """Samplers of sources stay, and so do the numbers of streams that writers elsewhere know."""
        self.leaving = before.leaving
        for sampler in before.samplers:
            if not any(one is sampler for one in self._told):
                self._tell(sampler)
        self._held = before._held
        self.streams = {
            name: number for name, number in before.streams.items() if number in before._held
        }
        self._numbers = 1 + max(self.streams.values(), default=-1)
        self._spare = [
            number for number in range(self._numbers) if number not in self.streams.values()
        ]
        if self._numbers > len(self.last):
            self.last = np.full(len(before.last), -1, np.int64)
            self.g[r.LAST] = self.last.ctypes.data

    def _tell(self, sampler: Sampler) -> None:
        self._told.append(sampler)
        self._sort_told()
        if sampler.prioritized and not len(self.given):
            self.given = np.full(self.storage.layout.rows, np.nan)
            self.g[r.GIVEN] = self.given.ctypes.data

    def _sort_told(self) -> None:
        self.prioritized = [one for one in self._told if one.prioritized]
        alone = len(self.prioritized) == 1  # of several, all are to know
        self._update_by_id = (
            shortcut(self.prioritized[0], "update_by_id", "update") if alone else None
        )

    def attach(self, sampler: Sampler) -> None:
        """One more sampler (bound by the caller), told of the items that there are."""
        self.let_go()
        self._tell(sampler)
        self.tell_all(sampler)

    def detach(self, sampler: Sampler) -> None:
        """The opposite of `attach`. May be called again."""
        self._told = [one for one in self._told if one is not sampler]
        self._sort_told()

    def let_go(self) -> None:
        """Detach the samplers of sources that are gone."""
        while self.leaving:
            self.detach(self.leaving[0])
            self.leaving.popleft()

    def tell_all(self, sampler: Sampler) -> None:
        """Tell a sampler, which knows nothing yet, of the items that there are."""
        there = np.flatnonzero(self.items.alive)
        there = there[np.argsort(self.ids[there], kind="stable")]
        sampler.insert(there, self._given(there))

    @property
    def sampled(self) -> int:
        """Items drawn since the table was made."""
        return self.counted + int(self._used[0])

    @property
    def samplers(self) -> list[Sampler]:
        """All that are told, without the remover."""
        return [one for one in self._told if one is not self.remover]

    def __len__(self) -> int:
        return int(self.g[r.COUNT])

    def _given(self, rows: Ids) -> Floats:
        if len(self.given):
            return self.given[rows]
        return (
            self._none[: len(rows)] if len(rows) <= len(self._none) else np.full(len(rows), np.nan)
        )

    # -- streams -----------------------------------------------------------------------------------

    # NOTE [streams]
    # A stream is known by its name while its episode is open or a writer elsewhere holds its
    # number. All others may be forgotten, and are when numbers run short or a checkpoint is made: a
    # stream that goes on after the end of an episode is as good as a new one. So one stream for
    # each episode costs nothing, and `last` is at most twice as long as needed. The same holds for
    # an open episode whose last step has left the table, where no stack would show that something
    # is missing.
    #
    # A loaded table has the open episodes of before as they were, but their environments begin
    # anew: what is written to such a stream first ends the old episode there, and is not linked to
    # it.

    def stream(self, name: Hashable) -> int:
        """The number of a stream; good until the next call of this or `numbers`, unless it is held."""
        number = self.streams.get(name)
        if number is None:
            self._make_room(1, (name,))
            number = self._add(name)
        return number

    def numbers(self, names: Iterable[Hashable]) -> Ids:
        """As `stream`, of many."""
        listed = list(names)
        unknown = [name for name in dict.fromkeys(listed) if name not in self.streams]
        if unknown:
            self._make_room(len(unknown), set(listed))
            for name in unknown:
                self._add(name)
        return np.array([self.streams[name] for name in listed], np.int64)

    def _add(self, name: Hashable) -> int:
        """One more stream, for which there is room.

        No call between a number and its use: Ctrl-C comes before or after.
        """
        if self._spare:
            number = self._spare[-1]
            self.streams[name] = number
            del self._spare[-1]
        else:
            number = self._numbers
            self.streams[name] = number
            self._numbers = number + 1
        return number

    def _make_room(self, more: int, keep: Container[Hashable]) -> None:
        """For so many more streams, beside those that are open, held, or to be kept."""
        if more <= len(self._spare) + len(self.last) - self._numbers:
            return
        self.forget_ended(keep)
        places = len(self.last)
        while places < 2 * (len(self.streams) + more):
            places *= 2
        longer = np.full(places, -1, np.int64)
        longer[: len(self.last)] = self.last
        address = longer.ctypes.data
        self.g[r.LAST], self.last = address, longer  # no call between these

    def forget_ended(self, keep: Container[Hashable] = ()) -> None:
        """Forget streams whose episodes have ended, but for those that are held or to be kept.

        See NOTE [streams].
        """
        last, kept, spare, gone = self.last.tolist(), {}, self._spare.copy(), []
        oldest = int(self.g[r.CURSOR] - self.g[r.CAPACITY]) if self.g[r.ORDERED] else 0
        alone = self.g[r.DEPTH] == 1
        for name, number in self.streams.items():
            if (
                last[number] < oldest
                and (alone or number in self._stale)
                and number not in self._held
                and name not in keep
            ):
                spare.append(number)
                gone.append(number)
            elif last[number] >= 0 or number in self._held or name in keep:
                kept[name] = number
            else:
                spare.append(number)
        stale = self._stale.difference(gone)
        self.streams, self._spare, self._stale, self.last[gone] = kept, spare, stale, -1

    def hold(self, numbers: Iterable[int]) -> None:
        """These are known to a writer elsewhere by their numbers, until `release`."""
        for number in numbers:
            self._held[number] = self._held.get(number, 0) + 1

    def release(self, numbers: Iterable[int]) -> None:
        """The opposite of `hold`, once for each time."""
        for number in numbers:
            left = self._held.pop(number, 0) - 1
            if left > 0:
                self._held[number] = left

    def is_open(self, number: int) -> bool:
        """Whether the stream's episode goes on."""
        return bool(self.last[number] >= 0)

    def begin_anew(self, numbers: Iterable[int]) -> None:
        """Before the first step that is written to these streams: end what is open since before the
        table was loaded.
        """
        for number in self._stale.intersection(numbers):
            self.end_stream(number, r.TRUNCATED, NO_FIELDS)

    def would_wait(self, steps: int) -> Ids:
        """Rows of the items that would wait for successors after `look_ahead`.

        O(open streams * steps), in Python.
        """
        self.finish()
        heads, rows = self.storage.heads(), self.storage.layout.rows
        found = []
        for name in self.last[self.last >= 0].tolist():
            for _ in range(steps):
                row = name % rows
                if name < 0 or self.ids[row] != name:
                    break
                if self.items.alive[row]:
                    found.append(row)
                name = int(heads[row, r.PREV // 8])
        return np.array(found, np.int64)

    def look_ahead(self, steps: int) -> None:
        """From now on items have that many successors in their open episode; a view needs them."""
        if steps > self.g[r.LOOKAHEAD]:
            self.finish()
            self._k.drop_pending(self.g, steps, self._numbers, self._changes)
            self.settle()

    # -- writing -----------------------------------------------------------------------------------

    # NOTE [interrupted calls]
    # Ctrl-C may come between any two calls, but not within a kernel. A kernel writes and links
    # steps, and notes what is to be told to samplers, in one go; `settle` tells it, and may be
    # called again. What takes several kernels is noted in `_rest` before the first. So after an
    # interruption a call is either not begun or completed, by `finish` at the latest, which
    # whatever looks at the table calls first. The ids of steps that are in are 0 or more.

    def write(
        self,
        fields: Ids,
        final: Ids,
        count: int,
        streams: Ids,
        flags: Ids,
        given: Floats,
        ids: Ids,
        keep: object = None,
    ) -> None:
        """Write ``count`` steps whose sources ``fields`` describes (see `kernels.write`); all of
        them or, after Ctrl-C, none.

        ``ids``: where their ids go, -1 each before. ``keep``: what the sources lie in.
        """
        if self._stale:
            self.begin_anew(streams.tolist())
        if self.free is None and count <= self._burst and not self.granted:
            self._ready(2 * count)
            self._k.write(
                self.g, fields, 0, count, final, streams, flags, given, ids, self._changes
            )
            self.settle()
            return
        self._rest = fields, final, count, streams, flags, given, ids, keep
        try:
            self._write_rest()
        except BaseException:
            self._write_rest_again()
            raise

    def _write_rest_again(self) -> None:
        try:
            self._write_rest()
        except Exception:  # not Ctrl-C: it would fail for ever
            self._rest = None
            raise

    def _write_rest(self) -> None:
        """What `_rest` says, from the first step on that is not in."""
        if self._rest is None:
            return
        fields, final, count, streams, flags, given, ids, _ = self._rest
        self._settle_taken()
        self.settle()
        burst, start = self._burst, int(np.count_nonzero(ids >= 0))
        while start < count:
            if self.free is not None:
                stop = start + 1
                self._overwrite(self.free, fields, start, streams, flags, given, ids)
            else:
                passes = self.granted and not self.keeps
                stop = min(count, start + (self._free_ahead(burst) if passes else burst))
                self._ready(2 * (stop - start))
                self._k.write(
                    self.g, fields, start, stop, final, streams, flags, given, ids, self._changes
                )
            self.settle()
            start = stop
        self._rest = None

    def _overwrite(
        self, free: FreeRows, fields: Ids, i: int, streams: Ids, flags: Ids, given: Floats, ids: Ids
    ) -> None:
        if not free.ready():
            self.remove(self.remover.draw(1).rows)
        priority = float(given[i]) if len(given) else np.nan
        self._ready(1)
        row = free.take()
        self._k.overwrite(
            self.g, fields, i, row, int(streams[i]), int(flags[i]), priority, ids, self._changes
        )
        free.settle(True)

    def _settle_taken(self) -> None:
        """Ctrl-C may have come after a row was taken and before it was written."""
        free = self.free
        if free is not None and free.taken >= 0:
            free.settle(bool(self.items.alive[free.taken]))

    def _ready(self, more: int) -> None:
        """Before so many rows are written that perhaps never were."""
        used = int(self.g[r.CURSOR]) if self.granted else self.items.top
        if used + more > self.storage.ready:
            self.storage.make_ready(used + more)

    def end_stream(self, stream: int, flags: int, final: Ids) -> None:
        """End a stream's episode; ``final`` describes the source of the final observation, empty if
        there is none.
        """
        self._ready(1)
        self._k.end_stream(self.g, stream, flags, final, self._changes)
        self._stale.discard(stream)
        self.settle()

    def settle(self) -> None:
        """Tell everyone of the items that kernels made and ended.

        Ctrl-C may come between a kernel and this, or in the middle: the changes stay until all were
        told, and samplers do not mind hearing of one twice.
        """
        born, died, _, waiting = self._changes.tolist()
        self.items.count, self.items.top = self.g[r.COUNT : r.TOP + 1].tolist()
        if born:
            rows = self._born[:born]
            if self._most:
                self.times[rows] = 0
            for one in self._told:
                one.insert(rows, self._given(rows))
        if died:
            rows = self._died[:died]
            for one in self._told:
                one.remove(rows)
            if self.free is not None:
                self.free.put(rows)
        self._changes[:] = 0
        self.inserted += born - waiting
        self.deleted += died - waiting

    def finish(self) -> None:
        """Complete what an interrupted call has left. See NOTE [interrupted calls]."""
        unsettled = self._unsettled
        if unsettled[0] or unsettled[1]:
            self.settle()
        if self._rest is not None:
            self._write_rest_again()
        if self._patching is not None:
            self._end_patch()

    # -- rows that other processes fill ------------------------------------------------------------

    def grant(self, most: int) -> tuple[int, int]:
        """Set up to ``most`` rows aside, which lie one behind the other: the first id, and how many
        there are.
        """
        self._ready(most)
        first = self._k.grant(self.g, most, self._changes)
        count = int(self._changes[2])
        self.settle()
        return first, count

    # -- room --------------------------------------------------------------------------------------

    def room(self) -> int:
        """Rows that may be written before one would be overwritten whose item is still to be drawn."""
        if self.free is not None:
            return self.free.left()
        room = int(self._k.room(self.g, len(self.last)))
        if room <= 1 and self._stale:  # episodes from before a load never go on
            self.begin_anew(self._stale.copy())
            room = int(self._k.room(self.g, len(self.last)))
        return room

    def room_for(self, streams: Container[int]) -> int:
        """As `room`, for writing to these streams.

        An open episode pins its newest steps, and goes on only if there are rows for its next ones.
        So each leaves that many rows to every other, and only the one that keeps the oldest row in
        use may take all that are left: then that row is let go in the end, whatever the order in
        which episodes go on.
        """
        room, per = self.room(), self.reserve
        if not per or room >= 2 + per * len(self.streams):
            return room
        if self.tail_stream() in streams:
            return room
        others = sum(
            1 for number in np.flatnonzero(self.last >= 0).tolist() if number not in streams
        )
        return max(0, room - per * others)

    @property
    def reserve(self) -> int:
        """Rows that an open episode needs for its oldest pinned step to be let go; 0 where none is
        pinned.
        """
        ahead, depth = int(self.g[r.LOOKAHEAD]), int(self.g[r.DEPTH])
        pins = self.free is None and (ahead or depth > 1)
        return max(1, ahead) + int(self.g[r.FOLLOWED]) if pins else 0

    def tail_stream(self) -> int:
        """The stream whose open episode keeps the oldest row in use; -1 if something else does."""
        tail = int(self.g[r.TAIL])
        row = tail % self.storage.layout.rows
        if self.items.alive[row] or self.held[row]:
            return -1
        numbers = np.flatnonzero(self.last >= tail).tolist()
        return next((number for number in numbers if self._shows(int(self.last[number]), tail)), -1)

    @property
    def waiting(self) -> int:
        """Steps that are no items yet and may become some: those that wait for their successors."""
        return int(self.g[r.WAITING])

    def surely(self, lookahead: int) -> int:
        """Items that a full table holds at every moment, with one open episode and items
        ``lookahead`` steps behind it.
        """
        return max(0, self.window - lookahead - int(self.g[r.DEPTH]) + 1)

    def why_full(self) -> str:
        """What the oldest row in use waits for."""
        if self.free is not None or self.room() >= self.window:
            return (
                f"all {self.storage.layout.capacity:,} rows hold items that are still to be drawn"
            )
        tail = int(self.g[r.TAIL])
        row = tail % self.storage.layout.rows
        if self.items.alive[row]:
            return f"{self._full()}, the oldest by an item that is still to be drawn"
        if self.held[row]:
            return f"{self._full()}, the oldest by a writer of another process that has not filled it yet"
        keeps = self.tail_stream()
        stream = next((name for name, number in self.streams.items() if number == keeps), None)
        return (
            f"{self._full()}, the oldest by the open episode of stream {stream!r}: add its next "
            "step, or end_episode() lets it go"
        )

    def _full(self) -> str:
        room = self.room()
        if not room:
            return f"all {self.window:,} rows are in use"
        return (
            f"{self.window - room:,} of {self.window:,} rows are in use and the rest is kept for "
            "open episodes "
            "(a larger capacity avoids that)"
        )

    def _shows(self, last: int, name: int) -> bool:
        """Whether a step is among the newest of an open episode, so that later items need it."""
        heads, rows = self.storage.heads(), self.storage.layout.rows
        for _ in range(int(self.g[r.DEPTH] + self.g[r.LOOKAHEAD])):
            if last < name or self.ids[last % rows] != last:
                return False
            if last == name:
                return True
            last = int(heads[last % rows, r.PREV // 8])
        return False

    @property
    def granted(self) -> int:
        """Rows that writers in other processes hold."""
        return int(self.g[r.GRANTED])

    def adopt(self, ledgers: Ids) -> int:
        """Publish granted rows that have been filled, of all writers at once; see `kernels.adopt`.

        Ctrl-C may come before it, or after the kernel, which has noted everything by then; see
        `settle`.
        """
        self.finish()
        count = int(self._k.adopt(self.g, ledgers, self._numbers, self._changes))
        if count:
            self.settle()
        return count

    def news(self, ledgers: Ids) -> bool:
        """Whether `adopt` would find anything."""
        return bool(self._k.news(ledgers))

    def abandon(self, grant_log: int) -> None:
        """The granted rows of a writer that will not be filled."""
        self._k.abandon(self.g, grant_log)

    def _free_ahead(self, burst: int) -> int:
        """Steps that may be written at once where others hold rows: the order passes these by, and
        may not go too far.
        """
        while True:
            free = self._k.room_ahead(
                self.g, self.storage.layout.rows - self.window - 1, self._changes
            )
            self.settle()
            if free >= 2:
                return int(min(burst, free // 2))

    # -- drawing -----------------------------------------------------------------------------------

    def drawable(self, sampler: Sampler, but: Ids = _NO_ROWS) -> int | None:
        """How many items one draw can hold at most; ``None``: any number, if there is one at all.

        ``but``: rows of items that do not count.
        """
        held = len(self) - len(but)
        if not held:
            return 0
        if self._most and sampler.repeats:
            left = int((self._most - self.times[self.items.alive != 0]).sum())
            return left - int((self._most - self.times[but]).sum())
        return None if sampler.repeats else held

    def draw(self, sampler: Sampler, count: int, *, again: bool = False) -> Drawn:
        """``count`` items. There must be as many (`drawable`).

        The caller counts them as sampled, but where each item counts its draws. There a draw may
        hit an item more often than it has draws left, and others take their places. ``again``: in
        place of some that could not be read, which have been counted.
        """
        drawn = sampler.draw(count)
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
                np.zeros(1, np.int64) if again else self._used,
            )
            used = np.unique(drawn.rows)
            self.remove(used[self.times[used] >= self._most])
            count -= int(np.count_nonzero(kept >= 0))
            if count <= 0 or not len(self):
                return self._joined(draws)
            drawn = more(count)

    def taken_back(self) -> Drawn:
        """What the last `draw` has counted, also one that was interrupted; then it has been told."""
        draws, self.undelivered = self.undelivered, []
        self.finish()
        for one, _ in draws:
            used = np.unique(one.rows)
            self.remove(used[self.times[used] >= self._most])
        return self._joined(draws)

    def _joined(self, draws: list[tuple[Draw, Ids]]) -> Drawn:
        """The pieces of a draw as one, with weights of one scale."""
        picked = [(one, kept[kept >= 0]) for one, kept in draws]
        ids = (
            np.concatenate([self.names(one.rows[kept]) for one, kept in picked])
            if picked
            else np.empty(0, np.int64)
        )
        if not picked or any(one.weight is None for one, _ in picked):
            return Drawn(ids, None)
        return Drawn(ids, *one_scale([(one.weight[kept], one.scale) for one, kept in picked]))  # type: ignore[index]

    # -- by id -------------------------------------------------------------------------------------

    def find(self, ids: Ids) -> Ids:
        """Rows of ids, -1 for those that are gone."""
        rows = np.empty(len(ids), np.int64)
        self._k.find(self.g, ids, rows)
        return rows

    def names(self, rows: Ids) -> Ids:
        """Ids of rows."""
        names: Ids = self.ids[rows]
        return names

    def prioritize(self, ids: Ids, priority: Floats) -> Applied:
        """New priorities, for items; a step that is not an item yet keeps it until it is one."""
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

    def patch(self, ids: Ids, columns: dict[int, npt.NDArray[Any]]) -> Applied:
        """Overwrite fields (by number) of the steps that are still there. Of an id that is named
        twice the last counts.

        A step that is an item no more, because it was deleted or drawn often enough, is still part
        of its neighbours' returns.
        """
        rows = np.empty(len(ids), np.int64)
        self._k.find_steps(self.g, ids, rows)
        there = np.flatnonzero(rows >= 0)
        rows = rows[there]
        self._patching = np.unique(rows)
        try:
            self._k.turn_version(self.g, self._patching, True)
            for i, column in columns.items():
                self.storage.cell(i)[rows] = column[there]
        finally:
            self._end_patch()
        return Applied(len(rows), len(ids) - len(rows))

    def _end_patch(self) -> None:
        self._k.turn_version(self.g, self._patching, False)
        self._patching = None

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

        Ids go on, counts begin anew. It may be called again after Ctrl-C.
        """
        for number in np.flatnonzero(self.last >= 0).tolist():
            self.end_stream(number, r.TRUNCATED, NO_FIELDS)
        self.remove(np.flatnonzero(self.ids >= 0))
        self._used[0] = self.inserted = self.counted = self.deleted = 0

    def empty(self) -> None:
        """Let samplers forget all items, and rows all ids: nothing can be drawn or read from here
        on, in any process.
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
        """Rows that were written while they had no ids get these; -1: nothing is there."""
        # a fence: after everything that was written
        self._k.turn_version(self.g, np.empty(0, np.int64), True)
        self.storage.heads()[:, r.ID // 8] = ids + 1

    def remove(self, rows: Ids) -> None:
        """The items of these rows are no more."""
        (self._k.forget if self._parted else self._k.remove)(self.g, rows, self._changes)
        self.settle()

    def part(self) -> None:
        """In the child of a fork: from here on nothing changes what the parent sees, neither its
        counts nor its rows.
        """
        self.g = self.storage.geometry = self.g.copy()
        self._parted = True

    # -- checkpoints -------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, int], dict[str, npt.NDArray[Any]]]:
        """Counters, and copies of the arrays that have no entry per row; ``last`` in the order of
        `streams`.
        """
        self.forget_ended()
        counters = {
            "cursor": int(self.g[r.CURSOR]),
            "top": int(self.g[r.TOP]),
            "lookahead": int(self.g[r.LOOKAHEAD]),
            "inserted": self.inserted,
            "sampled": self.sampled,
            "deleted": self.deleted,
        }
        arrays = {"last": self.last[list(self.streams.values())]}
        if self.free is not None:
            free = self.free.state()
            counters["unused"], arrays["free"] = free["unused"], free["free"]
        return counters, arrays

    def restore(self, counters: Mapping[str, int], streams: Iterable[Hashable], last: Ids) -> None:
        """Go on from a `state`; what has an entry per row, and the rows, are in place.

        The samplers know nothing yet.
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

    def expire_old(self) -> None:
        """After `restore`, when samplers know the items: end what lies outside of this table's
        window.
        """
        if self.free is None:
            self._k.expire_old(self.g, self._changes)
            self.settle()
