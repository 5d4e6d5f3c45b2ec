"""Readers: from any process, without a lock, never a torn row nor one under another's id."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer
from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken
from async_loader.replay.base.row_format import ID
from async_loader.replay.checkpoint import loading
from async_loader.replay.table import reader
from async_loader.replay.table.batch_arrays import join_index
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.storage import Storage
from async_loader.source import Window
from async_loader.testing.debug import debug_state

CHECKED = {"check": ((400,), np.int64), "number": np.int64, "byte": np.uint8}
SMALL = {"check": ((16,), np.int64), "number": np.int64, "byte": np.uint8}
LINKED = {
    "check": Field((16,), np.int64, stack=3, next="after"),
    "number": np.int64,
    "byte": np.uint8,
}


def checked(first: int, count: int, width: int) -> dict[str, Any]:
    """Rows in which every word is the row's id."""
    ids = np.arange(first, first + count)
    return {
        "check": np.repeat(ids[:, None], width, 1),
        "number": ids,
        "byte": (ids % 256).astype(np.uint8),
    }


def window(schema: Any, rows: int) -> Window:
    layout = BatchLayout.contiguous(schema, rows)
    return layout.window(np.zeros(layout.nbytes, np.uint8), 0, rows)


def bad_rows(into: Window) -> int:
    check, number, byte, index = into.fields
    good = (check == index[:, None]).all(axis=1) & (number == index) & (byte == index % 256)
    return int((~good).sum())


def bad_stacks(into: Window) -> int:
    check, number, byte, after, index = into.fields
    stack = index[:, None, None] + np.arange(-2, 1)[None, :, None]
    good = (
        (check == stack).all(axis=(1, 2))
        & (after == stack + 1).all(axis=(1, 2))
        & (number == index)
        & (byte == index % 256)
    )
    return int((~good).sum())


