"""Seeded rounds over one pool: iterations begun, read, dropped, and workers killed. Nothing
comes twice, or wrong, or late.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal

import numpy as np
import pytest

from async_loader.errors import WorkerDied
from async_loader.pipeline.engine import Engine


def kill_one(pool, rng):
    """Kill a worker that is ready: three that are killed before that in a row end the pool."""
    workers = [one for one in list(pool._core.pool.handles) if one.ready]
    # none while all of them are being replaced
    if pids := [one.pid for one in workers if one.pid]:
        with contextlib.suppress(ProcessLookupError):  # it was killed before, and reaped just now
            os.kill(rng.choice(pids), signal.SIGKILL)


class Filled:
    def begin(self, here):
        def do(task):
            number, kind, size = task
            if kind == "fail":
                raise ValueError(number)
            return np.full(size, number)

        return do


class Counted:
    def begin(self, here):
        return iter(range(100 * here.worker, 100 * here.worker + 20))


class Reader:
    """One iteration and what must still come of it."""

    def __init__(self, pool, rng):
        kinds = [rng.choice(["ok"] * 8 + ["fail"]) for _ in range(rng.randrange(1, 30))]
        self.tasks = [(i, kind, rng.choice([1, 30_000, 100_000])) for i, kind in enumerate(kinds)]
        self.iteration = pool.iterate(self.tasks)
        self.next = 0
        self.over = False

    def step(self):
        """What comes next is what the tasks say; a WorkerDied costs the batch that it names."""
        try:
            batch = next(self.iteration)
        except ValueError as error:
            self.next = error.args[0] + 1
        except WorkerDied:
            pass
        except StopIteration:
            self.over = True
        else:
            number = int(batch[0])
            assert number >= self.next
            assert self.tasks[number][1] == "ok"
            assert batch.shape == (self.tasks[number][2],)
            assert (batch == number).all()
            self.next = number + 1


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_batches_are_whole_and_in_order(seed, caplog):
    caplog.set_level("ERROR", logger="async_loader")
    rng = random.Random(seed)
    with contextlib.closing(Engine(Filled(), 3, prefetch=5)) as pool:
        readers = [Reader(pool, rng)]
        for _ in range(200):
            what = rng.random()
            if what < 0.1 and len(readers) < 4:
                readers.append(Reader(pool, rng))
            elif what < 0.13 and readers:
                readers.pop(rng.randrange(len(readers)))
            elif what < 0.15:
                kill_one(pool, rng)
            elif readers:
                reader = rng.choice(readers)
                reader.step()
                readers = [one for one in readers if not one.over]
        for reader in readers:
            while not reader.over:
                reader.step()


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_worker_never_shortens_a_pass_over_streams_without_a_word(seed, caplog):
    caplog.set_level("ERROR", logger="async_loader")
    rng = random.Random(seed)
    with contextlib.closing(Engine(Counted(), 2)) as pool:
        for _ in range(4):
            iteration, got, died = pool.streams(), [], 0
            victim_at = rng.choice([0, 0, 5, 30, None])
            while True:
                if victim_at is not None and len(got) == victim_at:
                    kill_one(pool, rng)
                    victim_at = None
                try:
                    got.append(next(iteration))
                except WorkerDied:
                    died += 1
                except StopIteration:
                    break
            assert died or len(got) == 40
            for worker in (0, 1):
                share = [n for n in got if n // 100 == worker]
                assert share == list(range(100 * worker, 100 * worker + len(share)))
