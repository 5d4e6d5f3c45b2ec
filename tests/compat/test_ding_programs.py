"""Programs written for DI-engine run when their import line is changed."""

from __future__ import annotations

import pytest
from compat_rig import program


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_learner_learns(num_workers):
    learner = program("ding_learner", "ding.utils.data", "async_loader.compat.ding")
    losses, actions = learner.main(num_workers)
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert [set(one) for one in actions] == [{"action", "logit"}] * 3
    assert actions[0]["logit"].shape == (2,)


@pytest.mark.parametrize(("num_workers", "chunk_size"), [(0, None), (2, 4)])
def test_frames_arrive_once_each_and_in_order(num_workers, chunk_size):
    frames = program("ding_frames", "ding.utils.data", "async_loader.compat.ding")
    assert frames.main(num_workers, chunk_size).tolist() == 2 * list(range(32))
