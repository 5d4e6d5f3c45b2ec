"""The published conformance suite: every source of the package passes it,
and broken ones do not.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import ItemsSource, WaitingSource

from async_loader import END, Mixture, ReplayBuffer, Schema
from async_loader.lifecycle import EventFd
from async_loader.source import Applied, Jobs, Ready, Rows, Samples
from async_loader.sources.columns import CallableSource, ColumnsSource
from async_loader.testing import conformance
from async_loader.testing.conformance import NotConforming, check_source, check_waiting


class Items:
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return {"x": np.full(3, i, np.float32), "name": str(i), "deep": (i, [np.int16(i)])}


def columns():
    ids = np.arange(100)
    return ColumnsSource(
        {
            "x": ids.astype(np.float32),
            "o": {"y": np.stack([ids] * 5, 1).astype(np.uint8)},
            "d": ids > 9,
        },
        0,
    )


def full_buffer():
    buffer = ReplayBuffer(64, seed=0)
    for i in range(100):
        buffer.add(
            obs=np.full((3, 2), i, np.float32),
            action=i,
            done=i % 7 == 0,
            pixels=np.full((40, 40, 3), i, np.uint8),
        )
    return buffer


SOURCES = {
    "list of dicts": lambda: CallableSource(lambda n: [{"x": 1}] * n),
    "jobs": lambda: CallableSource(lambda n: [lambda: 1] * n),
    "ready batch": lambda: CallableSource(lambda n: {"x": np.zeros(n)}),
    "end": lambda: CallableSource(lambda n: END),
    "columns": columns,
    "dataset": lambda: ItemsSource(Items()),
    "the source of a replay buffer": lambda: full_buffer().source(),
    "a source of a replay buffer": lambda: full_buffer().source(min_size=10),
    "a mixture": lambda: Mixture({full_buffer(): 0.3, full_buffer().source(): 0.7}, seed=0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_here_conforms(name):
    check_source(SOURCES[name], batch_size=8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: WaitingSource(Items()),
        lambda: ReplayBuffer(10).source(),
        lambda: ReplayBuffer(10, {"x": "f4"}).source(min_size=3),
        lambda: Mixture([({"x": np.zeros(3, "f4")}, 1), (ReplayBuffer(10, {"x": "f4"}), 1)]),
    ],
    ids=["fake", "empty buffer", "buffer with a minimum", "mixture"],
)
def test_every_waiting_source_here_conforms(make):
    check_waiting(make)


# -- broken sources are caught ---------------------------------------------------------------------


class Base:
    """A correct source; each subclass below breaks one rule."""

    schema = Schema.of({"x": ((4,), "f4"), "y": "?"})

    def plan(self, batch_size, patience):
        return Rows(np.arange(batch_size))

    def reader(self):
        return self

    def update_priorities(self, index, priority):
        return Applied(len(index), 0)

    def waiting_for(self):
        return None

    def read(self, index, into, seed):
        into.fields[0][...] = index[:, None]
        into.fields[1][...] = index % 2

    def fetch(self, index, seed):
        return [{"x": float(i)} for i in index]


def broken(**methods):
    return type("Broken", (Base,), methods)


def too_far(self, index, into, seed):
    Base.read(self, index, into, seed)
    field = into.fields[0]
    whole = field.base
    if whole.nbytes > field.nbytes:
        np.asarray(whole).view(np.uint8).reshape(-1)[-1] ^= 0xFF


def forgets_a_row(self, index, into, seed):
    Base.read(self, index[:-1], SimpleNamespace(fields=[f[:-1] for f in into.fields]), seed)


def changes_index(self, index, into, seed):
    Base.read(self, index, into, seed)
    index += 1


def by_position(self, index, into, seed):
    into.fields[0][...] = np.arange(len(index))[:, None]
    into.fields[1][...] = 0


def moody(self, index, into, seed):
    into.fields[0][...] = np.random.random(into.fields[0].shape)
    into.fields[1][...] = 0


BROKEN = {
    "lacks a method": (lambda: object(), "lacks plan, reader or update_priorities"),
    "too few rows": (
        broken(plan=lambda s, n, p: Rows(np.arange(n - 1))),
        r"plan\(8\) has 7 entries",
    ),
    "too many jobs": (
        broken(plan=lambda s, n, p: Jobs([int] * (n + 1))),
        r"plan\(8\) has 9 entries",
    ),
    "fixed size": (broken(plan=lambda s, n, p: Samples([1] * 8)), r"plan\(1\) has 8 entries"),
    "index of another dtype": (
        broken(plan=lambda s, n, p: Rows(np.arange(n, dtype=np.int32))),
        "int64 array",
    ),
    "index is a list": (broken(plan=lambda s, n, p: Rows(list(range(n)))), "int64 array"),
    "index of three dimensions": (
        broken(plan=lambda s, n, p: Rows(np.zeros((n, 1, 1), np.int64))),
        "int64 array",
    ),
    "jobs that are not": (broken(plan=lambda s, n, p: Jobs([1] * n)), "cannot be called"),
    "ready that is not": (broken(plan=lambda s, n, p: Ready([1])), "Ready.batch is list"),
    "an object that is not a plan": (
        broken(plan=lambda s, n, p: [1] * n),
        "give Rows, Jobs, Samples, Ready or END",
    ),
    "waits with data": (broken(waiting_for=lambda s: "rain"), "still says 'rain'"),
    "update_priorities loses rows": (
        broken(update_priorities=lambda s, i, p: Applied(1, 0)),
        "got 8 rows and accounts for 1",
    ),
    "update_priorities of another kind": (
        broken(update_priorities=lambda s, i, p: len(i)),
        "give Applied",
    ),
    "update_priorities raises": (
        broken(update_priorities=lambda s, i, p: 1 / 0),
        "raise Unsupported",
    ),
    "no reader": (broken(reader=lambda s: None), r"reader\(\) gives None"),
    "schema is a dict": (broken(schema={"x": "f4"}), "give a Schema, or None"),
    "writes too far": (broken(read=too_far), "writes outside of them"),
    "forgets a row": (broken(read=forgets_a_row), "unwritten"),
    "changes its index": (broken(read=changes_index), "changes the index"),
    "reads by position": (broken(read=by_position), "part by part differ"),
    "never the same": (broken(read=moody), "something else each time"),
    "returns instead of filling": (broken(read=lambda s, i, w, seed: [1]), "read returned list"),
    "fetches too few": (
        broken(schema=None, fetch=lambda s, i, seed: [1]),
        "fetch got 8 rows and returned 1",
    ),
    "fetches by position": (
        broken(schema=None, fetch=lambda s, i, seed: list(range(len(i)))),
        "part by part differ",
    ),
    "cannot travel": (broken(__reduce__=lambda s: 1 / 0), "cannot be sent to a worker"),
    "jobs cannot travel": (
        broken(plan=lambda s, n, p: Jobs([threading.Lock().acquire] * n)),
        "jobs cannot be sent",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_source_is_reported(case):
    make, text = BROKEN[case]
    with pytest.raises(NotConforming, match=text):
        check_source(make)


class Forgets(Base):
    """Reads different data after it was sent."""

    known = 1

    def __setstate__(self, state):
        self.__dict__.update(state, known=2)

    def __getstate__(self):
        return {"sent": True}

    def read(self, index, into, seed):
        Base.read(self, index, into, seed)
        into.fields[0][...] = self.known


@pytest.mark.slow
def test_a_reader_that_reads_something_else_after_it_was_sent_is_caught():
    with pytest.raises(NotConforming, match="a reader that was sent reads otherwise"):
        conformance.check_travel(Forgets)


let_go = threading.Event()


def blocks(self, n, patience):
    let_go.wait(60)
    return Rows(np.arange(n))


def swallows(self, n, patience):
    bell = EventFd()
    try:
        patience.wait(bell, "x")
    except Exception:
        raise ValueError("mine") from None


def waits(self, n, patience):
    patience.wait(EventFd(), "steps")


WAITING = {
    "does not wait": (broken(), "should have waited"),
    "waits by other means": (broken(plan=blocks), "other means than patience"),
    "does not say for what": (broken(plan=waits), "waiting_for says None"),
    "says nothing": (broken(plan=waits, waiting_for=lambda s: ""), "a text, or None"),
    "swallows the end": (
        broken(plan=swallows, waiting_for=lambda s: "steps"),
        "let Closed through",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WAITING)
def test_a_source_that_waits_badly_is_caught(case, monkeypatch):
    monkeypatch.setattr(conformance, "_BLOCKED_S", 0.1 if case == "waits by other means" else 30.0)
    make, text = WAITING[case]
    let_go.clear()
    with pytest.raises(NotConforming, match=text):
        check_waiting(make)
    let_go.set()
