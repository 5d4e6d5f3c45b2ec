"""A kept queue whose feeder is killed at any point: what was acknowledged comes to learners, what
they confirmed does not come again, and what they had and did not confirm comes marked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_rig import SCHEMA, Rig

from async_loader import ReplayBuffer
from async_loader.feeder.wire import Plane
from tests.kept_rig import Points, put_back, small_pages

pytestmark = pytest.mark.usefixtures(small_pages.__name__)
__all__ = ["small_pages"]


class Feeder:
    """A rig with one kept queue, a writer and a learner of batches of 2."""

    def __init__(self, folder: Path, make: Callable[..., ReplayBuffer]) -> None:
        self.buffer = make(8, SCHEMA, keep=folder)
        self.rig = Rig({"t": self.buffer})
        self.writer, self.learner = self.rig.peer(), self.rig.peer()
        self.next = self.writer.open_writer().body.applied
        self.reader = self.learner.open_reader(batch_size=2)
        self.granted = 0
        self.had: dict[int, list[int]] = {}
        self.marks: dict[int, bool] = {}

    def insert(self, number: int, values: list[int]) -> None:
        if number >= self.next:
            self.writer.insert(number, values)
            self.next += 1
        self.rig.turn()

    def draw(self) -> None:
        self.granted += 1
        self.learner.pull(self.granted)
        self.take()

    def take(self) -> None:
        while (message := self.learner.receive(Plane.PULL, wait=False)) is not None:
            values = self.learner.values(message, self.reader)
            self.had[len(self.had)] = values
            marks = self.learner.redelivered(message, self.reader)
            self.marks |= dict(zip(values, marks, strict=True))

    def confirm(self, lease: int) -> None:
        self.learner.give_back([lease])
        self.rig.turn()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.rig.__exit__()


def program(rng: random.Random) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    value = sent = drawn = confirmed = 0
    for _ in range(rng.randint(20, 36)):
        kind = rng.choice(["insert", "insert", "draw", "draw", "confirm"])
        if kind == "insert":
            count = rng.randint(1, 3)
            found.append(("insert", sent, list(range(value, value + count))))
            value, sent = value + count, sent + 1
        elif kind == "draw" and drawn < confirmed + 5:
            found.append(("draw",))
            drawn += 1
        elif kind == "confirm" and confirmed < drawn:
            found.append(("confirm", confirmed))
            confirmed += 1
    return found


def killed(kind: Callable[..., ReplayBuffer], ops: list[Any], folder: Path) -> list[Any]:
    """Return the op, what a kill would leave in it, and what learners had and had confirmed."""
    found = []
    with Feeder(folder, kind) as feeder:
        points = Points(folder)
        confirmed: set[int] = set()
        for i, op in enumerate(ops):
            name, *given = op
            if name == "confirm" and given[0] not in feeder.had:
                continue
            before = {one for batch in feeder.had.values() for one in batch}
            some = points.during(feeder.buffer, lambda n=name, g=given: getattr(feeder, n)(*g))
            sure = set(confirmed)
            if name == "confirm":
                confirmed.update(feeder.had[given[0]])
            found += [(i, files, before, sure, set(confirmed)) for files in some]
    return found


@pytest.mark.parametrize("kind", [ReplayBuffer.queue, ReplayBuffer.stack], ids=["queue", "stack"])
@pytest.mark.parametrize("seed", range(2))
def test_a_queue_that_is_killed_at_any_point_loses_nothing_and_marks_what_comes_again(
    kind, seed, tmp_path
):
    ops = program(random.Random(seed))
    values = [op[2] for op in ops if op[0] == "insert"]
    cases = killed(kind, ops, tmp_path / "played")
    assert len(cases) > 20
    for n, (i, files, had, sure, confirmed) in enumerate(cases):
        put_back(tmp_path / "killed", files)
        where = f"{kind}, seed {seed}, point {n}, in {ops[i]}"
        with Feeder(tmp_path / "killed", kind) as feeder:
            drained: list[int] = []
            for number, batch in enumerate(values):
                feeder.insert(number, batch)
                drain(feeder)
            feeder.rig.server_state.begin_to_drain()
            drain(feeder)
            drained = [one for batch in feeder.had.values() for one in batch]
            assert len(drained) == len(set(drained)), where
            every = {one for batch in values for one in batch}
            assert every - set(drained) <= confirmed, where
            assert not sure & set(drained), where
            assert all(feeder.marks[one] for one in had - confirmed if one in feeder.marks), where


def drain(feeder: Feeder) -> None:
    """Take what there is, and confirm it."""
    for _ in range(12):
        seen = len(feeder.had)
        feeder.draw()
        if len(feeder.had) == seen:
            return
        feeder.confirm(len(feeder.had) - 1)
