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
    AsyncDataLoader,
    Fifo,
    Lifo,
    MinHeap,
    Prioritized,
    ReplayBuffer,
    Transitions,
    Uniform,
)
from async_loader.errors import Closed, ConfigError, CorruptCheckpoint, Timeout, Unsupported
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


def test_workers_of_a_loader_go_on_in_the_same_memory(tmp_path: Path) -> None:
    buffer, other = filled(), filled(10_000, 300)
    other.save(tmp_path)
    with AsyncDataLoader(buffer, 16, num_workers=2, prefetch=2, timeout_s=60) as loader:
        assert next(loader)["x"].max() < 500
        buffer.load(tmp_path)
        batches = [next(loader) for _ in range(30)]
    for batch in batches:
        assert (batch["words"] == batch["x"][:, None]).all()
    assert batches[-1]["x"].min() >= 10_000
    assert len(buffer) == 300


def test_a_sampler_of_a_source_is_told_of_what_was_loaded(tmp_path: Path) -> None:
    filled(0, 20).save(tmp_path)
    buffer = filled(100, 50)
    source = buffer.source(sampler=Lifo())
    buffer.load(tmp_path)
    plan = source.plan(3, Patience())
    assert isinstance(plan, Rows)
    assert plan.index.tolist() == [19, 18, 17]
    buffer.extend(steps(7, 1))
    plan = source.plan(2, Patience())
    assert isinstance(plan, Rows)
    assert plan.index.tolist() == [20, 19]
    del source, plan


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


def test_a_view_with_more_steps_than_the_save_knew_still_holds(tmp_path: Path) -> None:
    schema = {"obs": "int64", "reward": "float32"}
    plain = ReplayBuffer(100, schema, seed=0)
    plain.extend(obs=np.arange(10), reward=np.ones(10, np.float32))
    plain.save(tmp_path)
    for buffer in (ReplayBuffer(100, schema, view=Transitions(3)), ReplayBuffer(100, schema)):
        buffer.add(obs=0, reward=0.0)
        view = Transitions(3)
        buffer.source(view=view)
        buffer.load(tmp_path)
        assert set(buffer.sample(200, view=view)["obs"].tolist()) == set(range(8))


def test_the_view_is_saved_and_another_may_be_given(tmp_path: Path) -> None:
    view = Transitions(2, 0.5)
    buffer = ReplayBuffer(100, {"reward": "float32"}, view=view)
    buffer.save(tmp_path)
    assert ReplayBuffer.from_checkpoint(tmp_path).view == view
    assert ReplayBuffer.from_checkpoint(tmp_path, view=None).view is None
    assert ReplayBuffer.from_checkpoint(tmp_path, view=Transitions(4)).view == Transitions(4)


def test_a_removers_table_is_loaded_in_place_too(tmp_path: Path) -> None:
    def made(rows: int) -> ReplayBuffer:
        buffer = ReplayBuffer(20, SCHEMA, remover=MinHeap(), seed=0)
        buffer.extend(steps(0, rows), priority=np.arange(rows)[::-1].astype(float))
        return buffer

    buffer = made(50)
    kept = sorted(buffer.sample(400)["x"].tolist())
    buffer.save(tmp_path)
    buffer.extend(steps(500, 10), priority=np.full(10, 99.0))
    buffer.load(tmp_path)
    assert set(buffer.sample(400)["x"].tolist()) == set(kept)
    buffer.extend(steps(500, 1), priority=[99.0])
    assert len(buffer) == 20
    ordered = filled()
    with pytest.raises(ConfigError, match="taken out of order"):
        ordered.load(tmp_path)
    assert len(ordered) == 500


def test_a_queue_is_loaded_in_place(tmp_path: Path) -> None:
    queue = ReplayBuffer.queue(8, {"x": "int64"})
    queue.extend(x=np.arange(6))
    assert queue.sample(2)["x"].tolist() == [0, 1]
    queue.save(tmp_path)
    assert queue.sample(3)["x"].tolist() == [2, 3, 4]
    queue.load(tmp_path)
    assert queue.sample(4)["x"].tolist() == [2, 3, 4, 5]
    queue.extend(x=np.arange(8), timeout_s=0)
    with pytest.raises(Timeout):
        queue.add(x=9, timeout_s=0)


def test_what_waits_for_items_gets_those_that_are_loaded(tmp_path: Path) -> None:
    filled().save(tmp_path)
    buffer = ReplayBuffer(1000, SCHEMA)
    drawn: list[Any] = []
    thread = threading.Thread(target=lambda: drawn.append(buffer.sample(4, timeout_s=60)))
    thread.start()
    buffer.load(tmp_path)
    thread.join(60)
    assert len(drawn[0]["x"]) == 4


def test_a_table_that_was_saved_before_its_first_step_empties_the_other(tmp_path: Path) -> None:
    ReplayBuffer(10).save(tmp_path)
    buffer = filled()
    buffer.load(tmp_path)
    assert len(buffer) == 0
    buffer.extend(steps(0, 3))
    assert len(buffer) == 3


def test_files_that_were_changed_are_refused_before_anything_is(tmp_path: Path) -> None:
    buffer = filled()
    buffer.save(tmp_path)
    data = tmp_path / "save-00000001" / "data.bin"
    raw = bytearray(data.read_bytes())
    raw[len(raw) // 2] ^= 255
    data.write_bytes(bytes(raw))
    buffer.extend(steps(600, 3))
    with pytest.raises(CorruptCheckpoint, match=r"data\.bin"):
        buffer.load(tmp_path)
    assert len(buffer) == 503


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


def test_a_closed_table_and_a_fork_load_nothing(tmp_path: Path) -> None:
    buffer = filled()
    buffer.save(tmp_path)
    debug_state(buffer).state.foreign = True
    with pytest.raises(
        Unsupported, match="only the process that made a replay buffer saves and loads it"
    ):
        buffer.load(tmp_path)
    debug_state(buffer).state.foreign = False
    buffer.close()
    with pytest.raises(Closed):
        buffer.load(tmp_path)


def test_readers_of_before_deliver_what_was_loaded_or_another_step(tmp_path: Path) -> None:
    buffer = filled()
    filled(10_000, 40).save(tmp_path)
    reader = ReplayReader(
        debug_state(buffer).state.table.storage, debug_state(buffer).table_sampler.read_plan(None)
    )
    buffer.load(tmp_path)
    samples = reader.fetch(np.arange(30, 60), (1,))
    assert all((sample["words"] == sample["x"]).all() for sample in samples)
    assert [int(sample["x"]) for sample in samples[:10]] == list(range(10_030, 10_040))
    assert all(10_000 <= sample["x"] < 10_040 for sample in samples)
