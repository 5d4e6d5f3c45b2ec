"""Updates of a small network on the CPU, as in a DQN script of one file: the loader beside `sample`
and Stable-Baselines3's buffer. What counts is the whole update.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.measure import time_calls
from benchmarks.replay import tables, workloads

WORK = workloads.Small(128 * 1024)
HIDDEN = (120, 84)
FIRST = 200
"""Updates before the measurement: a loader decides in these which thread draws."""

Take = Callable[[], tuple[Any, Any, Any, Any, Any]]


def network(work: workloads.Small, hidden: Sequence[int]) -> Any:
    """From observations to a value for each action."""
    import torch

    sizes = (*work.fields["obs"][0], *hidden, *work.fields["action"][0])
    layers: list[Any] = []
    for width, following in pairwise(sizes):
        layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def _time(take: Take, seconds: float) -> Figures:
    import torch

    torch.manual_seed(workloads.SEED)
    online, target = network(WORK, HIDDEN), network(WORK, HIDDEN)
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4)

    def update() -> None:
        obs, action, reward, next_obs, terminated = take()
        with torch.no_grad():
            wanted = reward + 0.99 * target(next_obs).amax(1) * ~terminated
        loss = torch.nn.functional.mse_loss((online(obs) * action).sum(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(FIRST):
        update()
    return time_calls(update, seconds)


def loader(seconds: float, batch: int) -> Figures:
    from async_loader import AsyncDataLoader

    with tables.ours(WORK) as buffer, AsyncDataLoader(buffer, batch) as batches:

        def take() -> Any:
            one = next(batches)
            return tuple(one[name] for name in WORK.fields)

        return _time(take, seconds)


def sample(seconds: float, batch: int) -> Figures:
    import torch

    with tables.ours(WORK) as buffer:

        def take() -> Any:
            one = buffer.sample(batch)
            return tuple(torch.as_tensor(one[name]) for name in WORK.fields)

        return _time(take, seconds)


def sb3(seconds: float, batch: int) -> Figures:
    buffer = tables.sb3(WORK)

    def take() -> Any:
        obs, action, next_obs, terminated, reward = buffer.sample(batch)[:5]
        return obs, action, reward[:, 0], next_obs, terminated[:, 0] != 0

    return _time(take, seconds)


OURS, SAMPLE, SB3 = "async_loader", "async_loader, sample()", "stable-baselines3"


def _contenders(batch: int) -> list[Contender]:
    return [
        Contender(f"{OURS}, batch {batch}", "project", partial(loader, batch=batch)),
        Contender(f"{SAMPLE}, batch {batch}", "project", partial(sample, batch=batch)),
        Contender(f"{SB3}, batch {batch}", "replay-peers", partial(sb3, batch=batch)),
    ]


ROW = Row(
    "dqn",
    "an update of a small network on the CPU, batches of 128 and 256 small transitions",
    (Metric("cpu_us", "CPU us an update", digits=0), Metric("us", "us an update", digits=0)),
    tuple(contender for batch in (128, 256) for contender in _contenders(batch)),
    tuple(
        Target(
            f"batch {batch}: {text}",
            "cpu_us",
            bound,
            f"{OURS}, batch {batch}",
            (f"{theirs}, batch {batch}",),
        )
        for batch in (128, 256)
        for text, bound, theirs in (
            ("at most 3% more than sample() and torch.as_tensor", 1 / 1.03, SAMPLE),
            ("not more than Stable-Baselines3", 1.0, SB3),
        )
    ),
    seconds=3.0,
)
