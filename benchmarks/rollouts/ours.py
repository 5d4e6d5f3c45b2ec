"""A feeder with a table of rollouts, as users have it: put, late rewards, get."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.harness import Figures
from benchmarks.measure import read
from benchmarks.rollouts.workloads import SIZE, Work, timed


def table(work: Work, late: bool = False, size: int = SIZE) -> Any:
    """Return an empty table whose batch is all that is put in a turn."""
    from async_loader import Ragged, Rollouts

    fields: dict[str, Any] = {name: Ragged(dtype) for name, dtype in work.fields.items()}
    fields |= {"reward": "float32"} if late else {}
    return Rollouts(fields, batch=work.groups, max_lag=0, size=size)


@contextmanager
def serving(work: Work, **options: Any) -> Iterator[tuple[Any, str]]:
    """Give the table of a feeder in a process of its own, and the feeder's address."""
    from async_loader import connect

    with connect("embedded", tables={"bench": table(work, **options)}) as client:
        yield client.table("bench"), client.address


class Turns:
    """Put, reward and get of one table, whose version goes up by each batch."""

    def __init__(self, table: Any, work: Work) -> None:
        self.table, self.work, self.version = table, work, 0
        self.source = table.source()
        members = np.arange(work.members)
        self._whole = {**work.values, "offsets": work.offsets, "group": members // SIZE}
        self._columns = {name: work.column(name) for name in work.fields}
        self._rewards = np.ones(work.members, np.float32)

    def put(self) -> list[int]:
        return list(self.table.extend(self._whole))

    def put_by_group(self) -> list[int]:
        """As a generator does, with a call for each group and member."""
        made = []
        for group in self.table.groups(range(self.work.groups), name=f"of {self.version}"):
            first = SIZE * len(made)
            for i in range(first, first + SIZE):
                group.append(**{name: values[i] for name, values in self._columns.items()})
            made.append(group.id)
            if len(made) == self.work.groups:  # the loop itself ends when all are rewarded
                group.commit()
                break
        return made

    def reward(self, groups: list[int]) -> None:
        """Set the late field of all members in one call."""
        index = (np.array(groups)[:, None] << 16) + np.arange(SIZE)
        self.table.update(index.reshape(-1), reward=self._rewards)

    def get(self) -> Mapping[str, Any]:
        """Take the batch, and read it."""
        from async_loader.lifecycle import Patience

        plan = self.source.plan(self.work.groups, Patience())
        self.source.hand_out(plan.lease)
        read(plan.batch)
        return dict(plan.batch)

    def publish(self) -> None:
        """Free the slots."""
        self.version += 1
        self.table.publish(self.version)


def measured(
    seconds: float, work: Work, late: bool = False, by_group: bool = False, local: bool = False
) -> Figures:
    """Return put, reward, get and their sum. ``local``: without a feeder."""
    if local:
        return _measured(seconds, table(work, late), work, late, by_group)
    with serving(work, late=late) as (served, _):
        return _measured(seconds, served, work, late, by_group)


def _measured(seconds: float, table: Any, work: Work, late: bool, by_group: bool) -> Figures:
    turns = Turns(table, work)
    put = turns.put_by_group if by_group else turns.put

    def turn() -> dict[str, float]:
        begin = time.perf_counter()
        groups = put()
        done = time.perf_counter()
        if late:
            turns.reward(groups)
        rewarded = time.perf_counter()
        batch = turns.get()
        end = time.perf_counter()
        if not turns.version:
            work.check(batch)
        turns.publish()
        return {"put": done - begin, "reward": rewarded - done, "get": end - rewarded,
                "sum": end - begin}  # fmt: skip

    return timed(seconds, turn)
