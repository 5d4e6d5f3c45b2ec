"""A checkpoint loaded into a table that is in use: what readers, sources and writers have of it
afterwards.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader import (
    Fifo,
    Prioritized,
    ReplayBuffer,
    Uniform,
)
from async_loader.errors import CorruptCheckpoint, Timeout
from async_loader.lifecycle import Patience
from async_loader.replay.checkpoint import loading
from async_loader.replay.table.reader import ReplayReader
from async_loader.source import Rows
from async_loader.testing.debug import debug_state

WORDS = 64
SCHEMA = {"x": "int64", "words": ((WORDS,), "int64")}


def steps(first: int, count: int) -> dict[str, Any]:
    """Rows whose words all say which step it is."""
    x = np.arange(first, first + count)
    return {"x": x, "words": np.repeat(x[:, None], WORDS, axis=1)}


def filled(first: int = 0, count: int = 500, **settings: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(1000, SCHEMA, seed=0, **settings)
    buffer.extend(steps(first, count))
    return buffer


def test_rows_that_are_read_meanwhile_are_never_torn(tmp_path: Path) -> None:
    """The ids are the same in both, the rows are not: only the rows' versions tell one from the
    other.
    """
    buffer, other = filled(), filled(10_000)
    buffer.save(tmp_path / "one")
    other.save(tmp_path / "other")
    reader = buffer.source().reader()
    assert reader is not None
    ids, stop, torn, read = np.arange(500), threading.Event(), [], []

    def look() -> None:
        while not stop.is_set():
            into, gone = reader.take(ids)
            kept = np.delete(into.fields[1], gone, axis=0)
            torn.extend(row for row in kept if (row != row[0]).any())
            read.append(len(kept))

    thread = threading.Thread(target=look)
    thread.start()
    turn = 0
    while turn < 16 or (thread.is_alive() and not sum(read)):  # it may not be run for a while
        buffer.load(tmp_path / ("other" if turn % 2 else "one"))
        turn += 1
    stop.set()
    thread.join()
    assert not torn
    assert sum(read) > 0


@pytest.mark.parametrize("sampler", [Uniform, Prioritized, Fifo])
def test_draws_go_on_where_the_save_was(tmp_path: Path, sampler: Any) -> None:
    buffer = filled(sampler=sampler())
    buffer.sample(10)
    buffer.save(tmp_path)
    wanted = [buffer.sample(10)["index"].tolist() for _ in range(3)]
    buffer.extend(steps(5000, 900))
    buffer.load(tmp_path)
    assert [buffer.sample(10)["index"].tolist() for _ in range(3)] == wanted
    fresh = filled(3, 8, sampler=sampler())
    fresh.load(tmp_path)
    assert [fresh.sample(10)["index"].tolist() for _ in range(3)] == wanted


def test_files_that_change_while_they_are_read_leave_an_empty_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled()
    source = buffer.source(sampler=Fifo())
    buffer.save(tmp_path)

    def broken(*args: Any) -> None:
        raise CorruptCheckpoint("data.bin: changed just now")

    monkeypatch.setattr(loading._Loading, "_state", broken)
    with pytest.raises(CorruptCheckpoint, match="changed just now") as caught:
        buffer.load(tmp_path)
    assert caught.value.__notes__ == [
        "this came after the table's own steps had been taken out: the table is empty now"
    ]
    assert len(buffer) == 0
    assert len(buffer.get(range(500))["index"]) == 0
    buffer.extend(steps(0, 4))
    plan = source.plan(4, Patience())
    assert isinstance(plan, Rows)
    assert plan.index.tolist() == [0, 1, 2, 3]
    del source, plan


def test_saves_and_loads_take_turns(tmp_path: Path) -> None:
    buffer = filled()
    buffer.save(tmp_path)
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with debug_state(buffer).saver.alone(tmp_path, None):
            begun.set()
            over.wait()

    other = threading.Thread(target=hold)
    other.start()
    try:
        begun.wait()
        for call in (buffer.save, buffer.load):
            with pytest.raises(Timeout, match="another save or load of this table is under way"):
                call(tmp_path, timeout_s=0.01)
    finally:
        over.set()
        other.join()


def test_readers_of_before_deliver_what_was_loaded_or_another_step(tmp_path: Path) -> None:
    buffer = filled()
    filled(10_000, 40).save(tmp_path)
    reader = ReplayReader(
        debug_state(buffer).state.table.storage, debug_state(buffer).state.read_plan(None)
    )
    buffer.load(tmp_path)
    samples = reader.fetch(np.arange(30, 60), (1,))
    assert all((sample["words"] == sample["x"]).all() for sample in samples)
    assert [int(sample["x"]) for sample in samples[:10]] == list(range(10_030, 10_040))
    assert all(10_000 <= sample["x"] < 10_040 for sample in samples)
