"""Readers: from any process, without a lock, never a torn row nor one under another's id."""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from async_loader.errors import SchemaError, Unsupported
from async_loader.layout import BatchLayout
from async_loader.replay import ReplayBuffer, reader, storage
from async_loader.replay.reader import ReplayReader
from async_loader.replay.sampler import Uniform
from async_loader.source import Window

CHECKED = {"check": ((400,), np.int64), "number": np.int64, "byte": np.uint8}
SMALL = {"check": ((16,), np.int64), "number": np.int64, "byte": np.uint8}


def checked(first: int, count: int, width: int) -> dict[str, Any]:
    """Rows in which every word is the row's id."""
    ids = np.arange(first, first + count)
    return {"check": np.repeat(ids[:, None], width, 1), "number": ids, "byte": (ids % 256).astype(np.uint8)}


def window(schema: Any, rows: int, kind: str = "contiguous") -> Window:
    layout = getattr(BatchLayout, kind)(schema, rows)
    return layout.window(np.zeros(layout.nbytes, np.uint8), 0, rows)  # type: ignore[no-any-return]


def bad_rows(into: Window) -> int:
    check, number, byte, index = into.fields
    good = (check == index[:, None]).all(axis=1) & (number == index) & (byte == index % 256)
    return int((~good).sum())


def full(capacity: int, schema: Any, spare: int | None = None, monkeypatch: pytest.MonkeyPatch | None = None) -> ReplayBuffer:
    if monkeypatch is not None:
        monkeypatch.setattr(storage, "_spare", lambda capacity, nbytes: spare)
    buffer = ReplayBuffer(capacity, schema, seed=0)
    buffer.extend(checked(0, capacity, schema["check"][0][0]))
    return buffer


@pytest.mark.parametrize("kind", ["contiguous", "packed"])
@pytest.mark.parametrize("schema", [SMALL, CHECKED])
@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_a_reader_fills_contiguous_and_packed_windows(kind: str, schema: Any, rows: int) -> None:
    buffer = full(3000, schema)
    buffer.extend(checked(3000, 5000, schema["check"][0][0]))
    made = buffer.reader()
    assert made is not None
    assert made.schema.fields[-1].name == "index"
    into = window(made.schema, rows, kind)
    ids = Uniform(1).draw(5000, 8000, rows)
    made.read(ids, into, (1, 2))
    assert bad_rows(into) == 0
    assert (into.fields[-1] == ids).all()


def test_a_reader_fills_its_part_of_a_batch_only() -> None:
    buffer = full(100, SMALL)
    made = buffer.reader()
    assert made is not None
    layout = BatchLayout.contiguous(made.schema, 10)
    root = np.zeros(layout.nbytes, np.uint8)
    made.read(np.arange(90, 94), layout.window(root, 3, 7), (0,))
    assert layout.views(root)[-1].tolist() == [0, 0, 0, 90, 91, 92, 93, 0, 0, 0]


@pytest.mark.parametrize("one_by_one", [True, False])
def test_planned_rows_that_are_gone_are_replaced_reproducibly_and_named(one_by_one: bool) -> None:
    buffer = full(50, SMALL)
    made = buffer.reader()
    assert made is not None
    ids = np.arange(50)
    if one_by_one:
        for n in range(50, 5050):
            buffer.add(check=np.full(16, n), number=n, byte=n % 256)
    else:
        buffer.extend(checked(50, 5000, 16))
    delivered = []
    for seed in ((1, 2), (1, 2), (1, 3)):
        into = window(made.schema, 50)
        made.read(ids, into, seed)
        assert bad_rows(into) == 0
        assert into.fields[-1].min() >= 5000
        delivered.append(into.fields[-1].tolist())
    assert delivered[0] == delivered[1] != delivered[2]
    assert ids.tolist() == list(range(50))


