"""What only a table of this process can show of the calls that all tables have; tests/table holds
what is the same for all.
"""

from __future__ import annotations

import pytest

from async_loader import Field, Prioritized, ReplayBuffer, Transitions
from async_loader.errors import Closed

LINKED = {"x": Field((), "int64", next="y"), "reward": "float32", "terminated": "bool"}


def test_a_step_that_waits_for_its_successor_is_not_had_by_id() -> None:
    buffer = ReplayBuffer(20, LINKED, seed=0)
    writer = buffer.writer()
    for x in range(3):
        writer.append(x=x, reward=1.0)
    assert buffer.get(range(5))["x"].tolist() == [0, 1]
    assert buffer.get(range(5), view=Transitions(2, 0.5))["reward"].tolist() == [1.5]
    assert "weight" not in ReplayBuffer(9, {"x": "int64"}, sampler=Prioritized()).get([])


def test_what_is_closed_says_so() -> None:
    buffer = ReplayBuffer(10, {"x": "int64"})
    writer, vector, source = (
        buffer.writer(),
        buffer.vector_writer(2, autoreset="next_step"),
        buffer.source(),
    )
    for one in (writer, vector, source, buffer):
        assert not one.closed
        one.close()
        assert one.closed
        assert "closed" in repr(one)
    for call in (
        lambda: buffer.get([0]),
        lambda: buffer.clear(),
        lambda: buffer.sample(1, timeout_s=0),
    ):
        with pytest.raises(Closed):
            call()
