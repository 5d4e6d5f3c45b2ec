"""Random programs of calls on small tables: pairs of features, in any order.

``python -m tests.table.programs drift 10000 0`` runs ten thousand programs from seed 0, each of
which compares what the table carries with its rows after each call (see carried_state.py);
``python -m tests.table.programs saves 10000 0`` saves and loads at every point of each, into the
same, a smaller and a larger table, and compares what follows. A finding says how to run it again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import tempfile
import time
import traceback
from typing import Any

import numpy as np

from async_loader import (
    Field,
    Fifo,
    Lifo,
    Prioritized,
    RateLimiter,
    ReplayBuffer,
    Sequences,
    Transitions,
    Uniform,
)
from async_loader.errors import AsyncLoaderError, Broken
from async_loader.replay.base import row_format as r
from async_loader.replay.rate_limiter import MinSize, Queue
from async_loader.replay.samplers import Balanced, MaxHeap, MinHeap, RankPrioritized, Recency
from tests.carried_state import compared
from tests.table_parts import debug_state

Rng = np.random.Generator
STREAMS = 3
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where tables are saved to: no save has to wait for a disk."""
_X = {"x": "int64", "task": "int8", "reward": "float32"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": _X,
    "ended": {**_X, "terminated": "bool"},
    "next": {**_X, "obs": Field((2,), "int64", next="next_obs")},
    "stack": {**_X, "obs": Field((2,), "int64", stack=3)},
    "both": {**_X, "obs": Field((2,), "int64", stack=2, next="next_obs"), "truncated": "bool"},
    "compressed": {
        **_X,
        "obs": Field((40,), "int64", next="next_obs", codec="lz4"),
        "more": Field((300,), "uint8", codec="lz4"),
    },
    "frames": {**_X, "obs": Field((40,), "int64", stack=2, codec="lz4")},
}
SAMPLERS: dict[str, Any] = {
    "Uniform": Uniform,
    "each once": lambda: Uniform(replacement=False),
    "Prioritized": lambda: Prioritized(1.0, 1.0, 0.0),
    "max_now": lambda: Prioritized(0.7, eps=0.1, normalize="buffer", new_priority="max_now"),
    "RankPrioritized": RankPrioritized,
    "Fifo": Fifo,
    "Lifo": Lifo,
    "MaxHeap": MaxHeap,
    "Recency": lambda: Recency(5.0),
    "Balanced": lambda: Balanced("task"),
}
IN_ANY_ORDER = tuple(name for name in SAMPLERS if name not in ("Uniform", "each once"))
"""A load tells these of the items in the order of their ids, with priorities as they are then.
So it does samplers of sequences.
"""
LIMITERS: dict[str, Any] = {
    "none": lambda size: None,
    "min": lambda size: MinSize(2),
    "queue": lambda size: Queue(size),
    "twice": lambda size: RateLimiter(samples_per_insert=2, error_buffer=(0.0, 2.0 * size)),
    "ratio": lambda size: RateLimiter(
        min_size_to_sample=2, samples_per_insert=1.5, error_buffer=8.0
    ),
}


def pick(rng: Rng, values: Any) -> Any:
    listed = list(values)
    return listed[int(rng.integers(len(listed)))]


def a_view(rng: Rng) -> Any:
    kind = rng.random()
    if kind < 0.3:
        return Transitions(int(rng.integers(1, 4)), 0.9)
    if kind < 0.45:
        return Sequences(int(rng.integers(1, 7)), whole=pick(rng, (True, "ragged")))
    return Sequences(
        int(rng.integers(1, 5)),
        burn_in=int(rng.integers(0, 2)),
        stride=int(rng.integers(1, 4)),
        bootstrap=int(rng.integers(0, 2)),
        dilation=int(rng.integers(1, 3)),
        boundary=pick(rng, ("stop", "pad", "pad", "cross")),
    )