@pytest.mark.parametrize("kind", ["contiguous", "packed"])
@pytest.mark.parametrize("revalidate", [True, False])
def test_rows_overwritten_during_the_gather_are_read_again_as_others(
    kind: str, revalidate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = full(64, SMALL)
    made = buffer.reader()
    assert made is not None
    gather = made._gather
    added = [64]

    def overtaken(ids: Any, into: Window) -> None:
        gather(ids, into)
        if added[0] < 64 + 3 * 5000:
            buffer.extend(checked(added[0], 5000, 16))
            added[0] += 5000
            gather(ids[::2], Window([f[::2] for f in into.fields]))  # as if they had been read late

    monkeypatch.setattr(made, "_gather", overtaken)
    if not revalidate:
        monkeypatch.setattr(made, "_revalidate", lambda *args: None)
    into = window(made.schema, 32, kind)
    made.read(np.arange(20, 52), into, (5,))
    assert (bad_rows(into) == 0) is revalidate


def test_a_row_that_goes_while_others_are_read_again_is_caught_too(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = full(8, SMALL, spare=4, monkeypatch=monkeypatch)
    buffer.extend(checked(8, 92, 16))  # rows of 88 to 99 are intact, 92 to 99 are live
    made = buffer.reader()
    assert made is not None
    gather = made._gather
    added = iter([1, 3])  # 88 goes while the rows are read, 90 while 88's successor is

    def overtaken(ids: Any, into: Window) -> None:
        count = next(added, 0)
        buffer.extend(checked(buffer._rows().published(), count, 16))
        gather(ids, into)

    monkeypatch.setattr(made, "_gather", overtaken)
    into = window(made.schema, 3)
    made.read(np.array([88, 90, 92]), into, (0,))
    assert bad_rows(into) == 0
    assert into.fields[-1][0] > 92
    assert into.fields[-1][1] > 90


def test_rows_that_an_interrupted_writer_scribbled_on_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = full(8, SMALL, spare=8, monkeypatch=monkeypatch)
    buffer.extend(checked(8, 92, 16))  # rows of 84 to 99 are intact
    made, rows = buffer.reader(), buffer._rows()
    assert made is not None

    class Interrupting:
        def __setitem__(self, row: object, value: object) -> None:
            raise KeyboardInterrupt

    whole, rows.cells[1] = rows.cells[1], Interrupting()  # type: ignore[call-overload]
    with pytest.raises(KeyboardInterrupt):
        buffer.extend(checked(1000, 50, 16))
    rows.cells[1] = whole
    buffer.add(check=np.full(16, 100), number=100, byte=100)
    into = window(made.schema, 5)
    made.read(np.arange(84, 89), into, (0,))
    assert bad_rows(into) == 0
    assert into.fields[-1][4] == 88


def test_a_sample_overtaken_by_the_writer_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = full(64, SMALL)
    gather = ReplayReader._gather
    first = [True]

    def overtaken(self: ReplayReader, ids: Any, into: Window) -> None:
        if first.pop() if first else False:
            buffer.extend(checked(64, 5000, 16))
        gather(self, ids, into)

    monkeypatch.setattr(ReplayReader, "_gather", overtaken)
    batch = buffer.sample(200)
    assert bad_rows(Window(list(batch.values()))) == 0
    assert batch["index"].min() >= 5000


def test_fetch_gives_samples() -> None:
    buffer = ReplayBuffer(8)
    buffer.extend(obs={"a": np.arange(8), "b": np.arange(8) * 2.0})
    made = buffer.reader()
    assert made is not None
    samples = made.fetch(np.array([3, 5]), (0,))
    assert [(s["obs"]["a"], s["obs"]["b"], s["index"]) for s in samples] == [(3, 6.0, 3), (5, 10.0, 5)]


def test_reading_no_rows_and_ids_that_never_were() -> None:
    buffer = full(8, SMALL)
    made = buffer.reader()
    assert made is not None
    made.read(np.empty(0, np.int64), window(made.schema, 0), (0,))
    for ids in ([0, 8], [-1, 3], [1 << 62]):
        with pytest.raises(SchemaError, match="the buffer gave out 0 to 7"):
            made.read(np.array(ids), window(made.schema, len(ids)), (0,))


def _verify(made: ReplayReader, reads: int, until_bad: bool, pipe: Connection) -> None:
    """In a worker: read random live rows, and say how many of them were not what their id says."""
    if until_bad:
        ReplayReader._revalidate = lambda *args: None  # type: ignore[method-assign,assignment]
    into = window(made.schema, 48)
    sampler = Uniform(multiprocessing.current_process().pid)
    pipe.send("reading")
    bad = done = 0
    while done < reads and not (until_bad and bad):
        ids = sampler.draw(*made._storage.live(), 48)
        made.read(ids, into, (done,))
        bad += bad_rows(into)
        done += 1
    pipe.send(bad)


def _bad_rows_while_writing(buffer: ReplayBuffer, width: int, reads: int, until_bad: bool) -> int:
    context = multiprocessing.get_context("fork")
    readers, pipes = [], []
    for _ in range(2):
        here, there = context.Pipe()
        made = buffer.reader()
        readers.append(context.Process(target=_verify, args=(made, reads, until_bad, there), daemon=True))
        pipes.append(here)
        readers[-1].start()
        there.close()
    for pipe in pipes:
        assert pipe.recv() == "reading"
    burst, added = 16, buffer.capacity
    batches = checked(0, 256 * burst, width)
    while not all(pipe.poll(0) for pipe in pipes):
        at = added % (256 * burst)
        if at + burst > 256 * burst:
            at = 0
        rows = {key: column[at : at + burst] for key, column in batches.items()}
        rows["number"] = rows["number"] + (added - at)
        rows["check"] = rows["check"] + (added - at)
        rows["byte"] = (rows["number"] % 256).astype(np.uint8)
        buffer.extend(rows)
        added += burst
    bad = sum(pipe.recv() for pipe in pipes)
    for process, pipe in zip(readers, pipes, strict=True):
        process.join(10)
        assert process.exitcode == 0
        process.close()
        pipe.close()
    assert added > 2 * buffer.capacity
    return bad


@pytest.mark.parametrize("schema", [SMALL, CHECKED])
def test_no_reader_process_sees_a_torn_row_while_a_writer_wraps_the_ring(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = full(24, schema, spare=4, monkeypatch=monkeypatch)
    assert _bad_rows_while_writing(buffer, schema["check"][0][0], reads=4000, until_bad=False) == 0


@pytest.mark.parametrize("schema", [SMALL, CHECKED])
def test_without_revalidation_that_test_fails(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = full(24, schema, spare=4, monkeypatch=monkeypatch)
    assert _bad_rows_while_writing(buffer, schema["check"][0][0], reads=200_000, until_bad=True) > 0


def _read_all(made: ReplayReader, pipe: Connection) -> None:
    for _ in range(2):
        first, end = made._storage.live()
        into = window(made.schema, end - first)
        made.read(np.arange(first, end), into, (0,))
        pipe.send((first, end, bad_rows(into)))
        pipe.recv()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_reader_travels_and_sees_what_is_added_later(method: str) -> None:
    context = multiprocessing.get_context(method)
    buffer = full(32, SMALL)
    here, there = context.Pipe()
    process = context.Process(target=_read_all, args=(buffer.reader(), there), daemon=True)
    process.start()
    there.close()
    assert here.recv() == (0, 32, 0)
    buffer.extend(checked(32, 100, 16))
    here.send("again")
    assert here.recv() == (100, 132, 0)
    here.send("end")
    process.join(10)
    assert process.exitcode == 0
    process.close()
    here.close()


def test_where_stores_are_not_in_order_the_owner_locks_and_other_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "IN_ORDER", False)
    buffer = full(16, SMALL)
    made = buffer.reader()
    assert made is not None
    assert bad_rows(Window(list(buffer.sample(20).values()))) == 0
    with buffer._lock:
        waiting = threading.Thread(target=buffer.sample, args=(4,))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()
    elsewhere = ReplayReader(storage.Storage(buffer._rows()._segment, buffer._rows().layout))
    with pytest.raises(Unsupported, match="num_workers=0 or 1"):
        elsewhere.read(np.arange(3), window(made.schema, 3), (0,))
