"""What the rows of sequences have in common: contenders, figures, targets."""

from functools import partial

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import time_draws
from benchmarks.replay.uniform import DRAW_METRICS
from benchmarks.trajectories import tables
from benchmarks.trajectories.gather import over_gather
from benchmarks.trajectories.workloads import Steps

OURS, OURS_WRITES = "async_loader", "async_loader, after each write"
SLICE, SLICE_WRITES = "torchrl SliceSampler", "torchrl SliceSampler, after each write"
UNIT, UNIT_WRITES = "torchrl Sequence", "torchrl Sequence, after each write"
GATHER = Metric("over_gather", "times a gather of the same rows by id", digits=2)


def ours(seconds: float, work: Steps, writes: bool) -> Figures:
    buffer = tables.ours(work)
    take = tables.ours_take(work, buffer, writes)
    return {**time_draws(take, seconds), "over_gather": over_gather(buffer, take, seconds)}


def torchrl(seconds: float, work: Steps, unit: bool, writes: bool) -> Figures:
    return time_draws(tables.torchrl_take(work, unit, writes), seconds)


def rllib(seconds: float, work: Steps) -> Figures:
    return time_draws(tables.rllib_take(work), seconds)


def flashbax(seconds: float, work: Steps, writes: bool) -> Figures:
    return time_draws(tables.flashbax_take(work, writes), seconds)


def sb3(seconds: float, work: Steps) -> Figures:
    return time_draws(tables.sb3_take(work), seconds)


def row(key: str, work: Steps, what: str, others: bool = False) -> Row:
    peers = "replay-peers"
    contenders = [
        Contender(OURS, "project", partial(ours, work=work, writes=False)),
        Contender(OURS_WRITES, "project", partial(ours, work=work, writes=True)),
        *(
            Contender(
                name,
                peers,
                partial(torchrl, work=work, unit=unit, writes=writes),
                against=OURS_WRITES if writes else OURS,
            )
            for name, unit, writes in (
                (SLICE, False, False),
                (SLICE_WRITES, False, True),
                (UNIT, True, False),
                (UNIT_WRITES, True, True),
            )
        ),
        Contender(
            "flashbax, across episodes", "flashbax", partial(flashbax, work=work, writes=False)
        ),
        Contender(
            "flashbax, across episodes, after each write",
            "flashbax",
            partial(flashbax, work=work, writes=True),
            against=OURS_WRITES,
        ),
    ]
    if others:
        contenders += [
            Contender("RLlib EpisodeReplayBuffer", "rllib", partial(rllib, work=work)),
            Contender("stable-baselines3, as many transitions", peers, partial(sb3, work=work)),
        ]
    return Row(
        key,
        f"{work.batch} sequences of {work.length} {what}, of {work.rows:,}",
        (*DRAW_METRICS, GATHER),
        tuple(contenders),
        (
            Target("times a gather by id", "over_gather", 1.5, OURS),
            Target("times a gather by id, after each write", "over_gather", 1.5, OURS_WRITES),
            Target("against SliceSampler", "us", 10.0, OURS, (SLICE,)),
            Target("against Sequence, after each write", "us", 5.0, OURS_WRITES, (UNIT_WRITES,)),
        ),
        seconds=3.0,
    )
