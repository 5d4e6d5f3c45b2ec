"""Draws of 16 whole episodes of 1,000 small steps."""

import tempfile

import numpy as np

from benchmarks.harness import Contender, Figures, Row
from benchmarks.measure import time_draws
from benchmarks.replay.uniform import DRAW_METRICS
from benchmarks.trajectories import tables
from benchmarks.trajectories.workloads import EPISODE, Steps

WORK = Steps(100_000, 16, EPISODE)


def ours(seconds: float) -> Figures:
    from async_loader import Sequences

    buffer, view = tables.ours(WORK), Sequences(EPISODE, whole=True)
    assert (np.diff(buffer.sample(WORK.batch, view=view)["reward"], axis=1) == 1).all()
    return time_draws(lambda: buffer.sample(WORK.batch, view=view), seconds)


def minari(seconds: float) -> Figures:
    """Its episodes lie in an HDF5 file, and come as a list."""
    import os

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        import minari
        from gymnasium import spaces
        from minari.data_collector import EpisodeBuffer

        dataset = minari.create_dataset_from_buffers(
            "bench/steps-v0",
            [
                EpisodeBuffer(
                    observations=np.concatenate([one["obs"], one["obs"][-1:]]),
                    actions=one["action"],
                    rewards=one["reward"],
                    terminations=one["terminated"],
                    truncations=np.zeros(len(one["reward"]), bool),
                )
                for one in WORK.episodes()
            ],
            observation_space=spaces.Box(-np.inf, np.inf, (17,), np.float32),
            action_space=spaces.Box(-np.inf, np.inf, (6,), np.float32),
        )
        dataset.set_seed(0)

        def take() -> list[np.ndarray]:
            return [
                array
                for one in dataset.sample_episodes(WORK.batch)
                for array in (one.observations, one.actions, one.rewards, one.terminations)
            ]

        return time_draws(take, seconds)


ROW = Row(
    "episodes",
    f"{WORK.batch} whole episodes of {EPISODE:,} small steps, of {WORK.rows // EPISODE}",
    DRAW_METRICS,
    (
        Contender("async_loader", "project", ours),
        Contender("Minari", "minari", minari),
        Contender(
            "RLlib EpisodeReplayBuffer", "rllib",
            lambda seconds: time_draws(tables.rllib_take(WORK), seconds),
        ),
    ),
)  # fmt: skip
