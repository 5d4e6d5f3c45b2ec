"""What holds for every table: of this process, embedded, served. A step comes in through a writer,
and is there after `flush`.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from table_rig import Making

from async_loader import AsyncDataLoader, Fifo, MinSize, Prioritized, Transitions
from async_loader.errors import (
    ConfigError,
    NotEnoughData,
    SchemaError,
    Timeout,
)
from async_loader.feeder.wire import MOST_AHEAD
from async_loader.source import Applied
from async_loader.table import Table

pytestmark = pytest.mark.usefixtures("near_feeders")

LINKED = {"obs": "float32", "reward": "float32", "terminated": "bool"}


def filled(make: Making, rows: int, first: int = 0, **settings: Any) -> Table:
    table = make.table(**settings)
    fill(make, table, rows, first)
    return table


def fill(make: Making, table: Table, rows: int, first: int = 0) -> None:
    writer = make.writer(table, "filling")
    x = np.arange(first, first + rows)
    writer.extend(x=x, reward=x.astype(np.float32))
    writer.flush()


def x_of(table: Table, ids: Any) -> list[int]:
    return table.get(ids)["x"].tolist()


# -- what it is ------------------------------------------------------------------------------------


# -- sampling --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_too_few_items_are_said_in_both_numbers(make: Making) -> None:
    table = make.table()
    with pytest.raises(NotEnoughData, match=r"cannot draw 4 items, the table holds 0") as caught:
        table.sample(4)
    assert (caught.value.needed, caught.value.there) == (4, 0)
    queue = filled(make, 3, sampler=Fifo())
    with pytest.raises(NotEnoughData, match=r"cannot draw 4 items, the table holds 3") as caught:
        queue.sample(4)
    assert (caught.value.needed, caught.value.there) == (4, 3)


def test_too_few_items_are_waited_for_where_that_was_said(make: Making) -> None:
    table = make.table(limiter=MinSize(3))
    with pytest.raises(Timeout):
        table.sample(2, timeout_s=0)
    drawn: list[Any] = []
    thread = threading.Thread(target=lambda: drawn.append(table.sample(2, timeout_s=60)))
    thread.start()
    fill(make, table, 3)
    thread.join(60)
    assert len(drawn[0]["x"]) == 2


def test_a_batch_comes_in_the_format_that_was_asked_for(make: Making) -> None:
    table = filled(make, 9, sampler=Fifo())
    for batch in (table.sample(4, batch_format="torch"), table.sample(4, device="cpu")):
        assert all(isinstance(value, torch.Tensor) for value in batch.values())
        assert batch["x"].tolist() == [0, 1, 2, 3]
    for wrong in ({"batch_format": "jax"}, {"device": True}, {"device": 0}):
        with pytest.raises(ConfigError):
            table.sample(4, **wrong)
    assert table.stats().sampled == 8


def test_the_tables_view_is_that_of_every_batch(make: Making) -> None:
    view = Transitions(2, 0.5)
    table = make.table(100, LINKED, view=view, sampler=Fifo())
    writer = make.writer(table)
    for n in range(4):
        writer.append(obs=float(n), reward=1.0, terminated=n == 3)
    writer.flush()
    for batch in (table.sample(4), table.get([0, 1, 2, 3])):
        assert batch["reward"].tolist() == [1.5, 1.5, 1.5, 1.0]
        assert batch["discount"].tolist() == [0.25, 0.25, 0.0, 0.0]
    assert table.sample(1, view=Transitions(1, 0.5))["reward"].tolist() == [1.0]
    with AsyncDataLoader(table, 4, timeout_s=60) as loader:
        assert next(loader)["reward"].tolist() == [1.5, 1.5, 1.5, 1.0]


# -- sources and loaders ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [None, Prioritized])
def test_equal_seeds_draw_the_same_from_equal_tables(make: Making, sampler: Any) -> None:
    def drawn(seed: int | None) -> list[list[int]]:
        table = filled(make, 50, sampler=None if sampler is None else sampler())
        with AsyncDataLoader(table, 8, seed=seed, timeout_s=60) as loader:
            return [next(loader)["index"].tolist() for _ in range(5)]

    first = drawn(3)
    assert first == drawn(3) != drawn(4)


# -- by id -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_are_had_by_id_and_what_is_gone_is_left_out(make: Making) -> None:
    table = filled(make, 30, capacity=20)
    batch = table.get([25, 12, 25, 3, 29, 1000, -1])
    assert batch["index"].tolist() == [25, 12, 25, 29]
    assert batch["x"].tolist() == [25, 12, 25, 29]
    assert table.stats().sampled == 0
    assert len(table.get([])["index"]) == 0
    assert len(make.table().get([3])["index"]) == 0


def test_priorities_may_have_any_shape_with_as_many_elements(make: Making) -> None:
    table = filled(make, 5, sampler=Prioritized(1.0, eps=0.0))
    for priority in (
        np.array([[0.0], [0.0], [1.0]]),
        torch.tensor([[[0.0, 0.0, 1.0]]]),
        [0.0, 0.0, 1.0],
    ):
        assert table.update_priorities([0, 1, 2], priority) == Applied(3, 0)
    assert table.update_priorities(torch.tensor([3, 4, 77]), np.zeros((3, 1))) == Applied(2, 1)
    for wrong in (["a"], [None], [10**400], [1j]):
        with pytest.raises(ConfigError, match=r"priority is .*: it must be real numbers"):
            table.update_priorities([0], wrong)
    assert set(table.sample(50)["x"].tolist()) == {2}


def test_fields_are_changed_by_id(make: Making) -> None:
    table = filled(make, 30, capacity=20)
    assert table.update([29, 28, 2], reward=np.array([[7.0], [8.0], [9.0]], np.float32)) == Applied(
        2, 1
    )
    assert table.get([28, 29])["reward"].tolist() == [8.0, 7.0]
    for wrong in ({"nothing": [1.0]}, {"reward": np.zeros(2)}, {"reward": np.array(["a"])}):
        with pytest.raises(SchemaError):
            table.update([29], **wrong)


def test_items_are_taken_out_by_id(make: Making) -> None:
    table = filled(make, 5)
    assert table.delete([1, 3, 77]) == Applied(2, 1)
    assert len(table) == 3
    assert x_of(table, range(5)) == [0, 2, 4]
    assert set(table.sample(100)["x"].tolist()) == {0, 2, 4}


@pytest.mark.slow
def test_a_cleared_table_is_empty_and_goes_on(make: Making) -> None:
    table = filled(make, 5)
    table.clear()
    assert len(table) == 0
    assert len(table.get(range(5))["index"]) == 0
    with pytest.raises(NotEnoughData):
        table.sample(1)
    fill(make, table, 2, first=50)
    assert len(table) == 2
    batch = table.get([5, 6])
    assert batch["x"].tolist() == [50, 51]  # ids go on
    make.table(10, None).clear()


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_table_is_loaded_in_place(make: Making, folder: Any) -> None:
    table = filled(make, 30)
    report = table.save(folder)
    assert report.number == 1
    assert report.duration_s >= report.pause_s
    fill(make, table, 90, first=1000)
    table.delete(range(100, 110))
    table.load(folder)
    assert len(table) == 30
    assert table.get(range(200))["x"].tolist() == list(range(30))
    assert table.stats().inserted == 30
    fill(make, table, 1, first=77)
    assert x_of(table, [30]) == [77]


def test_an_older_save_is_loaded_by_its_number(make: Making, folder: Any) -> None:
    table = filled(make, 3)
    table.save(folder)
    fill(make, table, 3, first=3)
    assert table.save(folder).number == 2
    table.load(folder, number=1)
    assert len(table) == 3
    table.load(folder)
    assert len(table) == 6
    with pytest.raises(ConfigError, match="there is no save 9"):
        table.load(folder, number=9)


def test_a_loader_goes_on_with_what_was_loaded(make: Making, folder: Any) -> None:
    table = filled(make, 30)
    table.save(folder)
    table.clear()
    fill(make, table, 30, first=1000)
    with AsyncDataLoader(table, 8, prefetch=1, timeout_s=60) as loader:
        assert next(loader)["x"].min() >= 1000
        table.load(folder)
        for _ in range(MOST_AHEAD + 8):  # those that were under way
            last = next(loader)
        assert last["x"].max() < 30


def test_a_writer_goes_on_after_a_load_with_a_new_episode(make: Making, folder: Any) -> None:
    table = make.table(100, LINKED, view=Transitions(2, 0.5))
    writer = make.writer(table, "mine")
    for reward in (1.0, 2.0):
        writer.append(obs=0.0, reward=reward, terminated=False)
    writer.flush()
    table.save(folder)
    table.load(folder)
    for reward in (4.0, 8.0, 16.0):
        writer.append(obs=1.0, reward=reward, terminated=reward == 16.0)
    writer.flush()
    assert sorted(table.get(range(9))["reward"].tolist()) == [
        1.0 + 2.0 / 2,
        2.0,
        4.0 + 8.0 / 2,
        8.0 + 16.0 / 2,
        16.0,
    ]


def test_every_batch_of_a_table_says_how_next_observations_come(make: Making) -> None:
    table = make.table(100, {"obs": "float32", "nested": {"a": "float32"}})
    with table.writer() as writer:
        ids = writer.extend({"obs": np.zeros(8), "nested": {"a": np.zeros(8)}})
        writer.flush()
    batches: list[Any] = [table.sample(4), table.sample(4, batch_format="torch")]
    batches += [] if ids is None else [table.get(ids)]
    for workers in (0, 2):
        with AsyncDataLoader(table, 4, num_workers=workers, worker_type="thread") as loader:
            batches.append(next(loader))
    for batch in batches:
        with pytest.raises(KeyError, match="next='next_obs'"):
            batch["next_obs"]
        with pytest.raises(KeyError, match=r"it has a$"):
            batch["nested"]["zzz"]
