"""Updates of the network of the DQN paper [1]_ on an accelerator, batches of 256 transitions of two
stacks of four frames: what counts is the whole update, beside one whose batch is always the same
and lies there already.

.. [1] Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015.
"""

from functools import partial
from typing import Any

from benchmarks.gpu import draws, sides
from benchmarks.gpu.draws_atari import BATCH, WORK, check
from benchmarks.gpu.timing import DEVICE, Take, time_steps
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.replay import workloads

ACTIONS = 18


def _network() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        nn.Linear(512, ACTIONS),
    ).to(DEVICE)  # fmt: skip


def _time(take: Take, seconds: float) -> Figures:
    import torch

    torch.manual_seed(workloads.SEED)
    network, target = _network(), _network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def update() -> None:
        obs, action, reward, next_obs, terminated = take()
        with torch.no_grad():
            wanted = reward + 0.99 * target(next_obs / 255.0).amax(1) * ~terminated.bool()
        value = network(obs / 255.0).gather(1, action.view(-1, 1)).squeeze(1)
        loss = torch.nn.functional.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return time_steps(update, seconds)


def _measure(seconds: float, side: sides.Side) -> Figures:
    with side(WORK, BATCH) as take:
        check(take)
        return _time(take, seconds)


OURS, LINKED, LIMIT = "async_loader", "async_loader, linked frames", "limit: always the same batch"
ON_DEVICE = "async_loader, table on the device"

ROW = Row(
    "update-atari",
    f"an update of the DQN paper's network, batches of {BATCH} transitions of two 4x84x84 stacks",
    (Metric("us", "us an update", digits=0), Metric("cpu_us", "CPU us an update", digits=0)),
    (
        Contender(OURS, "project", partial(_measure, side=sides.loader)),
        Contender(LINKED, "project", partial(_measure, side=sides.linked)),
        Contender(ON_DEVICE, "project", partial(_measure, side=sides.on_device)),
        Contender(draws.SAMPLE, "project", partial(_measure, side=sides.moved(sides.sample))),
        *(
            Contender(name, "replay-peers", partial(_measure, side=side))
            for name, side in sides.PEERS.items()
        ),
        Contender(LIMIT, "project", partial(_measure, side=sides.one_batch)),
    ),
    (
        Target("faster than every other library", "us", 1.0, OURS, tuple(sides.PEERS)),
        Target("at most 3% more than with the same batch", "us", 1 / 1.03, OURS, (LIMIT,)),
    ),
    seconds=1.0,
)
