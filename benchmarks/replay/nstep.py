"""Draws of 256 small transitions with returns of 5 steps: ours sums when it draws,
the peers when they insert.
"""

from functools import partial

from benchmarks.harness import Contender, Figures, Row
from benchmarks.measure import time_draws
from benchmarks.replay import tables, workloads
from benchmarks.replay.uniform import DRAW_METRICS

WORK = workloads.Small(200_000)
BATCH = workloads.BATCH
STEPS, GAMMA = 5, 0.99


def ours(seconds: float, linked: bool) -> Figures:
    from async_loader import Transitions

    buffer = tables.ours_linked(WORK) if linked else tables.ours(WORK)
    view = Transitions(n_steps=STEPS, gamma=GAMMA)
    workloads.check_rows(buffer.sample(BATCH, view=view))
    return time_draws(lambda: buffer.sample(BATCH, view=view), seconds)


def cpprb(seconds: float) -> Figures:
    buffer = tables.cpprb(
        WORK, Nstep={"size": STEPS, "gamma": GAMMA, "rew": "reward", "next": "next_obs"}
    )
    workloads.check_rows(buffer.sample(BATCH))
    return time_draws(lambda: buffer.sample(BATCH), seconds)


def torchrl(seconds: float) -> Figures:
    """Uses its MultiStepTransform, which wants the values after a step under `next`."""
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.envs.transforms import MultiStepTransform

    buffer = ReplayBuffer(
        storage=LazyTensorStorage(WORK.rows),
        batch_size=BATCH,
        transform=MultiStepTransform(n_steps=STEPS, gamma=GAMMA),
    )
    for chunk in WORK.chunks():
        buffer.extend(tables.for_torchrl_next(chunk))

    def take() -> list[object]:
        return list(buffer.sample().values(include_nested=True, leaves_only=True))

    return time_draws(take, seconds)


ROW = Row(
    "nstep",
    f"uniform, {BATCH} small transitions of {WORK.rows:,} with returns of {STEPS} steps",
    DRAW_METRICS,
    (
        Contender("async_loader", "project", partial(ours, linked=False)),
        Contender("async_loader, linked next_obs", "project", partial(ours, linked=True)),
        Contender("cpprb, Nstep at insert", "replay-peers", cpprb),
        Contender("torchrl, MultiStepTransform at insert", "replay-peers", torchrl, once=True),
    ),
)
