"""Calls of signal handlers, at every point of a call of the same table or loader: they work, or say
at once that they cannot.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storm_rig import count_points, ends_within, interrupt, some_points

from async_loader import AsyncDataLoader, Prioritized, ReplayBuffer
from async_loader.errors import AsyncLoaderError, Closed, WouldDeadlock

LIMIT_S = 10.0
MOST = 10
BIG = np.zeros(5_000, np.uint8)  # written at once; small ones are staged
CALLS = {
    "add": lambda it: it.buffer.add(obs=1, big=BIG),
    "extend": lambda it: it.buffer.extend(obs=np.arange(9), big=np.zeros((9, 5_000), np.uint8)),
    "small add": lambda it: it.small.add(obs=1),
    "small extend": lambda it: it.small.extend(obs=np.arange(9)),
    "sample": lambda it: it.buffer.sample(4, timeout_s=LIMIT_S),
    "update": lambda it: it.buffer.update_priorities([1, 2], [1.0, 2.0]),
    "save": lambda it: it.buffer.save(it.folder),
    "next": lambda it: next(it.loader),
}
HANDLERS = {
    "add": CALLS["add"],
    "small add": CALLS["small add"],
    "sample": CALLS["sample"],
    "save": CALLS["save"],
    "next": CALLS["next"],
    "stats": lambda it: (it.buffer.stats(), it.small.stats()),
    "close the table": lambda it: it.buffer.close(),
    "close the loader": lambda it: it.loader.close(),
}


class Objects:
    """Two tables that have steps, and a loader over one."""

    def __init__(self, folder: Path, draws: str) -> None:
        self.folder = folder
        self.buffer = ReplayBuffer(64, sampler=Prioritized())
        self.small = ReplayBuffer(64, {"obs": np.int64})
        for i in range(4):
            self.buffer.add(obs=i, big=BIG)
            self.small.add(obs=i)
        self.loader = AsyncDataLoader(self.buffer, 4)
        next(self.loader)
        iteration = self.loader._engine.iteration
        while draws == "caller" and not iteration.producer.parked:
            iteration.draw_in("caller")
            next(self.loader)

    def close(self) -> None:
        self.loader.close()
        self.buffer.close()
        self.small.close()


@pytest.mark.slow
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize(
    ("call", "draws"), [*((call, "thread") for call in CALLS), ("next", "caller")]
)
def test_a_handler_that_calls_a_table_inside_a_call_of_it_works_or_fails_at_once(
    tmp_path: Path, call: str, draws: str, handler: str
) -> None:
    made = Objects(tmp_path, draws)
    CALLS[call](made)  # what is imported or compiled is so from here on
    total = count_points(lambda: CALLS[call](made))
    made.close()
    points = some_points(total, MOST, seed=1)
    refused = 0
    for at in points:
        objects = Objects(tmp_path, draws)
        failed: list[BaseException] = []

        def handle(objects: Any = objects, failed: Any = failed) -> None:
            try:
                HANDLERS[handler](objects)
            except (AsyncLoaderError, StopIteration) as refusal:
                failed.append(refusal)

        with ends_within(LIMIT_S):
            struck = interrupt(lambda objects=objects: CALLS[call](objects), at, handle)
        for error in failed:
            assert isinstance(error, WouldDeadlock), struck
        refused += bool(failed)
        if struck.raised is not None:
            assert handler.startswith("close"), struck
            assert isinstance(struck.raised, AsyncLoaderError | StopIteration), struck
        with ends_within(2 * LIMIT_S):
            if not handler.startswith("close"):
                objects.small.add(obs=2)
                objects.buffer.add(obs=2, big=BIG)
                next(objects.loader)
            with contextlib.suppress(Closed):
                assert len(objects.buffer) == len(set(objects.buffer.sample(400)["index"].tolist()))
            objects.close()
    assert refused < len(points) or handler == call  # which may hold its lock nearly always
