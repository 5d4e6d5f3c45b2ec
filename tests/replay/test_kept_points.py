"""A kept table that is killed at every line of the package that changes it, and after each row that
a kernel writes, goes on as if nothing had been: the same messages make the same table.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer, Sequences
from async_loader.replay.base import row_format as r
from async_loader.replay.buffer import shared_table
from async_loader.replay.samplers import Lifo, Prioritized
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable
from tests.kept_rig import Points, put_back, small_pages

pytestmark = pytest.mark.usefixtures(small_pages.__name__)
__all__ = ["small_pages"]

KEYS = [bytes([n]) * 16 for n in range(2)]
FLAT: dict[str, Any] = {"x": "int64", "terminated": "bool"}
LINKED = {**FLAT, "obs": Field((3,), np.dtype(np.int32), stack=2, next="next_obs")}
FRAMES = {**LINKED, "frame": Field((300,), np.dtype(np.int32))}
PACKED = {**FLAT, "frame": Field((300,), np.dtype(np.int32), codec="lz4")}
TABLES: dict[str, tuple[dict[str, Any], Callable[..., ReplayBuffer]]] = {
    "small rows": (FLAT, lambda **o: ReplayBuffer(12, **o)),
    "linked": (LINKED, lambda **o: ReplayBuffer(12, sampler=Prioritized(), **o)),
    "frames": (FRAMES, lambda **o: ReplayBuffer(12, **o)),
    "compressed": (PACKED, lambda **o: ReplayBuffer(12, **o)),
    "sequences": (
        LINKED,
        lambda **o: ReplayBuffer(24, sampler=Prioritized(), view=Sequences(3), **o),
    ),
    "out of order": (
        FLAT,
        lambda **o: ReplayBuffer(12, sampler=Prioritized(), remover=Lifo(), **o),
    ),
}


class Play:
    """A table with two producers, and a program of messages and calls."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.schema, make = TABLES[kind]
        self.buffer = make(schema=self.schema, seed=0, keep=folder)
        self.table = NonblockingTable(shared_table(self.buffer))
        self.applied = {key.hex(): applied for key, applied, _ in self._positions()}

    def _positions(self) -> list[tuple[bytes, int, int]]:
        kept = shared_table(self.buffer).kept
        return [(bytes.fromhex(key), *rest) for key, *rest in kept.positions()]

    def steps(self, rows: list[tuple[int, int, int]]) -> Incoming:
        """Rows of ``(stream, number, flags)``."""
        count, fields = len(rows), self.buffer.schema.fields
        numbers = np.array([number for _, number, _ in rows])
        flags = np.array([flags for *_, flags in rows])
        columns = [
            np.broadcast_to(
                numbers.reshape(-1, *[1] * len(field.shape)), (count, *field.shape)
            ).astype(field.dtype)
            if field.name != "terminated"
            else flags & r.TERMINATED != 0
            for field in fields
        ]
        streams = np.array([stream for stream, *_ in rows])
        return Incoming(streams, flags, np.full(count, np.nan), columns)

    def call(self, op: tuple[Any, ...]) -> None:
        kind, *given = op
        if kind == "insert":
            producer, number, rows = given
            key = KEYS[producer].hex()
            if self.applied.get(key, 0) > number:
                return  # a duplicate
            named = [(self.table.stream((key, stream)), *rest) for stream, *rest in rows]
            priorities = np.array([1.0 + number % 5 for _, number, _ in rows])
            steps = self.steps(named)
            if self.table.no_priorities is None:
                steps.priorities[:] = priorities
            self.table.insert(steps, 0, lambda done: (key, number + 1, 0))
            self.table.release([stream for stream, *_ in named])
            self.applied[key] = number + 1
            return
        ids = np.array(given[0])
        state = shared_table(self.buffer)
        if kind == "prioritize" and state.prioritized:
            state.prioritize(ids, ids % 7 + 0.5)
        elif kind == "update":
            self.buffer.update(ids, x=ids * 1000)
        elif kind == "delete":
            self.buffer.delete(ids)

    def state(self) -> dict[int, Any]:
        """All rows in which items may be, by their ids."""
        table = shared_table(self.buffer).table
        cells = [table.storage.cell(i) for i in range(len(self.buffer.schema.fields))]
        coded = [field.codec for field in self.buffer.schema.fields]
        heads, found = table.storage.heads(), {}
        for row in np.flatnonzero(table.ids >= table.g[r.CURSOR] - table.window).tolist():
            _, before, after, flags = heads[row].tolist()
            found[int(table.ids[row])] = (
                before, after, flags % r.VERSION_ONE, bool(table.items.alive[row]),
                [cell[row].tolist() for cell, codec in zip(cells, coded, strict=True) if not codec],
                abs(float(table.given[row])) if len(table.given) else None,
            )  # fmt: skip
        frames = self.buffer.get(table.ids[table.items.alive != 0])
        seen = {
            name: value.tolist() for name, value in frames.items() if name in ("frame", "next_obs")
        }
        return {**found, -1: (len(table), sorted(table.streams), seen)}


def program(rng: random.Random) -> list[tuple[Any, ...]]:
    """Messages of two producers, and calls by id between them."""
    found: list[tuple[Any, ...]] = []
    number, sent = 0, [0, 0]
    for _ in range(rng.randint(6, 12)):
        kind = rng.choice(["insert", "insert", "insert", "prioritize", "update", "delete"])
        if kind != "insert":
            found.append((kind, sorted({max(0, number - rng.randint(0, 12)) for _ in range(3)})))
            continue
        rows = []
        for _ in range(rng.randint(1, 6)):
            stream, flags = rng.randint(0, 2), rng.choice([0, 0, 0, 0, r.TERMINATED, r.TRUNCATED])
            rows.append((stream, number, flags))
            number += 1
            if not flags and rng.random() < 0.2:
                rows.append((stream, number, r.FINAL | r.TRUNCATED))
        producer = rng.randint(0, 1)
        found.append(("insert", producer, sent[producer], rows))
        sent[producer] += 1
    return found


def gone_on(folder: Path, kind: str, files: dict[str, bytes], rest: list[Any]) -> dict[int, Any]:
    """The state of a table that was killed, after the rest of the program."""
    put_back(folder, files)
    play = Play(folder, kind)
    with play.buffer:
        for op in rest:
            play.call(op)
        return play.state()


def play_all(kind: str, seed: int, folder: Path) -> int:
    """Kill a table at every point of a program. Return how many points there were."""
    ops = program(random.Random(seed))
    play = Play(folder / "played", kind)
    points, killed = Points(folder / "played"), list[tuple[int, dict[str, bytes]]]()
    with play.buffer:
        for i, op in enumerate(ops):
            found = points.during(play.buffer, lambda op=op: play.call(op))
            killed += [(i, files) for files in found]
        expected = play.state()
    for n, (i, files) in enumerate(killed):
        found = gone_on(folder / "killed", kind, files, ops[i:])
        assert found == expected, f"{kind}, seed {seed}, point {n}, in {ops[i]}"
    return len(killed)


@pytest.mark.parametrize("kind", list(TABLES))
def test_a_table_that_is_killed_at_any_point_goes_on_as_if_it_had_not(kind, tmp_path):
    assert sum(play_all(kind, seed, tmp_path / str(seed)) for seed in range(3)) > 100
