"""gluonnlp's ShardedDataLoader and its batchify functions,
and defects of the original that are fixed.
"""

from __future__ import annotations

import collections
import inspect

import numpy as np
import pytest
import torch

from async_loader.compat import gluon
from async_loader.compat import gluonnlp as nlp
from async_loader.compat.gluonnlp.data import batchify as bf

ShardedDataLoader = nlp.data.ShardedDataLoader

KINDS = {
    "inline": {},
    "one process": {"num_workers": 1},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 3, "thread_pool": True},
}
every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()]
)

X, Y = np.random.default_rng(0).random((50, 3)), np.arange(50)


def test_the_arguments_are_the_originals_in_the_originals_order():
    names = list(inspect.signature(gluon.data.DataLoader).parameters)[:12]
    names.remove("pin_device_id")
    assert list(inspect.signature(ShardedDataLoader).parameters) == names
    for wrong in (
        {},
        {"batch_sampler": [[0]], "batch_size": 1},
        {"batch_size": 1, "shuffle": True, "sampler": [0]},
    ):
        with pytest.raises(ValueError, match=r"batch_sampler|sampler decides"):
            ShardedDataLoader(X, **wrong)


@every_kind
@pytest.mark.parametrize("in_bulk", [True, False])
def test_each_batch_is_a_list_of_shards_and_the_last_one_begins_earlier(kind, in_bulk):
    sampler = nlp.data.FixedBucketSampler([1] * 50, 4, num_buckets=1, num_shards=4)
    dataset = gluon.data.ArrayDataset(X, Y if in_bulk else [int(y) for y in Y])
    loader = ShardedDataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=kind.get("num_workers", 0),
        thread_pool="thread_pool" in kind,
    )
    batches = list(loader)
    assert len(batches) == len(loader) == 4
    assert all(type(batch) is list and len(batch) == 4 for batch in batches)
    begins = [range(0, 16, 4), range(16, 32, 4), range(32, 48, 4), range(36, 52, 4)]
    for batch, rows in zip(batches, begins, strict=True):
        for (x, y), begin in zip(batch, rows, strict=True):
            assert y.tolist() == list(range(begin, min(begin + 4, 50)))
            assert x.equal(torch.from_numpy(X[y]))


def test_a_batchify_fn_makes_each_shard():
    samples = [(list(range(1 + i % 3)), f"text {i}") for i in range(6)]
    fn = bf.Tuple(bf.Pad(pad_val=0, ret_length=True), bf.List())
    loader = ShardedDataLoader(
        samples, batch_sampler=[[[0, 1], [2, 3]]], batchify_fn=fn, num_workers=1
    )
    (((padded, length), texts), _) = next(iter(loader))
    assert padded.tolist() == [[0, 0], [0, 1]]
    assert length.tolist() == [1, 2]
    assert texts == ["text 0", "text 1"]


# -- batchify --------------------------------------------------------------------------------------


def test_pad_along_one_axis():
    with pytest.warns(UserWarning, match="pad_val is not given"):
        pad = bf.Pad()
    assert pad([[1, 2, 3], [4]]).tolist() == [[1, 2, 3], [4, 0, 0]]
    batch, lengths = bf.Pad(axis=1, pad_val=-1, ret_length=True, dtype="float32", round_to=4)(
        [np.ones((2, 3)), np.ones((2, 5))]
    )
    assert batch.shape == (2, 2, 8)
    assert batch.dtype == torch.float32
    assert batch[0, :, 3:].eq(-1).all()
    assert lengths.tolist() == [3, 5]
    assert lengths.dtype == torch.int32
    with pytest.raises(ValueError, match="only axis 0 is padded"):
        bf.Pad(pad_val=0)([np.ones((2, 3)), np.ones((2, 5))])
    with pytest.raises(NotImplementedError, match="Tuple"):
        bf.Pad(pad_val=0)([(1, 2)])
    with pytest.raises(AssertionError, match="axis is '0'"):
        bf.Pad(axis="0", pad_val=0)


def test_containers_of_fields():
    Sample = collections.namedtuple("Sample", "x name")
    samples = [Sample(1, "a"), Sample(2, "b")]
    for info in (
        {"x": bf.Stack(), "name": bf.List()},
        [("x", bf.Stack()), ("name", bf.List())],
        [bf.Stack(), bf.List()],
    ):
        batch = bf.NamedTuple(Sample, info)(samples)
        assert type(batch) is Sample
        assert (batch.x.tolist(), batch.name) == ([1, 2], ["a", "b"])
    batch = bf.Dict({"x": bf.Stack()})([one._asdict() for one in samples])
    assert list(batch) == ["x"]
    assert batch["x"].tolist() == [1, 2]
    batch = bf.Tuple([bf.Stack(), bf.List()])(samples)
    assert (type(batch), batch[0].tolist(), batch[1]) == (tuple, [1, 2], ["a", "b"])
