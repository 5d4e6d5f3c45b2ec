"""Readers: from any process, without a lock, never a torn row nor one under another's id."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer
from async_loader.batch_layout import BatchLayout
from async_loader.errors import Broken
from async_loader.replay.base.row_format import ID
from async_loader.replay.table import reader
from async_loader.replay.table.reader import ReplayReader
from async_loader.source import Window
from tests.table_parts import debug_state

CHECKED = {"check": ((400,), np.int64), "number": np.int64, "byte": np.uint8}
SMALL = {"check": ((16,), np.int64), "number": np.int64, "byte": np.uint8}
LINKED = SMALL | {"check": Field((16,), np.int64, stack=3, next="after")}
PAIRS = SMALL | {"check": Field((16,), np.int64, next="after")}


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
    check, after = (one if one.ndim == 3 else one[:, None] for one in (check, after))
    stack = index[:, None, None] + np.arange(1 - check.shape[1], 1)[None, :, None]
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


@pytest.mark.parametrize("schema", [LINKED, PAIRS], ids=["stacks", "pairs"])
def test_rows_overwritten_while_they_are_read_are_caught(schema: Any) -> None:
    buffer = full(64, schema)
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
        for _ in range(1000):
            oldest = int(debug_state(buffer).state.table.storage.heads()[:, ID // 8].min())
            into = window(made.schema, 2000)
            gone = made.fill(np.repeat(oldest + ids, 100), into)
            kept = np.delete(np.arange(2000), gone)
            assert bad_stacks(Window([field[kept] for field in into.fields])) == 0
            seen += 0 < len(kept) < 2000
    finally:
        done.set()
        thread.join()
    assert seen


def test_a_row_that_a_killed_writer_left_half_written_is_not_read() -> None:
    buffer = full(64, SMALL)
    made, table = reader_of(buffer), debug_state(buffer).state.table
    table.storage.heads()[30, 0] = 0
    assert made.fill(np.arange(20, 40), window(made.schema, 20)).tolist() == [10]


@pytest.mark.parametrize("schema", [LINKED, PAIRS], ids=["stacks", "pairs"])
def test_a_sample_overtaken_by_the_writer_is_whole_and_drawn_anew(
    monkeypatch: pytest.MonkeyPatch, schema: Any
) -> None:
    buffer = full(64, schema)
    buffer.sample(1)
    read, laps = ReplayReader._run, []

    def overtaken(self: ReplayReader, *arguments: Any) -> Any:
        if not laps:
            laps.append(1)
            buffer.extend(checked(64, 5000, 16), stream=0)
        return read(self, *arguments)

    monkeypatch.setattr(ReplayReader, "_run", overtaken)
    # as large rows are: small ones are read under the lock
    monkeypatch.setattr(ReplayReader, "at_once", lambda *_: False)
    batch = buffer.sample(200)
    assert bad_stacks(Window(list(batch.values()))) == 0
    assert batch["index"].min() >= 5000
    assert len(set(batch["index"].tolist())) > 30


def test_a_table_in_which_nothing_can_be_read_is_broken_not_a_hang() -> None:
    buffer = full(8, SMALL)
    made = reader_of(buffer)
    buffer.delete(np.arange(8))
    with pytest.raises(Broken, match="raise its capacity"):
        made.read(np.array([100]), window(made.schema, 1), (0,))


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
