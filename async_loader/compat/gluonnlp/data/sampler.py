"""gluonnlp's samplers: batches by sample length, and parts of a dataset.

`FixedBucketSampler` and `SortedBucketSampler` draw from numpy's global generator, `SplitSampler`
from Python's: a seed gives the same order as in the original. Differences: with fewer batches than
shards `FixedBucketSampler` repeats batches instead of dropping some, `SplitSampler` refuses an
invalid part, `SortedBucketSampler` has the right length also if windows do not divide into batches,
and iterations do not disturb each other's order.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.compat.gluon.data.sampler import Sampler, require
from async_loader.compat.gluonnlp.data.buckets import (
    BucketScheme,
    ConstWidthBucket,
    ExpWidthBucket,
    LinearWidthBucket,
    assigned,
)
from async_loader.errors import ConfigError
from async_loader.public_names import set_public_names

__all__ = [
    "BucketScheme",
    "ConstWidthBucket",
    "ExpWidthBucket",
    "FixedBucketSampler",
    "LinearWidthBucket",
    "SortedBucketSampler",
    "SortedSampler",
    "SplitSampler",
]
set_public_names(globals())

Key = Any
"""Key of a bucket: the longest length that fits, or a tuple of them, one per attribute."""


class SortedSampler(Sampler):
    """All indices, sorted by their keys.

    Parameters
    ----------
    sort_keys : sequence
        One per sample; comparable with each other.
    reverse : bool
        Largest first.
    """

    def __init__(self, sort_keys: Sequence[Any], reverse: bool = True) -> None:
        require(len(sort_keys) > 0, "sort_keys is empty: there is nothing to sort")
        self._sorted_ids = sorted(
            range(len(sort_keys)), key=lambda i: sort_keys[i], reverse=reverse
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self._sorted_ids)

    def __len__(self) -> int:
        return len(self._sorted_ids)


class SortedBucketSampler(Sampler):
    """Batches of samples with similar keys: windows of ``mult`` batches are sorted and cut.

    Parameters
    ----------
    sort_keys : sequence
        One per sample.
    batch_size : int
    mult : float
        Window size in batches; at least 1.
    reverse : bool
        Largest first within a window.
    shuffle : bool
        Shuffle the samples before the windows are made, and the batches within each.
    """

    def __init__(
        self,
        sort_keys: Sequence[Any],
        batch_size: int,
        mult: float = 100,
        reverse: bool = True,
        shuffle: bool = False,
    ) -> None:
        require(len(sort_keys) > 0, "sort_keys is empty: there is nothing to sort")
        require(batch_size > 0, f"batch_size is {batch_size}: it is at least 1")
        require(mult >= 1, f"mult is {mult}: a window is one batch or more")
        self._sort_keys, self._batch_size, self._mult = sort_keys, batch_size, mult
        self._reverse, self._shuffle = reverse, shuffle

    @property
    def _window(self) -> int:
        return int(self._mult * self._batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        count = len(self._sort_keys)
        order = np.random.permutation(count).tolist() if self._shuffle else list(range(count))
        for begin in range(0, count, self._window):
            window = sorted(
                order[begin : begin + self._window],
                key=lambda i: self._sort_keys[i],
                reverse=self._reverse,
            )
            begins = list(range(0, len(window), self._batch_size))
            if self._shuffle:
                np.random.shuffle(begins)
            for first in begins:
                yield window[first : first + self._batch_size]

    def __len__(self) -> int:
        whole, rest = divmod(len(self._sort_keys), self._window)
        return whole * -(-self._window // self._batch_size) + -(-rest // self._batch_size)


class SplitSampler(Sampler):
    """One of several consecutive parts of ``range(length)``, for one of several learners.

    Parameters
    ----------
    length, num_parts, part_index : int
        The first parts take the remainder.
    even_size : bool
        Give all parts the size of the largest; the missing samples are drawn from all samples.
    repeat : int
        Passes through the part per iteration, shuffled each time.
    shuffle : bool
        Shuffle with Python's global generator.

    Raises
    ------
    AssertionError
        If there are fewer samples than parts.
    ConfigError
        If there is no such part.
    """

    def __init__(
        self,
        length: int,
        num_parts: int = 1,
        part_index: int = 0,
        even_size: bool = False,
        repeat: int = 1,
        shuffle: bool = True,
    ) -> None:
        require(num_parts > 0, f"num_parts is {num_parts}: it is at least 1")
        require(
            length >= num_parts,
            f"length is {length}, num_parts {num_parts}: each part needs a sample",
        )
        if not 0 <= part_index < num_parts:
            raise ConfigError(
                f"part_index is {part_index}: with {num_parts} parts it is 0 to {num_parts - 1}"
            )
        if repeat < 0:
            raise ConfigError(f"repeat is {repeat}: it is at least 0")
        self.even_size, self.num_parts = even_size, num_parts
        self._total_length, self._repeat, self._shuffle = length, repeat, shuffle
        size, rest = divmod(length, num_parts)
        if even_size:
            self._len = size + (rest > 0)
            self._start = min(self._len * part_index, length)
            self._end = min(self._start + self._len, length)
        else:
            self._start = size * part_index + min(part_index, rest)
            self._end = self._start + size + (part_index < rest)
            self._len = self._end - self._start

    def __iter__(self) -> Iterator[int]:
        drawn: list[int] = []
        for _ in range(self._repeat):
            drawn += self._once()
        return iter(drawn)

    def _once(self) -> list[int]:
        part = list(range(self._start, self._end))
        if len(part) < self._len:
            part += random.sample(range(self._total_length), self._len - len(part))
        if self._shuffle:
            random.shuffle(part)
        return part

    def __len__(self) -> int:
        return self._len * self._repeat


class FixedBucketSampler(Sampler):
    """Batches of samples of similar length, each from one bucket;
    the largest bucket first without shuffling.

    Parameters
    ----------
    lengths : sequence of int, or of tuples of int
        One per sample; with several attributes a sample goes to the bucket that pads it least.
    batch_size : int
        Samples; with ``use_average_length`` elements (tokens).
    num_buckets : int
        Number of buckets for ``bucket_scheme``. Not used with ``bucket_keys``.
    bucket_keys : sequence of int, or of tuples of int, optional
        Longest lengths of the buckets.
    ratio : float
        A bucket whose key is a k-th of the largest has batches of ``max(k * ratio * batch_size,
        batch_size)`` samples.
    shuffle : bool
        Shuffle the batches' order and the samples of each bucket with numpy's global generator,
        from the last order on.
    use_average_length : bool
        A bucket's batches have ``batch_size / (mean + deviation of its lengths)`` samples.
    num_shards : int
        Above 0 a pass yields lists of ``num_shards`` batches, one for each device. The last list
        starts earlier, so that it is full: some batches are repeated. If there are fewer batches
        than shards, they are repeated.
    bucket_scheme : BucketScheme

    Raises
    ------
    AssertionError
        If an argument is invalid.
    ValueError
        If a sample fits into none of ``bucket_keys``.
    """

    def __init__(
        self,
        lengths: Sequence[Any],
        batch_size: int,
        num_buckets: int | None = 10,
        bucket_keys: Sequence[Key] | None = None,
        ratio: float = 0,
        shuffle: bool = False,
        use_average_length: bool = False,
        num_shards: int = 0,
        bucket_scheme: BucketScheme | None = None,
    ) -> None:
        require(len(lengths) > 0, "lengths is empty: there is nothing to sample")
        require(batch_size > 0, f"batch_size is {batch_size}: it is at least 1")
        require(ratio >= 0, f"ratio is {ratio}: it is at least 0")
        self._lengths = _lengths(lengths)
        self._ratio, self._shuffle, self._num_shards = ratio, shuffle, num_shards
        keys = self._keys(bucket_keys, num_buckets, bucket_scheme or ConstWidthBucket())
        self._fill(sorted(set(keys)))
        if use_average_length and ratio > 0:
            warnings.warn(
                f"ratio is {ratio}, and ignored: with use_average_length it has no meaning",
                stacklevel=2,
            )
        self._bucket_batch_sizes = (
            self._by_elements(batch_size) if use_average_length else self._by_samples(batch_size)
        )
        self._batch_infos = [
            (bucket, begin)
            for bucket in reversed(range(len(self._bucket_keys)))
            for begin in range(
                0, len(self._bucket_sample_ids[bucket]), self._bucket_batch_sizes[bucket]
            )
        ]

    def _keys(
        self, given: Sequence[Key] | None, num_buckets: int | None, scheme: BucketScheme
    ) -> list[Key]:
        if given is None:
            require(
                num_buckets is not None and num_buckets > 0,
                f"num_buckets is {num_buckets}: it is at least 1",
            )
            longest, shortest = self._lengths.max(axis=0), self._lengths.min(axis=0)
            return scheme(longest.tolist(), shortest.tolist(), num_buckets or 0)
        require(len(given) > 0, "bucket_keys is empty: it holds one key or more")
        if num_buckets is not None:
            warnings.warn(
                f"num_buckets is {num_buckets}, and ignored: there are bucket_keys", stacklevel=3
            )
        attributes = self._lengths.shape[1:]
        for key in given:
            require(
                np.shape(key) == attributes,
                f"bucket key {key!r}: it is "
                f"{f'a tuple of {attributes[0]} ints' if attributes else 'an int'}",
            )
        return list(given)

    def _fill(self, keys: list[Key]) -> None:
        """Assign samples to buckets; empty buckets are left out."""
        buckets = assigned(keys, self._lengths)
        if unused := [key for key, samples in zip(keys, buckets, strict=True) if not samples]:
            warnings.warn(
                f"no sample falls into the buckets {unused}: they are left out", stacklevel=3
            )
        self._bucket_keys = [key for key, samples in zip(keys, buckets, strict=True) if samples]
        self._bucket_sample_ids = [samples for samples in buckets if samples]

    def _by_samples(self, batch_size: int) -> list[int]:
        sizes = [int(np.sum(key)) for key in self._bucket_keys]
        return [
            max(int(max(sizes) / float(size) * self._ratio * batch_size), batch_size)
            for size in sizes
        ]

    def _by_elements(self, batch_size: int) -> list[int]:
        of_bucket = [self._lengths[samples] for samples in self._bucket_sample_ids]
        return [max(int(batch_size / (lengths.mean() + lengths.std())), 1) for lengths in of_bucket]

    def __iter__(self) -> Iterator[Any]:
        if self._shuffle:
            np.random.shuffle(self._batch_infos)
            self._bucket_sample_ids = [_shuffled(samples) for samples in self._bucket_sample_ids]
        return self._pass(list(self._batch_infos), list(self._bucket_sample_ids))

    def _pass(self, infos: list[tuple[int, int]], buckets: list[list[int]]) -> Iterator[Any]:
        """Iterate over the lists as they are when the pass begins."""
        sizes, shards = self._bucket_batch_sizes, self._num_shards
        batches = ((bucket, slice(begin, begin + sizes[bucket])) for bucket, begin in infos)
        if shards <= 0:
            for bucket, rows in batches:
                yield buckets[bucket][rows]
            return
        known = list(batches)
        for first in range(0, len(known), shards):
            first = max(0, min(first, len(known) - shards))
            group = [known[(first + i) % len(known)] for i in range(shards)]
            yield [buckets[bucket][rows] for bucket, rows in group]

    def __len__(self) -> int:
        return (
            len(self._batch_infos)
            if self._num_shards <= 0
            else -(-len(self._batch_infos) // self._num_shards)
        )

    def stats(self) -> str:
        """Return the buckets as text: keys, numbers of samples, and batch sizes."""
        counts = [len(samples) for samples in self._bucket_sample_ids]
        return (
            f"{type(self).__name__}:\n"
            f"  sample_num={len(self._lengths)}, batch_num={len(self._batch_infos)}\n"
            f"  key={self._bucket_keys}\n"
            f"  cnt={counts}\n"
            f"  batch_size={self._bucket_batch_sizes}"
        )


def _lengths(lengths: Sequence[Any]) -> npt.NDArray[np.int64]:
    known = np.asarray(lengths, dtype=np.int64)
    require(
        known.ndim in (1, 2),
        f"lengths has {known.ndim} axes: a length is an int, or a tuple of ints",
    )
    require((known > 0).all(), f"the shortest length is {known.min()}: all are at least 1")
    return known


def _shuffled(samples: list[int]) -> list[int]:
    """Shuffle a new list: an iteration in progress keeps the old one."""
    anew = list(samples)
    np.random.shuffle(anew)
    return anew
