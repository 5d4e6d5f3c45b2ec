"""Random programs of calls on small tables: pairs of features, in any order.

``python -m tests.table.programs drift 10000 0`` runs ten thousand programs from seed 0, each of
which compares what the table carries with its rows after each call (see derived.py);
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
from pathlib import Path
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
from async_loader.replay.rate_limiter import MinSize, Queue
from async_loader.replay.samplers import Balanced, MaxHeap, MinHeap, RankPrioritized, Recency

Rng = np.random.Generator
STREAMS = 3
_X = {"x": "int64", "task": "int8", "reward": "float32"}
_Z = {"codec": "lz4"}
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
        name, said = call
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
    with tempfile.TemporaryDirectory() as folder:
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


RUNS = {"drift": drift}


def main(kind: str, programs: int, seed: int) -> int:
    """Run programs, and say what was found."""
    began, found = time.monotonic(), 0
    for number in range(programs):
        faulthandler.dump_traceback_later(120, exit=True)
        try:
            RUNS[kind](seed, number)
        except Exception:
            found += 1
            print(f"-- {kind} {seed} {number}\n{traceback.format_exc(limit=-6)}", flush=True)
            if found >= int(os.environ.get("MOST", "5")):
                break
    took = time.monotonic() - began
    print(f"{kind}: {number + 1} programs from seed {seed}, {found} findings, {took:.0f} s")
    return found


if __name__ == "__main__":
    os.environ["ASYNC_LOADER_COMPARE"] = "1"
    name, count, first, *rest = sys.argv[1:]
    if rest:
        RUNS[name](int(first), int(rest[0]))
    else:
        sys.exit(bool(main(name, int(count), int(first))))
