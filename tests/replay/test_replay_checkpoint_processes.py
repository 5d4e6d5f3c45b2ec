"""One process saves into a folder again and again, another loads from it: a load is one save,
whole.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader import Prioritized, ReplayBuffer
from async_loader.errors import ConfigError
from async_loader.testing.debug import debug_state

pytestmark = pytest.mark.timeout(600)  # of hundreds of saves, each of which waits for the disk
CAPACITY, EACH, REWRITTEN = 210, 7, 35
PATIENCE_S = 60.0


def save_until(folder: Path, end: Any, saved: Any) -> None:
    """Saves whose every row follows from the number of rows that were added before."""
    schema = {"x": np.int64, "rewritten": np.int64, "block": ((64,), np.int64)}
    buffer = ReplayBuffer(CAPACITY, schema, sampler=Prioritized(), seed=0)
    for count in itertools.count(EACH, EACH):
        x = np.arange(count - EACH, count)  # which are the ids too
        buffer.extend(
            x=x,
            rewritten=np.full(EACH, -1),
            block=np.repeat(3 * x[:, None], 64, 1),
            priority=x + 1.0,
        )
        if count % REWRITTEN == 0:
            ids = np.arange(max(0, count - CAPACITY), count)
            buffer.update(ids, rewritten=np.full(len(ids), count))
        buffer.save(folder)
        saved.release()
        if end.is_set():
            return


def check(buffer: ReplayBuffer) -> int:
    """That the table is as it was at one save; how many rows had been added by then."""
    table = debug_state(buffer).state.table
    rows = np.flatnonzero(table.items.alive)
    rows = rows[np.argsort(table.ids[rows])]
    x, rewritten, block = (table.storage.cell(n)[rows] for n in range(3))
    count = int(x[-1]) + 1
    assert count == table.inserted
    assert count % EACH == 0
    assert x.tolist() == table.ids[rows].tolist() == list(range(max(0, count - CAPACITY), count))
    last = count // REWRITTEN * REWRITTEN
    assert (rewritten == np.where(x < last, last, -1)).all()
    assert (block == 3 * x[:, None]).all()
    assert (np.diff(debug_state(buffer).state.sampler.state()["mass"][rows]) > 0).all(), (
        "priorities rise with x"
    )
    assert set(buffer.sample(100)["index"].tolist()) <= set(x.tolist())
    return count


@contextlib.contextmanager
def saving(folder: Path) -> Iterator[Any]:
    """A process that saves; the semaphore counts its saves."""
    fork = multiprocessing.get_context("fork")
    end, saved = fork.Event(), fork.Semaphore(0)
    process = fork.Process(target=save_until, args=(folder, end, saved))
    process.start()
    try:
        yield saved
    finally:
        end.set()
        process.join(PATIENCE_S)
        exitcode = process.exitcode
        process.kill()
        process.join()
        process.close()
    assert exitcode == 0


def test_a_load_beside_a_process_that_saves_without_end_is_one_whole_save(tmp_path: Path) -> None:
    with saving(tmp_path) as saved:
        assert saved.acquire(timeout=PATIENCE_S)
        counts: list[int] = []
        while len(set(counts)) < 60:
            with ReplayBuffer.from_checkpoint(tmp_path) as loaded:
                counts.append(check(loaded))
    assert counts == sorted(counts), "never an older save than the one before"


def test_a_save_that_is_asked_for_by_its_number_is_that_one_or_is_said_to_be_gone(
    tmp_path: Path,
) -> None:
    with saving(tmp_path) as saved:
        assert saved.acquire(timeout=PATIENCE_S)
        gone, loaded = [], 0
        while not gone or loaded < 10:
            there = sorted(
                int(one.name.removeprefix("save-"))
                for one in tmp_path.glob("save-*")
                if one.suffix == ""
            )
            try:
                with ReplayBuffer.from_checkpoint(tmp_path, number=there[0]) as one:
                    assert check(one) == EACH * there[0]
                    loaded += 1
            except ConfigError as error:
                gone.append((str(error), there[0]))
    assert all(f"there is no save {number} in this folder, only" in said for said, number in gone)
