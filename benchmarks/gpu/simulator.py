"""A simulator on the accelerator: 1,024 environments whose step is stored there at once, and a
large batch that is drawn there after each, as FastTD3 and Isaac Lab's learners do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.gpu.timing import DEVICE, read, time_steps
from benchmarks.harness import Contender, Figures, Metric, Row, Target

ENVIRONMENTS, BATCH = 1024, 32_768 if DEVICE == "cuda" else 1024
STEPS = 128
"""Of each environment that are kept."""
EPISODE = 100
OBS, ACTION = 48, 12
FIELDS = ("obs", "action", "reward", "next_obs", "terminated")
OURS = "async_loader, a table on the device"
TENSORS = "limit: tensors of one's own"
TORCHRL = "torchrl, storage on the device"

Step = dict[str, Any]
Round = Callable[[Step], Any]
"""Stores a step of all environments, and returns the tensors of a batch."""


def _steps() -> Iterator[Step]:
    """Steps on the device; each observation says of which step and environment it is."""
    import torch

    number = torch.arange(ENVIRONMENTS, device=DEVICE, dtype=torch.float32)
    action = torch.rand(ENVIRONMENTS, ACTION, device=DEVICE)
    reward = torch.rand(ENVIRONMENTS, device=DEVICE)
    n = 0
    while True:
        obs, next_obs = (
            (number + at * ENVIRONMENTS)[:, None].expand(-1, OBS).contiguous() for at in (n, n + 1)
        )
        n += 1
        terminated = torch.full((ENVIRONMENTS,), n % EPISODE == 0, device=DEVICE)
        yield dict(zip(FIELDS, (obs, action, reward, next_obs, terminated), strict=True))


@contextmanager
def _ours() -> Iterator[Round]:
    from async_loader import ReplayBuffer

    schema = {
        "obs": ((OBS,), "float32"),
        "action": ((ACTION,), "float32"),
        "reward": "float32",
        "next_obs": ((OBS,), "float32"),
        "terminated": "bool",
    }
    streams = list(range(ENVIRONMENTS))
    with ReplayBuffer(ENVIRONMENTS * STEPS, schema, device=DEVICE, seed=0) as buffer:

        def one(step: Step) -> Any:
            buffer.extend(step, stream=streams)
            batch = buffer.sample(BATCH)
            return [batch[name] for name in FIELDS]

        yield one


@contextmanager
def _torchrl() -> Iterator[Round]:
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    storage = LazyTensorStorage(ENVIRONMENTS * STEPS, device=DEVICE)
    buffer = ReplayBuffer(storage=storage, batch_size=BATCH)

    def one(step: Step) -> Any:
        buffer.extend(TensorDict(step, [ENVIRONMENTS], device=DEVICE))
        batch = buffer.sample()
        return [batch[name] for name in FIELDS]

    yield one


@contextmanager
def _tensors() -> Iterator[Round]:
    """Tensors ``[environments, steps, ...]``, and as many rows of each environment."""
    import torch

    kept: dict[str, Any] = {}
    n = 0
    each = torch.arange(ENVIRONMENTS, device=DEVICE)[:, None]

    def one(step: Step) -> Any:
        nonlocal n
        for name, value in step.items():
            if name not in kept:
                shape = (ENVIRONMENTS, STEPS, *value.shape[1:])
                kept[name] = torch.zeros(shape, dtype=value.dtype, device=DEVICE)
            kept[name][:, n % STEPS] = value
        n += 1
        count = (ENVIRONMENTS, BATCH // ENVIRONMENTS)
        at = torch.randint(min(n, STEPS), count, device=DEVICE)
        return [kept[name][each, at].flatten(0, 1) for name in FIELDS]

    yield one


def _check(batch: Any) -> None:
    """The observation after a step is that of the same environment, one step later."""
    obs, following = batch[0], batch[3]
    assert bool((following == obs + ENVIRONMENTS).all())
    assert len({*obs[:, 0].tolist()}) > len(obs) // 2


def _measure(seconds: float, side: Any) -> Figures:
    steps = _steps()
    with side() as one:
        for _ in range(STEPS + 9):
            batch = one(next(steps))
        _check(batch)
        return time_steps(lambda: read(one(next(steps))), seconds)


ROW = Row(
    "simulator",
    f"a step of {ENVIRONMENTS:,} environments on the accelerator, and {BATCH:,} transitions drawn",
    (Metric("us", "us a step and a batch"), Metric("cpu_us", "CPU us a step and a batch")),
    (
        Contender(OURS, "project", partial(_measure, side=_ours)),
        Contender(TORCHRL, "replay-peers", partial(_measure, side=_torchrl)),
        Contender(TENSORS, "project", partial(_measure, side=_tensors)),
    ),
    (
        Target("faster than torchrl", "us", 1.0, OURS, (TORCHRL,)),
        Target("as fast as tensors of one's own", "us", 1.0, OURS, (TENSORS,)),
    ),
    seconds=1.0,
)
