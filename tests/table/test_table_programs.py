"""Random programs of calls on small tables: what a table carries is what its rows say, and a save
holds all that later calls depend on. See programs.py, which runs more of them.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer, Sequences, Uniform
from async_loader.errors import Broken, Timeout
from async_loader.feeder import connect
from async_loader.replay.base import row_format as r
from async_loader.testing.debug import debug_state
from tests.carried_state import Drift, compared
from tests.table import programs

SEED, PROGRAMS, AT_ONCE = 20, 200, 20
EACH = pytest.mark.parametrize("first", range(0, PROGRAMS, AT_ONCE))


@EACH
def test_what_a_table_carries_is_what_its_rows_say(first: int) -> None:
    for number in range(first, first + AT_ONCE):
        programs.drift(SEED, number)


@EACH
def test_a_loaded_table_goes_on_as_the_saved_one(first: int) -> None:
    with compared(False):  # the test above does
        for number in range(first, first + AT_ONCE):
            programs.saves(SEED, number, points=1, sizes=1)


@pytest.mark.parametrize(
    ("sampler", "count", "left"),
    [(Uniform(), 1, 0), (Uniform(replacement=False), 2, 1), (Uniform(replacement=False), 6, 1)],
)
def test_a_draw_that_does_not_find_its_items_ends_and_says_what_it_found(
    sampler: Uniform, count: int, left: int
) -> None:
    with compared(False), ReplayBuffer(9, {"x": "int64"}, sampler=sampler) as buffer:
        for x in range(9):
            buffer.add(x=x)
        buffer.delete(range(left, 9))
        items, g = (table := debug_state(buffer).state.table).items, table.g
        items.count = g[r.COUNT] = 9
        with pytest.raises(Broken, match=r"the counts of this table are wrong"):
            buffer.sample(count, timeout_s=0)


def test_a_feeder_answers_whatever_the_order_of_deletions_and_of_an_episodes_end() -> None:
    schema = {"x": Field((), "int64", next="next_x")}
    orders = list(itertools.permutations(["end", 0, 1]))
    views = [Sequences(6, stride=k, boundary=how) for how in ("pad", "cross") for k in (1, 2)]
    tables = {
        f"{n}": {"capacity": 100, "schema": schema, "view": view}
        for n, (view, _) in enumerate(itertools.product(views, orders))
    }
    with connect("embedded", tables=tables, timeout_s=20) as client:
        for n, (_, order) in enumerate(itertools.product(views, orders)):
            table = client.table(f"{n}")
            with table.writer() as writer:
                for x in range(3):
                    writer.append(x=x)
                writer.flush()
                for one in order:
                    if one == "end":
                        writer.end_episode()
                        writer.flush()
                    else:
                        table.delete([one])
                with pytest.raises(Timeout, match="0 of the 1"):
                    table.sample(1, timeout_s=0.01)


def test_whole_episodes_are_read_by_their_first_steps_alone() -> None:
    view = Sequences(4, whole=True)
    with ReplayBuffer(20, {"x": "int64", "terminated": "bool"}) as buffer:
        for x in range(11):
            buffer.add(x=x, terminated=x in (2, 8))  # of 3 steps, of 6, and an open one
        assert buffer.get(np.arange(11), view=view)["index"].tolist() == [0]


def test_a_count_that_is_wrong_is_found() -> None:
    with ReplayBuffer(9, {"x": "int64"}) as buffer:
        buffer.add(x=1)
        items = debug_state(buffer).state.table.items
        items.count = 2
        with pytest.raises(Drift, match=r"items: the table carries \(1, 2, 1\)"):
            len(buffer)
        items.count = 1
