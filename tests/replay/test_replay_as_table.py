"""What only a table of this process can show of the calls that all tables have; tests/table holds
what is the same for all.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from async_loader import Field, Prioritized, ReplayBuffer, Transitions
from async_loader.errors import Closed, ConfigError

LINKED = {"x": Field((), "int64", next="y"), "reward": "float32", "terminated": "bool"}


def test_a_step_that_waits_for_its_successor_is_not_had_by_id() -> None:
    buffer = ReplayBuffer(20, LINKED, seed=0)
    writer = buffer.writer()
    for x in range(3):
        writer.append(x=x, reward=1.0)
    assert buffer.get(range(5))["x"].tolist() == [0, 1]
    assert buffer.get(range(5), view=Transitions(2, 0.5))["reward"].tolist() == [1.5]
    assert "weight" not in ReplayBuffer(9, {"x": "int64"}, sampler=Prioritized()).get([])


def test_a_cleared_queue_takes_as_many_as_ever() -> None:
    queue = ReplayBuffer.queue(6, {"x": "int64"})
    for first in range(0, 30, 6):
        queue.extend(x=np.arange(first, first + 6), timeout_s=0)
        assert queue.sample(2)["x"].tolist() == [first, first + 1]
        queue.clear()
        assert len(queue) == 0


def test_rows_that_are_used_up_come_in_the_format_that_was_asked_for() -> None:
    queue = ReplayBuffer.queue(6, {"x": "int64"})
    queue.extend(x=np.arange(6))
    batch = queue.sample(3, batch_format="torch")
    assert isinstance(batch["x"], torch.Tensor)
    assert batch["x"].tolist() == [0, 1, 2]
    with pytest.raises(ConfigError):
        queue.sample(3, batch_format="numpy", device=3)  # type: ignore[arg-type]
    assert queue.sample(3)["x"].tolist() == [3, 4, 5]


def test_a_writer_remembers_open_streams_only() -> None:
    buffer = ReplayBuffer(5000, {"x": "int64", "terminated": "bool"}, view=None)
    with buffer.writer() as writer:
        writer.append(x=0, stream="open")
        for episode in range(1000):
            writer.append(x=episode, stream=("episode", episode), terminated=True)
        assert len(writer._others) <= 2 * 256
        assert "open" in writer._others


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


def test_a_size_in_bytes_is_said_as_such() -> None:
    assert "capacity=1.0 MiB" in repr(ReplayBuffer("1MiB"))
    assert "capacity=10 " in repr(ReplayBuffer(10))


def test_a_fork_has_a_copy_and_says_so() -> None:
    buffer = ReplayBuffer(10, {"x": "int64"})
    buffer.add(x=1)
    pid = os.fork()
    if not pid:
        good = "a fork's copy" in repr(buffer) and buffer.get([0])["x"].tolist() == [1]
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("wrong", [{"view": 3}, {"view": "n"}])
def test_an_invalid_view_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="view="):
        ReplayBuffer(10, {"x": "int64"}, **wrong)


def test_a_view_that_the_schema_does_not_allow_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="the view sums up 'reward'"):
        ReplayBuffer(10, {"x": "int64"}, view=Transitions())
    buffer = ReplayBuffer(10, view=Transitions())
    with pytest.raises(ConfigError, match="the view sums up 'reward'"):
        buffer.add(x=1)
    assert buffer.schema is None
    assert buffer.add(x=1, reward=0.5) == 0
