"""What is loaded, the same for every contender: frames, transitions, and the jobs that read them.

Needs numpy only.
"""

import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

FRAME = (4, 84, 84)
FRAMES = 512
JOBS_PER_BATCH = 64
DICTS_PER_BATCH = 256
TRANSITION = {"obs": (17,), "action": (6,), "reward": (), "next_obs": (17,)}

Job = Callable[[], Any]


def _frames() -> list[bytes]:
    """Compressed frames that are mostly empty, with a noisy square:
    about 30 us of work each to decode.
    """
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(FRAMES):
        frame = np.zeros(FRAME, np.uint8)
        y, x = rng.integers(0, 70, 2)
        frame[:, y : y + 14, x : x + 14] = rng.integers(0, 255, (4, 14, 14))
        frames.append(zlib.compress(frame.tobytes(), 1))
    return frames


_COMPRESSED = _frames()


def load(i: int) -> tuple[np.ndarray, int]:
    """Return the decoded frame and its number."""
    return np.frombuffer(zlib.decompress(_COMPRESSED[i]), np.uint8).reshape(FRAME), i


def load_tensors(i: int) -> list[Any]:
    """The same as tensors, as in DI-engine's own examples."""
    import torch

    frame, number = load(i)
    return [torch.from_numpy(frame.copy()), torch.tensor(number)]


def load_slowly(i: int) -> tuple[np.ndarray, int]:
    """The same with 10 ms of work that holds the GIL."""
    end = time.perf_counter() + 0.010
    while time.perf_counter() < end:
        pass
    return load(i)


def job_source(function: Callable[[int], Any], seed: int = 0) -> Callable[[int], list[Job]]:
    """Return a data_source: batch_size -> that many jobs, drawn at random."""
    rng = np.random.default_rng(seed)
    return lambda batch_size: [
        partial(function, i) for i in rng.integers(0, FRAMES, batch_size).tolist()
    ]


class FrameDataset:
    """The same frames as a map-style dataset,
    long enough that no epoch ends while it is measured.
    """

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return load(i % FRAMES)


def check_frames(batch: Any) -> None:
    """Every row of a batch is the frame that its number names;
    so no contender is timed on wrong data.
    """
    frames, numbers = (np.asarray(field) for field in batch)
    for frame, number in zip(frames, numbers, strict=True):
        if not np.array_equal(frame, load(int(number))[0]):
            raise AssertionError(f"the row numbered {number} holds another frame")


def columns(rows: int) -> dict[str, np.ndarray]:
    """Return transitions as columns."""
    rng = np.random.default_rng(1)
    return {
        name: rng.standard_normal((rows, *shape), dtype=np.float32)
        for name, shape in TRANSITION.items()
    }


def transition(table: dict[str, np.ndarray], i: int) -> dict[str, Any]:
    """Return row `i` of `columns` as a dict of arrays."""
    return {name: column[i] for name, column in table.items()}


def tensor_dicts(rows: int) -> list[dict[str, Any]]:
    """Return transitions as dicts of tensors."""
    import torch

    table = columns(rows)
    return [{name: torch.tensor(column[i]) for name, column in table.items()} for i in range(rows)]


def atari_dicts(rows: int) -> list[dict[str, Any]]:
    """Return transitions with two stacks of four frames each, as dicts of tensors."""
    import torch

    rng = np.random.default_rng(2)

    def frame() -> Any:
        return torch.from_numpy(rng.integers(0, 255, FRAME, dtype=np.uint8))

    return [
        {
            "obs": frame(),
            "action": torch.tensor(i),
            "reward": torch.tensor(0.5),
            "next_obs": frame(),
        }
        for i in range(rows)
    ]


def dict_source(rows: list[dict[str, Any]]) -> Callable[[int], list[dict[str, Any]]]:
    """Return a data_source: batch_size -> that many of `rows`, drawn at random."""
    rng = np.random.default_rng(3)
    return lambda batch_size: [rows[i] for i in rng.integers(0, len(rows), batch_size).tolist()]


class DictDataset:
    """The same dicts as a map-style dataset,
    long enough that no epoch ends while it is measured.
    """

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._rows[i % len(self._rows)]


def batches_for_ever(loader: Any) -> Iterator[Any]:
    """Yield the batches of a loader with epochs, one epoch after the other."""
    while True:
        yield from loader
