"""Bucket keys by sample length, and the assignment of samples to buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class BucketScheme:
    """Computes bucket keys from the shortest and longest length."""

    def __call__(self, max_lengths: Any, min_lengths: Any, num_buckets: int) -> list[Any]:
        """Return the keys.

        Parameters
        ----------
        max_lengths, min_lengths : int, or sequence of int
            One per attribute.
        num_buckets : int

        Returns
        -------
        list of int, or of tuples of int
            The longest length of each bucket, one per attribute.
        """
        if np.ndim(max_lengths) == 0:
            return self._of_attribute(int(max_lengths), int(min_lengths), num_buckets)
        extremes = zip(map(int, max_lengths), map(int, min_lengths), strict=True)
        return list(
            zip(
                *(
                    self._of_attribute(longest, shortest, num_buckets)
                    for longest, shortest in extremes
                ),
                strict=True,
            )
        )

    def _of_attribute(self, longest: int, shortest: int, count: int) -> list[int]:
        raise NotImplementedError(
            f"{type(self).__name__} has no rule for bucket keys: use ConstWidthBucket or one of "
            "its kind"
        )


class ConstWidthBucket(BucketScheme):
    """All buckets are equally wide, counted from the longest length down."""

    def _of_attribute(self, longest: int, shortest: int, count: int) -> list[int]:
        width = max((longest - shortest + 1) // count, 1)
        return [max(longest - i * width, shortest) for i in range(count)]


class LinearWidthBucket(BucketScheme):
    """Bucket i is ``alpha * i + 1`` wide, from the shortest length up."""

    def _of_attribute(self, longest: int, shortest: int, count: int) -> list[int]:
        alpha = 2 * float(longest - shortest - count) / (count * (count + 1))
        keys = [round(shortest + alpha * (i * (i + 1) / 2) + i) for i in range(1, count + 1)]
        return [*keys[:-1], max(keys[-1], longest)]


class ExpWidthBucket(BucketScheme):
    """Each bucket is ``bucket_len_step`` times as wide as the one before it.

    Parameters
    ----------
    bucket_len_step : float
        Above 1.
    """

    def __init__(self, bucket_len_step: float = 1.1) -> None:
        self.bucket_len_step = bucket_len_step

    def _of_attribute(self, longest: int, shortest: int, count: int) -> list[int]:
        step = self.bucket_len_step
        first = (longest - shortest) * (step - 1) / (step**count - 1)
        keys = [round(shortest + first * (step**i - 1) / (step - 1)) for i in range(1, count + 1)]
        return [*keys[:-1], max(keys[-1], longest)]


def assigned(keys: Sequence[Any], lengths: npt.NDArray[np.int64]) -> list[list[int]]:
    """Return the samples of each bucket, in order: each goes where it needs the least padding.

    Parameters
    ----------
    keys : sequence of int, or of tuples of int
        Sorted.
    lengths : int64 [samples] or [samples, attributes]

    Raises
    ------
    ValueError
        If a sample is longer than all keys.
    """
    rows, worst = lengths.reshape(len(lengths), -1), np.iinfo(np.int64).max
    bucket, least = np.full(len(rows), len(keys)), np.full(len(rows), worst)
    for number, key in enumerate(keys):
        spare = np.asarray(key, np.int64) - rows
        padding = np.where((spare >= 0).all(axis=1), spare.sum(axis=1), worst)
        bucket[padding < least] = number
        least = np.minimum(least, padding)
    outside = bucket == len(keys)
    if outside.any():
        longest = lengths[outside][0].tolist()
        raise ValueError(
            f"{outside.sum()} samples fit into no bucket, the first has length {longest}: "
            "bucket_keys needs a larger key"
        )
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=len(keys)))
    return [part.tolist() for part in np.split(order, ends[:-1])]
