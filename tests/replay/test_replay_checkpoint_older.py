"""Checkpoints that commit 7bffc39 wrote, in tests/data: they load, and the tables go on."""

from pathlib import Path

import numpy as np

from async_loader import ReplayBuffer

SAVED = Path(__file__).parents[1] / "data" / "checkpoints_of_7bffc39"
OPEN_STREAMS = [f"env{number}" for number in range(4)]


def _linked(batch):
    """Whether each step is followed by the next of its episode, or by the final observation."""
    now, after = batch["obs"][:, -1, 0], batch["next_obs"][:, -1, 0]
    return bool(((after == now + 1) | (after == -1)).all())


def test_a_prioritized_table_of_linked_steps_loads_and_samples():
    with ReplayBuffer.from_checkpoint(SAVED / "prioritized") as buffer:
        assert len(buffer) > 0
        assert _linked(buffer.sample(64, timeout_s=10))


def test_steps_after_the_load_are_not_linked_to_those_before():
    with ReplayBuffer.from_checkpoint(SAVED / "prioritized") as buffer:
        for value in (5000.0, 5001.0, 5002.0):
            for stream in OPEN_STREAMS:
                step = {"action": 0, "reward": 1.0, "terminated": False, "truncated": False}
                buffer.add(obs=np.full(2, value, np.float32), stream=stream, **step)
        seen = [buffer.sample(64, timeout_s=10) for _ in range(20)]
        assert all(_linked(batch) for batch in seen)
        assert any((batch["obs"][:, -1, 0] == 5000).any() for batch in seen)


def test_a_queue_goes_on_with_the_items_that_were_not_drawn():
    with ReplayBuffer.from_checkpoint(SAVED / "queue") as queue:
        drawn = np.concatenate([queue.sample(4, timeout_s=10)["x"] for _ in range(3)])
        assert drawn.tolist() == list(range(8, 20))
        assert len(queue) == 0


def test_a_chain_of_incremental_saves_loads_with_its_last_rows():
    with ReplayBuffer.from_checkpoint(SAVED / "uniform") as buffer:
        values = buffer.sample(400)["x"]
        assert len(buffer) == 20
        assert set(values.tolist()) <= set(range(11, 31))
        assert 30 in values
