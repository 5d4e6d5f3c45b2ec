"""Mixture: several tables, columns and feeder tables as one source."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    END,
    AsyncDataLoader,
    Fifo,
    MinSize,
    Mixture,
    Prioritized,
    ReplayBuffer,
    Sequences,
    connect,
)
from async_loader.errors import (
    CannotSend,
    Closed,
    ConfigError,
    Timeout,
    Unsupported,
)
from async_loader.lifecycle import Deadline, Patience
from async_loader.source import Applied, Ready, Rows
from async_loader.sources.mixture_rows import SOURCE_BIT

SCHEMA = {"x": "int64", "o": ((3,), "float32")}
NOW = Patience(deadline=Deadline(0.0))


def filled(first, count=100, *, capacity=200, schema=SCHEMA, seed=0, **kwargs):
    """A table of steps whose x is ``first`` and more, so that x tells table and id."""
    table = ReplayBuffer(capacity, schema, seed=seed, **kwargs)
    steps = {"x": np.arange(count) + first, "o": np.full((count, 3), first, np.float32)}
    table.extend({name: value for name, value in steps.items() if name in schema})
    return table


def columns(first, count=50):
    return {"x": np.arange(count) + first, "o": np.full((count, 3), first, np.float32)}


def steps(mixture, batch):
    """(source, id) of each row, by its index; checked against x, which starts at 1000 * source."""
    numbers, ids = mixture.numbers(batch["index"]), mixture.ids(batch["index"])
    assert np.asarray(batch["x"]).tolist() == (1000 * numbers + ids).tolist()
    assert np.asarray(batch["o"])[:, 0].tolist() == (1000 * numbers).tolist()
    return list(zip(numbers.tolist(), ids.tolist(), strict=True))


def counts(mixture, batch):
    return np.bincount(mixture.numbers(batch["index"]), minlength=len(mixture.shares)).tolist()


# -- shares ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
    st.integers(1, 300),
    st.integers(0, 2**32),
)
def test_each_batch_has_the_shares_rounded_down_or_up(shares, batch_size, seed):
    mixture = Mixture([(columns(0), share) for share in shares], seed=seed)
    assert sum(mixture.shares) == pytest.approx(1)
    for _ in range(3):
        plan = mixture.plan(batch_size, NOW)
        assert len(plan.batch["index"]) == batch_size
        found = np.bincount(mixture.numbers(plan.batch["index"]), minlength=len(shares))
        wanted = batch_size * np.array(shares) / sum(shares)
        assert (found >= np.floor(wanted - 1e-6)).all()
        assert (found <= np.ceil(wanted + 1e-6)).all()


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("worker_type", ["process", "thread"])
def test_a_loader_mixes_tables_sources_and_columns(workers, worker_type):
    first, second = filled(0), filled(1000, sampler=Prioritized())
    parts = [(first, 0.5), (second.source(), 0.3), (columns(2000), 0.2)]
    with (
        Mixture(parts, seed=1) as mixture,
        AsyncDataLoader(
            mixture, 20, num_workers=workers, worker_type=worker_type, chunk_size=5
        ) as loader,
    ):
        seen = Counter()
        for batch in itertools.islice(loader, 60):
            seen.update(steps(mixture, batch))
            assert counts(mixture, batch) == [10, 6, 4]
            weight = batch["weight"].numpy()
            assert (weight[:10] == 1).all()
            assert (weight[16:] == 1).all()
            assert weight[10:16].max() == 1
        assert len(seen) > 150


def test_equal_seeds_give_equal_batches_and_others_do_not():
    def batches(seed):
        with Mixture({filled(0): 1, filled(1000): 2}, seed=seed) as mixture:
            return [mixture.draw_now(10).batch["index"].tolist() for _ in range(5)]

    assert batches(4) == batches(4)
    assert batches(4) != batches(5)


@pytest.mark.parametrize("workers", [0, 2])
def test_sequences_mix_and_every_id_names_its_table(workers):
    schema = {"x": "int64", "terminated": "bool"}
    tables = [ReplayBuffer(100, schema, view=Sequences(4, boundary="pad")) for _ in range(2)]
    for number, table in enumerate(tables):
        for t in range(30):
            table.add(x=1000 * number + t, terminated=t % 6 == 5)
    with (
        Mixture(dict.fromkeys(tables, 1), seed=0) as mixture,
        AsyncDataLoader(mixture, 32, num_workers=workers, batch_format="numpy") as loader,
    ):
        batch = next(loader)
        mask, index = batch["mask"], batch["step_index"]
        assert (index[~mask] == -1).all()
        assert (index[:, 0] == batch["index"]).all()
        x = 1000 * mixture.numbers(index) + mixture.ids(index)
        assert (batch["x"] == x)[mask].all()
        assert loader.update(index[mask], x=-batch["x"][mask]) == Applied(int(mask.sum()), 0)
        for number, table in enumerate(tables):
            stored = table.get(np.arange(30))["x"][:, 0]
            touched = np.unique(mixture.ids(index[mask & (mixture.numbers(index) == number)]))
            expected = 1000 * number + np.arange(30)
            expected[touched] *= -1
            assert stored.tolist() == expected.tolist()


def test_fields_named_as_those_of_sequences_are_the_users_own():
    own = ("mask", "is_first", "step_index")
    tables = [ReplayBuffer(9, dict.fromkeys(own, "int64")) for _ in range(2)]
    for table in tables:
        table.extend({name: np.arange(9) for name in own})
    with AsyncDataLoader(Mixture(dict.fromkeys(tables, 1)), 8, batch_format="numpy") as loader:
        assert all((next(loader)[name] < 9).all() for name in own)


# -- by index --------------------------------------------------------------------------------------


def test_priorities_reach_the_table_of_each_row_and_those_without_are_left_out():
    tables = [filled(0), *(filled(1000 * n, sampler=Prioritized(eps=0)) for n in (1, 2))]
    with Mixture(dict.fromkeys(tables, 1), seed=0) as mixture:
        batch = mixture.draw_now(30).batch
        for table in tables[1:]:
            table.update_priorities(np.arange(100), np.zeros(100))
        assert mixture.update_priorities(batch["index"], np.ones(30)) == Applied(20, 0)
        drawn = [steps(mixture, mixture.draw_now(30).batch) for _ in range(20)]
        here = set(steps(mixture, batch))
        assert {one for rows in drawn for one in rows if one[0]} <= here
        alone = batch["index"][:10]
        with pytest.raises(Unsupported, match="has no priorities"):
            mixture.update_priorities(alone, np.ones(10))


def test_what_cannot_be_split_is_refused_before_anything_changes():
    table = filled(0)
    mixture = Mixture([(table, 1), (columns(1000), 1)])
    index = mixture.draw_now(4).batch["index"]
    with pytest.raises(Unsupported, match="source 1 of the mixture"):
        mixture.update(index, x=np.full(4, -1))
    with pytest.raises(Unsupported, match="not given as a table"):
        mixture.delete(index)
    assert table.get(np.arange(100))["x"].min() == 0
    assert len(table) == 100
    with pytest.raises(ConfigError, match="is of source 2, of which there are 2 at most"):
        mixture.update_priorities(np.array([2 << SOURCE_BIT]), np.ones(1))
    with pytest.raises(ConfigError, match="4 rows, and x has 3: one for each"):
        mixture.update(index, x=np.ones(3))
    mixture.close()


# -- waiting and the end ---------------------------------------------------------------------------


def test_a_table_that_waits_is_named_and_what_others_planned_is_kept():
    queue = ReplayBuffer.queue(50, SCHEMA)
    late = ReplayBuffer(100, SCHEMA, limiter=MinSize(5))
    queue.extend(columns(0, 12))
    with Mixture([(queue, 1), (late, 1)], seed=0) as mixture:
        assert mixture.waiting_for() is None
        for _ in range(3):
            with pytest.raises(Timeout):
                mixture.plan(8, NOW)
            assert "source 1 of the mixture (ReplayBuffer)" in mixture.waiting_for()
        late.extend(columns(1000, 20))
        batches = [mixture.plan(8, NOW).batch for _ in range(3)]
        assert mixture.waiting_for() is None
        # each row of the queue once, although three plans were given up
        assert [x for batch in batches for x in batch["x"].tolist()[:4]] == list(range(12))
        with pytest.raises(Timeout):
            mixture.plan(8, NOW)
        assert "source 0 of the mixture (ReplayBuffer)" in mixture.waiting_for()


class Ending:
    """A source of columns that ends after some batches."""

    def __init__(self, batches):
        self._left, self._inner = batches, Mixture([(columns(0), 1)])

    def plan(self, batch_size, patience):
        return self.draw_now(batch_size)

    def draw_now(self, batch_size):
        self._left -= 1
        return END if self._left < 0 else self._inner.draw_now(batch_size)

    def reader(self):
        return self._inner.reader()

    def update_priorities(self, index, priority):
        raise Unsupported("no priorities")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_mixture_ends_when_one_source_ends(workers):
    mixture = Mixture([(columns(0), 1), (Ending(3), 1)])
    with AsyncDataLoader(mixture, 4, num_workers=workers) as loader:
        assert len(list(loader)) == 3
    assert mixture.plan(4, NOW) is END
    assert mixture.draw_now(4) is END


class Reusing:
    """Delivers batches in memory of its own, which it uses again, with leases."""

    def __init__(self, first):
        self.memory = {"x": np.zeros(5, np.int64), "index": np.zeros(5, np.int64)}
        self.next, self.events, self.lends = first, [], True

    def plan(self, batch_size, patience):
        return self.draw_now(batch_size)

    def draw_now(self, batch_size):
        assert batch_size == 5
        self.memory["x"][:] = self.memory["index"][:] = np.arange(self.next, self.next + 5)
        self.next += 5
        return Ready(self.memory, lease=self.next - 1)

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        return Applied(len(index), 0)

    def hand_out(self, lease):
        self.events.append(("out", lease))
        return self.lends

    def settle(self, lease):
        self.events.append(("used", lease))

    def release(self, timeout_s):
        self.events.append(("released", None))


def test_rows_of_batches_made_elsewhere_come_once_in_order_and_keep_their_lease():
    source = Reusing(0)
    mixture = Mixture([(source, 0.45), ({"x": np.arange(9)}, 0.55)], seed=0)
    found, leases = [], []
    for _ in range(40):
        ready = mixture.plan(10, NOW)
        assert len(ready.batch["x"]) == 10
        here = ready.batch["x"][mixture.numbers(ready.batch["index"]) == 0]
        assert len(here) in (4, 5)
        found += here.tolist()
        leases += [] if ready.lease is None else [(ready.lease, max(found))]
    assert found == list(range(len(found)))
    # the lease of five rows comes with the batch that has the last of them
    for lease, newest in leases:
        assert all(last <= newest for _, last, ends in lease if ends)
    assert [last for lease, _ in leases for _, last, ends in lease if ends] == list(
        range(4, len(found), 5)
    )
    assert mixture.hand_out(leases[0][0])
    mixture.settle(leases[0][0])
    source.lends = False
    assert not mixture.hand_out(leases[1][0])
    mixture.release(0.0)
    assert source.events == [("out", 4), ("used", 4), ("out", 9), ("released", None)]


# -- feeder tables ---------------------------------------------------------------------------------


@pytest.fixture
def remote():
    """A client of a feeder with two tables, ``one`` with steps from 1000 on."""
    with contextlib.ExitStack() as stack:
        settings = {"capacity": 500, "schema": SCHEMA, "sampler": Prioritized()}
        tables = {"one": settings, "queue": {"queue": 200, "schema": SCHEMA}}
        client = stack.enter_context(connect("embedded", tables=tables))
        with client.table("one").writer() as writer:
            writer.extend(columns(1000, 100))
        yield client


def test_a_queue_of_a_feeder_gives_each_row_once_and_takes_back_what_was_not_used(remote):
    table = remote.table("queue")
    with table.writer() as writer:
        writer.extend(columns(1000, 60))
    here = filled(0)
    found = []
    with Mixture([(here, 1), (table, 1)]) as mixture:
        with AsyncDataLoader(mixture, 8, batch_format="numpy") as loader:
            for batch in itertools.islice(loader, 5):
                found += mixture.ids(batch["index"])[mixture.numbers(batch["index"]) == 1].tolist()
        with AsyncDataLoader(mixture, 8, batch_format="numpy") as loader:
            for batch in itertools.islice(loader, 10):
                found += mixture.ids(batch["index"])[mixture.numbers(batch["index"]) == 1].tolist()
    assert found == list(range(60))


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": np.arange(9)}, r"'o' is float32.* and not in source 1"),
        ({**columns(0), "z": np.zeros(50)}, r"'z' is not in source 0 .*float64\[\] in source 1"),
        (
            {"x": np.arange(9), "o": np.zeros((9, 4), np.float32)},
            r"'o' is float32\[3\] in source 0 .*float32\[4\] in source 1",
        ),
        ({"x": np.arange(9.0), "o": np.zeros((9, 3), np.float32)}, r"'x' is int64\[\].*float64"),
    ],
)
def test_sources_of_unequal_rows_are_refused_with_the_field(other, message):
    with pytest.raises(ConfigError, match=message):
        Mixture([(filled(0), 1), (other, 1)])


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([], "0 sources"),
        ([(columns(0), 0)], "share of source 0 is 0"),
        ([(columns(0), 1), (columns(0), -1.0)], "share of source 1 is -1.0"),
        ([(columns(0), float("nan"))], "share of source 0 is nan"),
        ([(columns(0), True)], "share of source 0 is True"),
        ([columns(0)], "list of pairs"),
        (7, "shares is 7"),
        ([(print, 1)], "give a table"),
        ([(ReplayBuffer, 1)], "give a table"),
        ([(Mixture([(columns(0), 1)]), 1)], "share multiplied"),
        ([(columns(0), 1)] * 129, "129 sources"),
    ],
)
def test_wrong_shares_are_refused(shares, message):
    with pytest.raises(ConfigError, match=message):
        Mixture(shares)


def test_closing_ends_the_sources_made_here_and_no_other():
    table = filled(0)
    given, sampler = table.source(sampler=Fifo()), filled(1000)
    mixture = Mixture([(given, 1), (sampler, 1)])
    mixture.close()
    mixture.close()
    assert mixture.closed
    assert not given.closed
    assert isinstance(given.plan(3, NOW), Rows)
    with pytest.raises(Closed, match="mixture was closed"):
        mixture.plan(2, NOW)
    with pytest.raises(CannotSend, match="stays in the process"):
        pickle.dumps(mixture)
    assert repr(mixture) == "<Mixture 0.5 of ReplaySource, 0.5 of ReplayBuffer closed>"


def test_rows_of_a_queue_that_a_mixture_delivered_come_again_with_the_mark_alone():
    with connect("embedded", tables={"q": {"queue": 64, "schema": {"x": "int64"}}}) as client:
        with client.table("q").writer() as writer:
            writer.extend(x=np.arange(40))
        other = ReplayBuffer(100, {"x": "int64"})
        other.extend(x=np.full(50, -1))
        with contextlib.closing(client.table("q").source()) as source:
            mixture = Mixture([(source, 0.5), (other, 0.5)], seed=0)
            with AsyncDataLoader(mixture, 3) as loader:
                had = {int(x) for _ in range(3) for x in next(loader)["x"] if x >= 0}
        again = {}
        while len(had | again.keys()) < 40:
            batch = client.table("q").sample(1, timeout_s=60)
            again[int(batch["x"][0])] = bool(batch["redelivered"][0])
    assert all(again[x] for x in had & again.keys())
