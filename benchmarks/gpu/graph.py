"""Updates of a small network that are replayed as a CUDA graph, batches of 256 small transitions:
the network takes so little time that what fills its tensors decides.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.gpu import sides
from benchmarks.gpu.draws_small import BATCH, WORK
from benchmarks.gpu.timing import DEVICE, time_steps
from benchmarks.harness import Contender, Figures, Metric, Row, Target
from benchmarks.replay import tables, workloads
from benchmarks.replay.dqn import network

HIDDEN = (256, 256)
WARM_UP = 3

Fill = Callable[[], Any]


def _inputs() -> dict[str, Any]:
    import numpy as np
    import torch

    return {
        name: torch.zeros(
            (BATCH, *shape), dtype=torch.as_tensor(np.empty(0, dtype)).dtype, device=DEVICE
        )
        for name, (shape, dtype) in WORK.fields.items()
    }


def _captured(inputs: dict[str, Any]) -> Callable[[], None]:
    """An update that reads ``inputs``, as a graph."""
    import torch

    torch.manual_seed(workloads.SEED)
    online, target = (network(WORK, HIDDEN).to(DEVICE) for _ in range(2))
    optimizer = torch.optim.Adam(
        online.parameters(), lr=1e-4, fused=True, capturable=DEVICE == "cuda"
    )

    def update() -> None:
        with torch.no_grad():
            ahead = 0.99 * target(inputs["next_obs"]).amax(1) * ~inputs["terminated"]
            wanted = inputs["reward"] + ahead
        value = (online(inputs["obs"]) * inputs["action"]).sum(1)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(value, wanted).backward()
        optimizer.step()

    if DEVICE != "cuda":
        return update
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        for _ in range(WARM_UP):
            update()
    beside.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        update()
    return graph.replay


@contextmanager
def _ours(inputs: dict[str, Any]) -> Iterator[Fill]:
    from async_loader import AsyncDataLoader

    with (
        tables.ours(WORK) as buffer,
        AsyncDataLoader(buffer, BATCH, DEVICE, into=inputs) as batches,
    ):
        yield batches.__next__


@contextmanager
def _copied(inputs: dict[str, Any], side: sides.Side) -> Iterator[Fill]:
    with side(WORK, BATCH) as take:

        def fill() -> None:
            for name, tensor in zip(sides.FIELDS, take(), strict=True):
                inputs[name].copy_(tensor, non_blocking=True)

        yield fill


@contextmanager
def _left_alone(inputs: dict[str, Any]) -> Iterator[Fill]:
    yield lambda: None


def _measure(seconds: float, filled: Callable[..., Any]) -> Figures:
    inputs = _inputs()
    replay = _captured(inputs)
    with filled(inputs) as fill:

        def step() -> None:
            fill()
            replay()

        return time_steps(step, seconds)


OURS, LIMIT = "async_loader, into=", "limit: the graph alone"

ROW = Row(
    "graph",
    f"an update of a small network as a CUDA graph, batches of {BATCH} small transitions",
    (Metric("us", "us an update"), Metric("cpu_us", "CPU us an update")),
    (
        Contender(OURS, "project", partial(_measure, filled=_ours)),
        Contender(
            "async_loader, sample() and copy_()",
            "project",
            partial(_measure, filled=partial(_copied, side=sides.sample)),
        ),
        Contender(
            "async_loader, a table on the device and copy_()",
            "project",
            partial(_measure, filled=partial(_copied, side=sides.on_device)),
        ),
        *(
            Contender(name, "replay-peers", partial(_measure, filled=partial(_copied, side=side)))
            for name, side in sides.HOST.items()
        ),
        Contender(LIMIT, "project", partial(_measure, filled=_left_alone), once=True),
    ),
    (Target("faster than every other library", "us", 1.0, OURS, tuple(sides.HOST)),),
    seconds=1.0,
)
