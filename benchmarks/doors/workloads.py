"""The data that every drop-in module and its original load: the same items,
and a check of what comes out.

Needs numpy only.
"""

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

IMAGES, IMAGE = 20_000, (28, 28)
FRAMES, FRAME = 512, (4, 84, 84)
DECODES = 8192
STALL_EVERY = 50
DECODE_S = 40e-6
"""About the time of decoding one frame."""


@cache
def arrays() -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 ``[20000, 28, 28]`` and their numbers, int64."""
    images = np.random.default_rng(0).integers(0, 255, (IMAGES, *IMAGE), dtype=np.uint8)
    return images, np.arange(IMAGES)


@cache
def _compressed() -> list[bytes]:
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(FRAMES):
        frame = np.zeros(FRAME, np.uint8)
        y, x = rng.integers(0, 70, 2)
        frame[:, y : y + 14, x : x + 14] = rng.integers(0, 255, (4, 14, 14))
        frames.append(zlib.compress(frame.tobytes(), 1))
    return frames


def decoded(i: int) -> np.ndarray:
    """Return frame ``i``."""
    return np.frombuffer(zlib.decompress(_compressed()[i % FRAMES]), np.uint8).reshape(FRAME)


class Images:
    """The images as a map-style dataset: item i is ``(image, i)``."""

    def __init__(self) -> None:
        self.images, self.numbers = arrays()

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, i: int) -> tuple[np.ndarray, Any]:
        return self.images[i], self.numbers[i]


class Decoding:
    """Frames that are decompressed on access: item i is ``(frame, i)``.

    Some 40 us of work each.
    """

    def __init__(self) -> None:
        _compressed()  # before any fork

    def __len__(self) -> int:
        return DECODES

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return decoded(i).copy(), int(i)


class Stalling(Decoding):
    """The same, but one item in 50 takes 100 times as long,
    as a file does that is not in the cache.
    """

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        if i % STALL_EVERY == 0:
            time.sleep(100 * DECODE_S)
        return super().__getitem__(i)


@dataclass(frozen=True)
class Workload:
    """One kind of items, and how many make a batch; always shuffled, the last batch as it comes.

    ``truth`` gives the image that a number names.
    """

    key: str
    title: str
    batch: int
    items: int
    dataset: Callable[[], Any]
    truth: Callable[[int], np.ndarray]

    def check(self, images: Any, numbers: Any) -> None:
        """Check that every image is the one of its number, so that no timing is of wrong data."""
        images, numbers = (
            np.asarray(field.asnumpy() if hasattr(field, "asnumpy") else field)
            for field in (images, numbers)
        )
        if len(images) != self.batch:
            raise AssertionError(f"{len(images)} images in a batch of {self.batch}")
        for image, number in zip(images, numbers, strict=True):
            if not np.array_equal(image, self.truth(int(number))):
                raise AssertionError(f"the image numbered {number} is another one")


ARRAYS = Workload(
    "arrays", "28x28 uint8 arrays, 20,000, batch 256", 256, IMAGES, Images, lambda i: arrays()[0][i]
)
ITEMS = Workload(
    "items",
    "28x28 uint8 arrays item by item, 20,000, batch 256",
    256,
    IMAGES,
    Images,
    lambda i: arrays()[0][i],
)
"""The same images from a user-defined dataset, which is not known to be arrays."""
DECODE = Workload("decode", "zlib frame 4x84x84, batch 64", 64, DECODES, Decoding, decoded)
STALLED = Workload("stalled", "the same, 1 item in 50 takes 100x", 64, DECODES, Stalling, decoded)