def full(capacity: int, schema: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(capacity, schema, seed=0)
    check = schema["check"]
    buffer.extend(
        checked(0, capacity, check.shape[0] if isinstance(check, Field) else check[0][0]), stream=0
    )
    return buffer


def reader_of(buffer: ReplayBuffer) -> ReplayReader:
    made = buffer.source().reader()
    assert made is not None
    len(buffer)  # what was gathered is written
    return made


@pytest.mark.parametrize("schema", [SMALL, CHECKED])
@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_a_reader_fills_windows(schema: Any, rows: int) -> None:
    buffer = full(3000, schema)
    buffer.extend(checked(3000, 5000, schema["check"][0][0]), stream=0)
    made = reader_of(buffer)
    assert made.schema.fields[-1].name == "index"
    into = window(made.schema, rows)
    ids = np.random.default_rng(1).integers(5000, 8000, rows)
    made.read(ids, into, (1, 2))
    assert bad_rows(into) == 0
    assert (into.fields[-1] == ids).all()


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_stacks_and_what_follows_fill_windows_too(rows: int) -> None:
    buffer = full(3000, LINKED)
    made = reader_of(buffer)
    into = window(made.schema, rows)
    ids = np.random.default_rng(1).integers(2, 2999, rows)
    made.read(ids, into, (1, 2))
    assert bad_stacks(into) == 0
    assert (into.fields[-1] == ids).all()


def test_weights_travel_beside_the_ids() -> None:
    buffer = full(100, SMALL)
    read_plan = debug_state(buffer).table_sampler.read_plan(None, SimpleNamespace(weighted=True))
    made = ReplayReader(debug_state(buffer).state.table.storage, read_plan)
    into = window(made.schema, 4)
    weight = np.array([0.25, 1.0, 1e-30, 0.1], np.float32)
    made.read(join_index(np.arange(4), weight), into, (0,))
    assert into.fields[-1].tolist() == weight.tolist()
    assert into.fields[-2].tolist() == [0, 1, 2, 3]


def test_a_reader_fills_its_part_of_a_batch_only() -> None:
    made = reader_of(full(100, SMALL))
    layout = BatchLayout.contiguous(made.schema, 10)
    root = np.zeros(layout.nbytes, np.uint8)
    made.read(np.arange(90, 94), layout.window(root, 3, 7), (0,))
    assert layout.views(root)[-1].tolist() == [0, 0, 0, 90, 91, 92, 93, 0, 0, 0]


@pytest.mark.parametrize("one_by_one", [True, False])
def test_planned_rows_that_are_gone_are_replaced_reproducibly_and_named(one_by_one: bool) -> None:
    buffer = full(50, SMALL)
    made = reader_of(buffer)
    ids = np.arange(50)
    if one_by_one:
        for n in range(50, 5050):
            buffer.add(check=np.full(16, n), number=n, byte=n % 256)
        assert len(buffer) > 0  # what was gathered is written
    else:
        buffer.extend(checked(50, 5000, 16), stream=0)
    delivered = []
    for seed in ((1, 2), (1, 2), (1, 3)):
        into = window(made.schema, 50)
        made.read(ids, into, seed)
        assert bad_rows(into) == 0
        assert into.fields[-1].min() >= 5050 - debug_state(buffer).state.table.storage.layout.rows
        delivered.append(into.fields[-1].tolist())
    assert delivered[0] == delivered[1] != delivered[2]
    assert ids.tolist() == list(range(50))


def test_a_row_that_is_gone_is_replaced_by_another_of_its_part() -> None:
    buffer = full(50, SMALL)
    made = reader_of(buffer)
    rows = debug_state(buffer).state.table.storage.layout.rows
    buffer.extend(checked(50, rows - 10, 16), stream=0)  # ids 0 to 39 are overwritten
    into = window(made.schema, 4)
    made.read(np.array([3, 45, 17, 47]), into, (9,))
    assert bad_rows(into) == 0
    delivered = into.fields[-1].tolist()
    assert delivered[1::2] == [45, 47]
    assert set(delivered[::2]) <= {45, 47}


def test_rows_overwritten_while_they_are_read_are_caught() -> None:
    buffer = full(64, LINKED)
    made, done = reader_of(buffer), threading.Event()
    made._short = 0  # so that reading releases the GIL
    ids, seen = np.arange(20, 40), 0

    def write() -> None:
        first = 64
        while not done.is_set():
            buffer.extend(checked(first, 40, 16), stream=0)
            first += 40

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(2000):
            oldest = int(debug_state(buffer).state.table.storage.heads()[:, ID // 8].min())
            into = window(made.schema, 200)
            gone = made.fill(np.repeat(oldest + ids, 10), into)
            kept = np.delete(np.arange(200), gone)
            assert bad_stacks(Window([field[kept] for field in into.fields])) == 0
            seen += 0 < len(kept) < 200
    finally:
        done.set()
        thread.join()
    assert seen


def test_a_row_that_is_being_patched_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for schema, hidden in ((SMALL, [10]), (LINKED, [9, 10, 11, 12])):
        buffer = full(64, schema)
        made, table = reader_of(buffer), debug_state(buffer).state.table
        table._k.turn_version(table.g, np.array([30]), True)
        into = window(made.schema, 20)
        assert made.fill(np.arange(20, 40), into).tolist() == hidden
        table._k.turn_version(table.g, np.array([30]), False)
        assert not len(made.fill(np.arange(20, 40), into))


def test_a_row_that_a_killed_writer_left_half_written_is_not_read() -> None:
    buffer = full(64, SMALL)
    made, table = reader_of(buffer), debug_state(buffer).state.table
    table.storage.heads()[30, 0] = 0
    assert made.fill(np.arange(20, 40), window(made.schema, 20)).tolist() == [10]


def test_a_sample_overtaken_by_the_writer_is_whole_and_drawn_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = full(64, LINKED)
    buffer.sample(1)
    read, laps = ReplayReader._read, []

    def overtaken(self: ReplayReader, *arguments: Any) -> Any:
        if not laps:
            laps.append(1)
            buffer.extend(checked(64, 5000, 16), stream=0)
        return read(self, *arguments)

    monkeypatch.setattr(ReplayReader, "_read", overtaken)
    # as large rows are: small ones are read under the lock
    monkeypatch.setattr(ReplayReader, "at_once", lambda *_: False)
    batch = buffer.sample(200)
    assert bad_stacks(Window(list(batch.values()))) == 0
    assert batch["index"].min() >= 5000
    assert len(set(batch["index"].tolist())) > 30


def test_fetch_gives_samples() -> None:
    buffer = ReplayBuffer(8)
    buffer.extend(obs={"a": np.arange(8), "b": np.arange(8) * 2.0})
    samples = reader_of(buffer).fetch(np.array([3, 5]), (0,))
    assert [(s["obs"]["a"], s["obs"]["b"], s["index"]) for s in samples] == [
        (3, 6.0, 3),
        (5, 10.0, 5),
    ]


def test_reading_no_rows_and_ids_that_never_were() -> None:
    made = reader_of(full(8, SMALL))
    made.read(np.empty(0, np.int64), window(made.schema, 0), (0,))
    for ids in ([0, 8], [-1, 3], [1 << 62]):
        into = window(made.schema, len(ids))
        made.read(np.array(ids), into, (0,))
        assert bad_rows(into) == 0
        assert set(into.fields[-1].tolist()) <= set(range(8))


def test_a_table_in_which_nothing_can_be_read_is_broken_not_a_hang() -> None:
    buffer = full(8, SMALL)
    made = reader_of(buffer)
    buffer.delete(np.arange(8))
    with pytest.raises(Broken, match="raise its capacity"):
        made.read(np.array([100]), window(made.schema, 1), (0,))


def test_planned_rows_are_replaced_in_a_table_that_holds_few_since_it_was_loaded(
    tmp_path: Path,
) -> None:
    with ReplayBuffer(50_000, SMALL) as few:
        few.extend(checked(0, 3, 16), stream=0)
        few.save(tmp_path)
    buffer = full(50_000, SMALL)
    made = reader_of(buffer)
    into = window(made.schema, 4)
    buffer.load(tmp_path)
    made.read(np.arange(40_000, 40_004), into, (0,))
    assert bad_rows(into) == 0
    assert set(into.fields[-1].tolist()) <= {0, 1, 2}


def test_a_reader_waits_for_a_table_that_is_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = full(8, SMALL)
    made, storage = reader_of(buffer), debug_state(buffer).state.table.storage
    names = storage.heads()[:, ID // 8]
    before, looks = names.copy(), []
    names[:], storage.loading = 0, True

    def look(_: float) -> None:
        looks.append(storage.loading)
        if len(looks) == 3:
            names[:], storage.loading = before, False

    monkeypatch.setattr(reader, "time", SimpleNamespace(sleep=look))
    into = window(made.schema, 4)
    made.read(np.arange(4), into, (0,))
    assert looks == [True] * 3
    assert bad_rows(into) == 0


def test_a_reader_waits_for_a_load_that_never_ends_no_longer_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = full(8, SMALL)
    made, storage = reader_of(buffer), debug_state(buffer).state.table.storage
    storage.heads()[:, ID // 8], storage.loading = 0, True
    monkeypatch.setattr(reader, "_LOADING_S", 0.1)
    with pytest.raises(Broken, match="could be read"):
        made.read(np.arange(4), window(made.schema, 4), (0,))


def test_readers_of_other_processes_see_that_a_table_is_being_loaded_and_that_it_is_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = full(8, SMALL)
    buffer.save(tmp_path)
    storage, seen = debug_state(buffer).state.table.storage, []
    copy = Storage(storage.segment, storage.layout)
    put = loading._Loading._put

    def putting(*args: Any, **named: Any) -> None:
        seen.append(copy.loading)
        put(*args, **named)

    monkeypatch.setattr(loading._Loading, "_put", putting)
    buffer.load(tmp_path)
    assert (seen, copy.loading) == ([True], False)
    monkeypatch.setattr(loading._Loading, "_put", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        buffer.load(tmp_path)
    assert not copy.loading


def _read_all(made: ReplayReader, pipe: Connection) -> None:
    while (ids := pipe.recv()) is not None:
        into = window(made.schema, len(ids))
        made.read(ids, into, (0,))
        pipe.send((into.fields[-1].tolist(), bad_rows(into)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_reader_travels_and_sees_what_is_added_later(method: str) -> None:
    context = multiprocessing.get_context(method)
    buffer = full(32, SMALL)
    here, there = context.Pipe()
    process = context.Process(target=_read_all, args=(reader_of(buffer), there), daemon=True)
    process.start()
    there.close()
    here.send(np.arange(32))
    assert here.recv() == (list(range(32)), 0)
    buffer.extend(checked(32, 100, 16), stream=0)
    assert len(buffer) == 32
    here.send(np.arange(100, 132))
    assert here.recv() == (list(range(100, 132)), 0)
    here.send(None)
    process.join(60)
    assert process.exitcode == 0
    process.close()
    here.close()