class Program:
    """What a table is made of, and the calls that follow, by a seed."""

    def __init__(self, seed: int, number: int, calls: int) -> None:
        self.rng = rng = np.random.default_rng([seed, number])
        while True:
            self.schema = pick(rng, SCHEMAS)
            self.sampler = pick(rng, SAMPLERS)
            self.limiter = pick(rng, [*["none"] * 6, *LIMITERS])
            self.times = {"queue": 1, "twice": 2}.get(self.limiter, pick(rng, (0, 0, 0, 1, 2, 3)))
            self.remover = pick(rng, (Fifo, Fifo, Fifo, Lifo, MinHeap, Uniform))
            self.capacity = int(rng.integers(3, 24))
            self.view = a_view(rng) if rng.random() < 0.6 else None
            with contextlib.suppress(AsyncLoaderError):
                self.made().close()
                break
        views = [a_view(rng) for _ in range(3)]
        self.views = [None, None, None, *views]
        self.calls = [self.call(rng) for _ in range(calls)]

    def made(self, capacity: int | None = None) -> ReplayBuffer:
        return ReplayBuffer(
            self.capacity if capacity is None else capacity,
            SCHEMAS[self.schema],
            sampler=SAMPLERS[self.sampler](),
            remover=self.remover(),
            limiter=LIMITERS[self.limiter](max(1, self.capacity // 3)),
            view=self.view,
            max_times_sampled=self.times,
            seed=5,
        )

    @property
    def prioritized(self) -> bool:
        return SAMPLERS[self.sampler]().prioritized or self.remover().prioritized

    def of_sequences(self, said: dict[str, Any]) -> bool:
        """Return whether a call shows sequences, whose order a load works out anew."""
        return isinstance(self.view if said["view"] is None else said["view"], Sequences)

    def call(self, rng: Rng) -> tuple[str, dict[str, Any]]:
        name = pick(
            rng,
            ["add"] * 8
            + ["extend"] * 3
            + ["end"] * 3
            + ["delete"] * 4
            + ["sample"] * 5
            + ["update_priorities"] * (2 * self.prioritized)
            + ["update", "get", "source", "clear" if rng.random() < 0.2 else "add"],
        )
        return name, {
            "stream": int(rng.integers(STREAMS)),
            "rows": int(rng.integers(1, 7)),
            "ends": rng.random(8) < 0.15,
            "how": int(rng.integers(4)),
            "back": rng.integers(0, self.capacity + 6, 3),
            "priority": rng.random(8) ** 3 * 10 if rng.random() < 0.4 else None,
            "view": pick(rng, self.views),
            "task": rng.integers(0, 3, 8),
        }


class Player:
    """Plays the calls of a program on a table."""

    def __init__(self, program: Program, table: ReplayBuffer) -> None:
        self.program, self.table = program, table
        self.linked = any("next" in str(one) for one in SCHEMAS[program.schema].values())
        self.linked = program.schema in ("next", "both", "compressed")
        self.steps, self.newest = 0, -1
        self.sources: list[Any] = []

    def like(self, other: Player) -> None:
        self.steps, self.newest = other.steps, other.newest

    def play(self, call: tuple[str, dict[str, Any]]) -> Any:
        return self._try(*call)

    def _try(self, name: str, said: dict[str, Any]) -> Any:
        try:
            return getattr(self, f"_{name}")(said)
        except Broken:
            raise
        except AsyncLoaderError as error:
            return "raised", type(error).__name__

    def _obs(self, n: Any) -> Any:
        field = SCHEMAS[self.program.schema]["obs"]
        return np.multiply.outer(n, np.arange(1, 1 + field.shape[0]))

    def _columns(self, said: dict[str, Any], rows: int) -> dict[str, Any]:
        n = self.steps + np.arange(rows)
        schema = SCHEMAS[self.program.schema]
        made = {"x": n, "task": said["task"][:rows].astype(np.int8), "reward": n.astype("f4")}
        if "obs" in schema:
            made["obs"] = self._obs(n)
        if "more" in schema:
            made["more"] = ((n[:, None] * 7919 + np.arange(300) * (n[:, None] % 3)) % 251).astype(
                "u1"
            )
        for field in ("terminated", "truncated"):
            if field in schema:
                made[field] = said["ends"][:rows]
        self.steps += rows
        return made

    def _final(self, said: dict[str, Any], rows: int | None = None) -> Any:
        if not self.linked:
            return None
        n = -1 - self.steps - np.arange(rows or 1)
        final = self._obs(n)
        if "more" in SCHEMAS[self.program.schema]:
            pass
        return final if rows else final[0]

    def _given(self, said: dict[str, Any], rows: int) -> Any:
        if said["priority"] is None or not self.program.prioritized:
            return None
        return said["priority"][:rows]

    def _add(self, said: dict[str, Any]) -> Any:
        columns = {name: column[0] for name, column in self._columns(said, 1).items()}
        given = self._given(said, 1)
        final = None
        if columns.get("truncated") or (said["ends"][1] and said["how"] > 1):
            final = self._final(said)
        name = self.table.add(
            columns,
            stream=said["stream"],
            priority=None if given is None else given[0],
            final_obs=final,
            timeout_s=0,
        )
        self.newest = max(self.newest, name)
        return name

    def _extend(self, said: dict[str, Any]) -> Any:
        rows = said["rows"]
        streams: Any = said["stream"]
        if said["how"] > 1:
            streams = [(said["stream"] + k) % STREAMS for k in range(rows)]
        columns = self._columns(said, rows)
        final = self._final(said, rows) if "truncated" in columns else None
        ids = self.table.extend(
            columns, stream=streams, priority=self._given(said, rows), final_obs=final, timeout_s=0
        )
        self.newest = max(self.newest, int(ids.max()))
        return ids.tolist()

    def _end(self, said: dict[str, Any]) -> None:
        final = self._final(said) if said["how"] % 2 else None
        self.table.end_episode(
            stream=said["stream"], final_obs=final, terminated=said["how"] == 2, timeout_s=0
        )

    def _ids(self, said: dict[str, Any]) -> Any:
        return np.maximum(0, self.newest + 2 - said["back"])

    def _delete(self, said: dict[str, Any]) -> Any:
        return tuple(vars_of(self.table.delete(self._ids(said)[: 1 + said["how"] % 2])))

    def _sample(self, said: dict[str, Any]) -> Any:
        count = said["rows"]
        batch = self.table.sample(count, view=said["view"], timeout_s=0)
        assert len(batch["index"]) == count, f"sample({count}) gives {len(batch['index'])} rows"
        return plain(batch)

    def _update_priorities(self, said: dict[str, Any]) -> Any:
        return tuple(vars_of(self.table.update_priorities(self._ids(said), said["task"][:3] + 0.5)))

    def _update(self, said: dict[str, Any]) -> Any:
        return tuple(vars_of(self.table.update(self._ids(said), task=said["task"][:3])))

    def _get(self, said: dict[str, Any]) -> Any:
        return plain(self.table.get(self._ids(said), view=said["view"]))

    def _clear(self, said: dict[str, Any]) -> None:
        self.table.clear()

    def _source(self, said: dict[str, Any]) -> None:
        """A sampler that comes late, and goes."""
        if self.sources and said["how"]:
            self.sources.pop().close()
            return
        made = SAMPLERS[pick(np.random.default_rng(self.steps), SAMPLERS)]()
        self.sources.append(self.table.source(sampler=made, view=said["view"]))

    def close(self) -> None:
        for one in self.sources:
            one.close()
        self.table.close()


def vars_of(applied: Any) -> tuple[int, int]:
    return applied.applied, applied.stale


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in batch.items()}


# -- counts ----------------------------------------------------------------------------------------


def drift(seed: int, number: int, calls: int = 60) -> None:
    """Play a program on a table that compares itself with its rows; with a load now and then."""
    program = Program(seed, number, calls)
    player = Player(program, program.made())
    try:
        for turn, call in enumerate(program.calls):
            player.play(call)
            if program.rng.random() < 0.04:
                player = _reloaded(program, player, turn)
    finally:
        player.close()


def _reloaded(program: Program, player: Player, turn: int) -> Player:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        player.table.save(folder)
        with contextlib.suppress(AsyncLoaderError):
            if turn % 2:
                player.table.load(folder)
                return player
            given = {"capacity": program.capacity + turn % 9 - 3} if turn % 4 else {}
            other = Player(program, ReplayBuffer.from_checkpoint(folder, **given))
            other.like(player)
            player.close()
            return other
    return player


# -- saves -----------------------------------------------------------------------------------------


SIZES = ("same", "smaller", "larger")


def saves(
    seed: int, number: int, calls: int = 12, points: int | None = None, sizes: int = 3
) -> None:
    """Save at every point of a program, load into the same, a smaller and a larger table, and
    compare what follows. ``points``, ``sizes``: how many of them; by default all.
    """
    program = Program(seed, number, calls)
    chosen = np.arange(1, calls + 1)
    if points is not None:
        chosen = program.rng.choice(chosen, points, replace=False)
    for point in chosen.tolist():
        for size in (SIZES[number % 3 :] + SIZES)[:sizes]:
            _saved_at(program, point, size, in_place=bool((point + number) % 2))


def _saved_at(program: Program, point: int, size: str, in_place: bool) -> None:
    here = Player(program, program.made())
    capacity = program.capacity + {"same": 0, "smaller": -2, "larger": 9}[size]
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        stack.callback(here.close)
        for turn, call in enumerate(program.calls[:point]):
            here.play(call)
            if turn % 3 == 2:
                here.table.save(folder)
        while here.sources:
            here.sources.pop().close()
        here.table.save(folder)
        try:
            loaded = _loaded(program, folder, capacity, in_place)
        except AsyncLoaderError:
            assert size != "same"
            return
        there = Player(program, loaded)
        stack.callback(there.close)
        there.like(here)
        try:
            _alike(program, here, there, size)
            _goes_on(program, here, there, program.calls[point:], size)
        except Exception as error:
            error.add_note(f"saved at {point}, loaded into {size}, in place: {in_place}")
            raise


def _loaded(program: Program, folder: str, capacity: int, in_place: bool) -> ReplayBuffer:
    if not in_place:
        given = {} if capacity == program.capacity else {"capacity": capacity}
        return ReplayBuffer.from_checkpoint(folder, **given)
    table = program.made(capacity)
    before = Player(program, table)
    for name, said in program.calls[:5]:
        if name in ("add", "extend", "delete", "end"):
            before.play((name, {**said, "view": None}))
    try:
        table.load(folder)
    except BaseException:
        table.close()
        raise
    return table


def _items(player: Player) -> list[int]:
    table = debug_state(player.table).state.table
    return sorted(table.ids[table.items.alive != 0].tolist())


def _sequences(player: Player) -> dict[Any, list[int]]:
    state = debug_state(player.table).state
    return {
        view: sorted(state.table.ids[one.own_items.alive != 0].tolist())
        for view, one in state.sequence_samplers.items()
    }


def _numbers(player: Player) -> dict[str, int]:
    stats = player.table.stats()
    return {name: getattr(stats, name) for name in ("size", "inserted", "sampled", "deleted")}


def _open(player: Player, oldest: int = 0) -> dict[Any, int]:
    """Return the last steps of open episodes that the table has."""
    table = debug_state(player.table).state.table
    last = {name: int(table.last[number]) for name, number in table.streams.items()}
    if table.g[r.ORDERED]:
        oldest = max(oldest, int(table.g[r.CURSOR]) - table.window)
    return {name: one for name, one in last.items() if one >= oldest}


def _oldest_shown(player: Player, name: int) -> int:
    """Return the oldest step that the stack of an item shows."""
    table = debug_state(player.table).state.table
    heads = table.storage.heads()
    for _ in range(int(table.g[r.DEPTH]) - 1):
        before = int(heads[name % len(heads), r.PREV // 8])
        name = before if before >= 0 else name
    return name


def _alike(program: Program, here: Player, there: Player, size: str, went_on: bool = False) -> None:
    """Compare what two tables hold and draw. Of another capacity the steps that both keep.

    ``went_on``: items came since the load, perhaps in another order.
    """
    items, others = _items(here), _items(there)
    if size != "smaller":
        assert items == others, (items, others)
        assert _numbers(here) == _numbers(there), (_numbers(here), _numbers(there))
        oldest = min([*_open(here).values(), 1 << 62])  # a larger table may know older ones
        assert _open(here) == _open(there, oldest)
        for view, names in _sequences(here).items():
            known = not (went_on and size == "larger" and view.crosses and view.stride > 1)
            assert not known or names == _sequences(there)[view]  # else strides begin anew
    else:
        dropped = sorted(set(items) - set(others))
        assert others == [one for one in items if one not in dropped]
        table = debug_state(there.table).state.table
        oldest = int(table.g[r.CURSOR]) - table.window
        assert all(_oldest_shown(here, one) < oldest for one in dropped)
        ours, theirs = _sequences(here), _sequences(there)
        for view, names in theirs.items():
            assert names == [one for one in ours[view] if one in others]
    assert plain(here.table.get(others)) == plain(there.table.get(others))
    if went_on and SAMPLERS[program.sampler]().prioritized:
        return  # what an item gets that comes without a priority depends on those before it
    for view in dict.fromkeys([program.view, *program.views]):
        _draw_alike(program, here, there, view, size)


_DRAWS = 4000


def _draw_alike(program: Program, here: Player, there: Player, view: Any, size: str) -> None:
    """Compare how often each item is drawn."""
    sampler = SAMPLERS[program.sampler]()
    if program.limiter != "none" or program.times or not sampler.repeats:
        return
    state = debug_state(here.table).state
    if view != program.view and not (isinstance(view, Sequences) and view in _sequences(here)):
        return
    if isinstance(view, Sequences) and view not in state.sequence_samplers:
        return
    if program.sampler in ("RankPrioritized", "Recency"):
        return  # a load tells them of items in the order of ids, which decides draws
    if (program.sampler, size) == ("Balanced", "smaller"):
        return  # shares depend on which items there are
    drawn = []
    for one in (here, there):
        try:
            batch = one.table.sample(_DRAWS, view=view, timeout_s=0)
            drawn.append(np.asarray(batch["index"]))
        except AsyncLoaderError as error:
            drawn.append(type(error).__name__)
    if isinstance(drawn[0], str) or isinstance(drawn[1], str):
        assert size == "smaller" or drawn[0] == drawn[1], drawn
        return
    if size == "same" and program.sampler not in IN_ANY_ORDER and not isinstance(view, Sequences):
        assert (drawn[0] == drawn[1]).all()
        return
    left, right = (np.bincount(one, minlength=here.newest + 9) for one in drawn)
    both = np.isin(np.arange(len(left)), _items(there))
    assert not right[~both].any()
    assert surprise(left[both], right[both]) < 7, (left[both], right[both], view)


def surprise(left: Any, right: Any) -> float:
    """Return how many standard deviations the chi-square of two draws is off (Wilson and
    Hilferty).
    """
    n, m, both = left.sum(), right.sum(), left + right
    some = both > 0
    free = int(some.sum()) - 1
    if free < 1 or not n or not m:
        return 0.0
    parts = (left * np.sqrt(m / n) - right * np.sqrt(n / m)) ** 2 / np.maximum(both, 1)
    off = 2 / (9 * free)
    return float(((parts.sum() / free) ** (1 / 3) - 1 + off) / np.sqrt(off))


def _goes_on(program: Program, here: Player, there: Player, calls: Any, size: str) -> None:
    """Compare the rest of the program. A loaded table ends an episode of before with the next step
    of its stream: so does the other, by a call.
    """
    numbers = debug_state(there.table).state.table.streams
    streams = debug_state(here.table).state.table.streams
    last = debug_state(here.table).state.table.last
    stale = {name for name, number in streams.items() if last[number] >= 0}
    if program.limiter != "none":
        for name in sorted(stale):
            for one in (here, there):
                one.table.end_episode(stream=name)
        stale = set()
    for name in sorted(stale - set(_open(here))):  # its last step has left the table
        for one in (here, there):
            one.table.end_episode(stream=name)
        stale.discard(name)
    said: list[Any] = []
    if program.remover is MinHeap:
        return  # which of equal priorities makes room is not saved
    exact = program.sampler in ("Fifo", "Lifo") and not program.times
    for call in calls:
        name, given = call
        other = there.play(call)
        refused = isinstance(other, tuple) and other[0] == "raised"
        if name in ("add", "extend") and not refused:
            rows = given["rows"] if name == "extend" and given["how"] > 1 else 1
            named = stale & {(given["stream"] + k) % STREAMS for k in range(rows)}
            for stream in sorted(named, key=lambda name: numbers.get(name, -1)):
                here.table.end_episode(stream=stream)
            stale -= named
        elif name == "end":
            stale.discard(given["stream"])
        elif name == "clear":
            stale = set()
        one = here.play(call)
        # an item that comes and goes among gathered steps is not counted: so both write theirs
        assert len(here.table) == len(there.table) or size != "same" or program.times
        if size == "same":
            used_up = program.times  # by chance which
            in_order = program.sampler not in IN_ANY_ORDER and not program.of_sequences(given)
            if not used_up and (name != "sample" or in_order):
                assert one == other, (call, one, other)
        elif one != other and ("raised", "ConfigError") in (one, other):
            return  # what a table of another capacity can show is another question
        said.append((call, one, other))
    cursor = int(debug_state(here.table).state.table.g[r.CURSOR])
    if size == "same":
        if program.times:
            return
        _alike(program, here, there, size, True)
        assert _room(here) == _room(there)
    elif size == "larger" and cursor <= program.capacity and program.limiter == "none":
        if program.times and not exact:  # which items are used up is a matter of chance
            return
        ahead = debug_state(here.table).state.table.g[r.LOOKAHEAD]  # items come in another order
        for call, one, other in said:
            if call[0] != "sample" or (exact and not ahead):
                assert one == other, (call, one, other)
        _alike(program, here, there, size, True)


def _room(player: Player) -> int:
    """Return how many steps the table takes."""
    room = 0
    said = {"stream": 7, "ends": np.zeros(8, bool), "how": 0, "priority": None}
    said |= {"task": np.zeros(8, int)}
    while room < 3 * player.program.capacity + 9:
        if isinstance(player._try("add", said), tuple):
            break
        room += 1
    return room


RUNS: dict[str, Any] = {"drift": drift, "saves": saves}
POINTS = int(os.environ.get("POINTS", "0")) or None
"""At how many points of each program is saved; 0: at every one."""


def main(kind: str, programs: int, seed: int) -> int:
    """Run programs, and say what was found."""
    began, found = time.monotonic(), 0
    for number in range(programs):
        faulthandler.dump_traceback_later(900, exit=True)
        try:
            RUNS[kind](seed, number, **({"points": POINTS} if kind == "saves" else {}))
        except Exception:
            found += 1
            print(f"-- {kind} {seed} {number}\n{traceback.format_exc(limit=-6)}", flush=True)
            if found >= int(os.environ.get("MOST", "5")):
                break
    took = time.monotonic() - began
    print(f"{kind}: {number + 1} programs from seed {seed}, {found} findings, {took:.0f} s")
    return found


if __name__ == "__main__":
    name, count, first, *rest = sys.argv[1:]
    with compared(name == "drift"):
        if rest:
            RUNS[name](int(first), int(rest[0]))
        else:
            sys.exit(bool(main(name, int(count), int(first))))
