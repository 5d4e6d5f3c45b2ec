"""gluonnlp's samplers: each sample once, groups that are full, parts that do not overlap, and
the orders of the original.
"""

from __future__ import annotations

import warnings
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader.compat import gluonnlp as nlp
from async_loader.compat.gluonnlp.data.sampler import assigned

FixedBucketSampler, SplitSampler = nlp.data.FixedBucketSampler, nlp.data.SplitSampler
SCHEMES = [
    nlp.data.ConstWidthBucket(),
    nlp.data.LinearWidthBucket(),
    nlp.data.ExpWidthBucket(),
    nlp.data.ExpWidthBucket(1.5),
]

lengths = st.one_of(
    st.lists(st.integers(1, 99), min_size=1, max_size=80),
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 30)), min_size=1, max_size=80),
)


@pytest.fixture(autouse=True)
def _empty_buckets_are_meant():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no sample falls into|ratio is")
        yield


@given(
    lengths,
    st.integers(1, 12),
    st.sampled_from([1, 5, 10, 500]),
    st.sampled_from([0, 0.5]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(SCHEMES),
)
def test_every_sample_comes_once_or_groups_are_full(
    of, batch_size, buckets, ratio, shuffle, average, shards, scheme
):
    sampler = FixedBucketSampler(
        of, batch_size, buckets, None, ratio, shuffle, average, shards, scheme
    )
    for _ in range(2):
        batches = list(sampler)
        assert len(batches) == len(sampler)
        if shards:
            assert all(len(group) == shards for group in batches)
            batches = list(chain.from_iterable(batches))
            assert sorted({i for batch in batches for i in batch}) == list(range(len(of)))
        else:
            assert sorted(i for batch in batches for i in batch) == list(range(len(of)))
        if not average:
            assert all(
                0 < len(batch) <= max(batch_size, max(sampler._bucket_batch_sizes))
                for batch in batches
            )


@given(st.integers(1, 8), st.integers(1, 9))
def test_fewer_batches_than_shards_lose_none(batches, shards):
    sampler = FixedBucketSampler([1] * batches, 1, num_buckets=1, num_shards=shards)
    groups = list(sampler)
    # the original gives three batches to four devices as one
    assert all(len(group) == shards for group in groups)
    assert {batch[0] for group in groups for batch in group} == set(range(batches))


@given(lengths, st.integers(1, 20))
def test_assigning_is_what_looking_at_every_bucket_would_say(of, count):
    table = np.asarray(of)
    keys = sorted(set(nlp.data.ConstWidthBucket()(table.max(0), table.min(0), count)))
    buckets = assigned(keys, table)
    for number, members in enumerate(buckets):
        for i in members:
            spare = [np.subtract(key, of[i]) for key in keys]
            fitting = [(int(np.sum(s)), k) for k, s in enumerate(spare) if np.all(s >= 0)]
            assert min(fitting)[1] == number


def test_numpys_seed_gives_the_originals_order():
    np.random.seed(3)
    infos, samples = [(0, 0), (0, 2), (0, 4)], [0, 1, 2, 3, 4]
    np.random.shuffle(infos)
    np.random.shuffle(samples)
    np.random.seed(3)
    sampler = FixedBucketSampler([1] * 5, 2, num_buckets=1, shuffle=True)
    assert list(sampler) == [samples[begin : begin + 2] for _, begin in infos]


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=120),
    st.integers(1, 9),
    st.sampled_from([1, 1.5, 2, 2.7, 100]),
    st.booleans(),
    st.booleans(),
)
def test_sorted_buckets_give_each_sample_once_and_know_their_length(
    keys, batch_size, mult, reverse, shuffle
):
    sampler = nlp.data.SortedBucketSampler(keys, batch_size, mult, reverse, shuffle)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(keys)))
    # the original counts wrongly when a window does not divide into batches
    assert len(batches) == len(sampler)
    for batch in batches:
        assert [keys[i] for i in batch] == sorted((keys[i] for i in batch), reverse=reverse)


@given(st.integers(1, 60), st.data(), st.booleans(), st.integers(1, 3))
def test_parts_are_disjoint_and_cover_everything(length, data, shuffle, repeat):
    parts = data.draw(st.integers(1, length))
    samplers = [
        SplitSampler(length, parts, i, repeat=repeat, shuffle=shuffle) for i in range(parts)
    ]
    drawn = [list(sampler) for sampler in samplers]
    assert [len(part) for part in drawn] == [len(sampler) for sampler in samplers]
    assert sorted(chain.from_iterable(drawn)) == sorted(list(range(length)) * repeat)
    assert all(part.count(i) == repeat for part in drawn for i in part)
    sizes = [len(part) for part in drawn]
    assert sizes == sorted(sizes, reverse=True)
    if not shuffle:
        assert drawn[0] == list(range(sizes[0] // repeat)) * repeat


@given(st.integers(1, 60), st.data())
def test_even_parts_are_equally_large_and_still_cover_everything(length, data):
    parts = data.draw(st.integers(1, length))
    samplers = [SplitSampler(length, parts, i, even_size=True) for i in range(parts)]
    drawn = [list(sampler) for sampler in samplers]
    assert (
        {len(part) for part in drawn}
        == {len(sampler) for sampler in samplers}
        == {-(-length // parts)}
    )
    assert set(chain.from_iterable(drawn)) == set(range(length))
