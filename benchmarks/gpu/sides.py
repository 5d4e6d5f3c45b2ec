"""Every library's way of getting batches into the accelerator's memory, as its documentation has it
for speed. Each yields a function that returns a batch.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from benchmarks.gpu.timing import DEVICE, Batch, Take
from benchmarks.replay import tables
from benchmarks.replay.tables import Workload

FIELDS = ("obs", "action", "reward", "next_obs", "terminated")

Side = Callable[[Workload, int], AbstractContextManager[Take]]


def moved(side: Side) -> Side:
    """The same, each tensor of a batch in the accelerator's memory."""

    @contextmanager
    def there(work: Workload, batch: int) -> Iterator[Take]:
        with side(work, batch) as take:
            yield lambda: tuple(one.to(DEVICE, non_blocking=True) for one in take())  # type: ignore[return-value,misc]

    return there


def _tensors(batch: Any, done: str = "terminated") -> Batch:
    import torch

    return tuple(torch.as_tensor(batch[name]) for name in (*FIELDS[:-1], done))  # type: ignore[return-value]


@contextmanager
def loader(work: Workload, batch: int) -> Iterator[Take]:
    """Rows stored as they are."""
    from async_loader import AsyncDataLoader

    with tables.ours(work) as buffer, AsyncDataLoader(buffer, batch, DEVICE) as batches:
        yield lambda: _fields(next(batches))


@contextmanager
def linked(work: Workload, batch: int) -> Iterator[Take]:
    """Each observation stored once."""
    from async_loader import AsyncDataLoader, Transitions

    with tables.ours_linked(work) as buffer:
        source = buffer.source(view=Transitions())
        with AsyncDataLoader(source, batch, DEVICE) as batches:
            yield lambda: _fields(next(batches))


def _fields(batch: Any) -> Batch:
    return tuple(batch[name] for name in FIELDS)  # type: ignore[return-value]


@contextmanager
def on_device(work: Workload, batch: int) -> Iterator[Take]:
    """A table on the device, each observation stored once."""
    with tables.ours_linked(work, device=DEVICE) as buffer:
        yield lambda: _fields(buffer.sample(batch))


@contextmanager
def sample(work: Workload, batch: int) -> Iterator[Take]:
    """The table without the loader. On the CPU."""
    with tables.ours(work) as buffer:
        yield lambda: _tensors(buffer.sample(batch))


@contextmanager
def cpprb(work: Workload, batch: int) -> Iterator[Take]:
    """On the CPU."""
    buffer = tables.cpprb(work)

    def take() -> Batch:
        # numbers come in arrays [batch, 1]
        obs, action, reward, next_obs, done = _tensors(buffer.sample(batch), "done")
        return obs, action, reward[:, 0], next_obs, done[:, 0]

    yield take


@contextmanager
def torchrl(work: Workload, batch: int) -> Iterator[Take]:
    """Four batches ahead by threads of its own, in page-locked memory of the CPU."""
    buffer = tables.torchrl(work, batch, 4, pin_memory=True)
    yield lambda: _fields(buffer.sample())


@contextmanager
def torchrl_on_device(work: Workload, batch: int) -> Iterator[Take]:
    """Its storage in the accelerator's memory, as LeanRL has it."""
    buffer = tables.torchrl(work, batch, device=DEVICE)
    yield lambda: _fields(buffer.sample())


@contextmanager
def sb3(work: Workload, batch: int, device: str = DEVICE) -> Iterator[Take]:
    """Its `sample` makes tensors on a device."""
    import torch

    buffer = tables.sb3(work)
    buffer.device = torch.device(device)

    def take() -> Batch:
        obs, action, next_obs, terminated, reward = buffer.sample(batch)[:5]
        return obs, action, reward[:, 0], next_obs, terminated[:, 0]

    yield take


HOST = {
    "cpprb": cpprb,
    "torchrl, prefetch 4, pin_memory": torchrl,
    "stable-baselines3": partial(sb3, device="cpu"),
}
"""The other libraries, with batches on the CPU."""
PEERS: dict[str, Side] = {
    name: sb3 if name == "stable-baselines3" else moved(side) for name, side in HOST.items()
}
"""The same in the accelerator's memory."""
RESIDENT: dict[str, Side] = {"torchrl, storage on the device": torchrl_on_device}


@contextmanager
def resident(work: Workload, batch: int) -> Iterator[Take]:
    """No library: all columns in the accelerator's memory, and rows picked there."""
    import torch

    columns: list[Any] = []
    for name, (shape, _) in work.fields.items():
        done, column = 0, None
        for chunk in work.chunks():
            rows = torch.as_tensor(chunk[name].copy())
            if column is None:
                column = torch.empty((work.rows, *shape), dtype=rows.dtype, device=DEVICE)
            column[done : done + len(rows)] = rows.to(DEVICE)
            done += len(rows)
        columns.append(column)
    order = [list(work.fields).index(name) for name in FIELDS]

    def take() -> Batch:
        index = torch.randint(work.rows, (batch,), device=DEVICE)
        return tuple(columns[number][index] for number in order)  # type: ignore[return-value]

    yield take


@contextmanager
def one_batch(work: Workload, batch: int) -> Iterator[Take]:
    """No library: the same batch, which lies in the accelerator's memory, each time."""
    with moved(sample)(work, batch) as take:
        once = take()
    yield lambda: once


@contextmanager
def copy_alone(work: Workload, batch: int) -> Iterator[Take]:
    """No library: one copy of a batch's bytes from page-locked memory, and the views on it."""
    import torch

    with sample(work, batch) as take:
        host = take()
    whole = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in host])
    if DEVICE == "cuda":
        whole = whole.pin_memory()
    sizes = [tensor.numel() * tensor.element_size() for tensor in host]

    def take_copy() -> Batch:
        parts = whole.to(DEVICE, non_blocking=True).split(sizes)
        return tuple(
            part.view(tensor.dtype).view(tensor.shape)
            for part, tensor in zip(parts, host, strict=True)
        )  # type: ignore[return-value]

    yield take_copy
