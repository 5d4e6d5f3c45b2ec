"""gluon's DataLoader as its scripts know it: arguments, order, containers, quirks;
and what no longer goes wrong.
"""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import threading
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_loader.compat import gluon
from async_loader.compat.gluon.data import batchify
from async_loader.compat.gluon.data.dataloader import LoaderTimeout

ArrayDataset = gluon.data.ArrayDataset
DataLoader = gluon.data.DataLoader
SimpleDataset = gluon.data.SimpleDataset

KINDS = {
    "in bulk": {"num_workers": 2},  # if the dataset is arrays; otherwise these are processes
    "inline": {"try_nopython": False},
    "processes": {"num_workers": 2, "try_nopython": False},
    "threads": {"num_workers": 2, "thread_pool": True, "try_nopython": False},
}
every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name) for name, kind in KINDS.items()]
)


def lists(batches):
    """Return batches as nested Python lists."""
    return [lists(batch) if isinstance(batch, list) else batch.tolist() for batch in batches]


class Failing:
    """Items are their index, except item 3, which is an error."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == 3:
            raise KeyError("boom")
        return i


# -- arguments -------------------------------------------------------------------------------------


def test_the_arguments_are_the_originals_in_the_originals_order():
    names = list(inspect.signature(DataLoader).parameters)
    assert names == [
        "dataset",
        "batch_size",
        "shuffle",
        "sampler",
        "last_batch",
        "batch_sampler",
        "batchify_fn",
        "num_workers",
        "pin_memory",
        "pin_device_id",
        "prefetch",
        "thread_pool",
        "timeout",
        "try_nopython",
    ]
    assert inspect.signature(DataLoader).parameters["timeout"].default == 120


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "neither batch_size nor batch_sampler"),
        ({"batch_size": 2, "sampler": range(3), "shuffle": True}, "sampler decides"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler decides"),
        ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler decides"),
        ({"batch_sampler": [[0]], "sampler": range(3)}, "batch_sampler decides"),
        ({"batch_sampler": [[0]], "last_batch": "keep"}, "batch_sampler decides"),
        ({"batch_size": 2, "last_batch": "drop"}, "last_batch is 'drop'"),
    ],
)
def test_arguments_that_exclude_each_other_are_value_errors(arguments, text):
    with pytest.raises(ValueError, match=text):
        DataLoader(range(3), **arguments)


# -- what comes out --------------------------------------------------------------------------------


@every_kind
def test_fields_and_rows_in_order_and_the_last_batch_as_it_is(kind):
    x, y = np.random.default_rng(0).random((1025, 2)), np.arange(1025)
    for field, loader in (
        (None, DataLoader(SimpleDataset(x), 1024, **kind)),
        (0, DataLoader(ArrayDataset(x, y), 1024, **kind)),
    ):
        batches = list(loader)
        assert all(type(batch) is (torch.Tensor if field is None else list) for batch in batches)
        xs = batches if field is None else [batch[0] for batch in batches]
        assert [one.shape for one in xs] == [(1024, 2), (1, 2)]
        assert torch.cat(xs).equal(torch.from_numpy(x))
        assert xs[0].dtype == torch.float64
        assert len(loader) == 2
    assert torch.cat([batch[1] for batch in batches]).equal(torch.from_numpy(y))


@every_kind
def test_transforms_run_where_the_work_is(kind):
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20)
    dataset = (
        ArrayDataset(x, y)
        .transform_first(lambda one: one * 2)
        .filter(lambda sample: sample[1] % 3 > 0)
    )
    batches = list(DataLoader(dataset, 8, **kind))
    kept = y[y % 3 > 0]
    assert torch.cat([batch[0] for batch in batches]).equal(torch.from_numpy(x[kept] * 2))
    assert torch.cat([batch[1] for batch in batches]).tolist() == kept.tolist()


@every_kind
@pytest.mark.parametrize(
    ("last_batch", "counts"), [("keep", [4, 4]), ("discard", [3, 3]), ("rollover", [3, 3, 4])]
)
def test_last_batch_and_len_epoch_by_epoch(kind, last_batch, counts):
    loader = DataLoader(np.arange(10), 3, last_batch=last_batch, **kind)
    seen = []
    for count in counts:
        assert len(loader) == count
        epoch = lists(loader)
        assert len(epoch) == count
        seen += list(chain.from_iterable(epoch))
    if last_batch == "rollover":
        assert seen == [i % 10 for i in range(30)]


@every_kind
def test_shuffling_follows_numpys_seed_and_differs_by_epoch(kind):
    loader = DataLoader(ArrayDataset(np.arange(50), np.arange(50) * 2), 7, shuffle=True, **kind)

    def epoch(seed):
        np.random.seed(seed)
        batches = list(loader)
        assert all(batch[1].equal(batch[0] * 2) for batch in batches)
        return torch.cat([batch[0] for batch in batches]).tolist()

    assert epoch(1) == epoch(1) != epoch(2)
    assert sorted(epoch(3)) == list(range(50))


@every_kind
def test_a_batchify_fn_gives_what_it_likes(kind):
    texts = [(np.arange(i + 1), f"text {i}") for i in range(5)]
    grouped = list(
        DataLoader(
            texts, 2, batchify_fn=batchify.Group(batchify.Pad(val=-1), batchify.AsList()), **kind
        )
    )
    assert type(grouped[0]) is tuple
    assert grouped[0][0].tolist() == [[0, -1], [0, 1]]
    assert grouped[2][1] == ["text 4"]
    ragged = list(DataLoader(texts, 2, batchify_fn=lambda data: [one[0] for one in data], **kind))
    # unchanged; only the default function's batches become tensors
    assert type(ragged[0][0]) is np.ndarray
    assert [one.tolist() for one in ragged[0]] == [[0], [0, 1]]
    shared = list(
        DataLoader(
            SimpleDataset([one[0][:1] for one in texts]),
            2,
            batchify_fn=gluon.default_mp_batchify_fn,
            **kind,
        )
    )
    assert lists(shared) == [[[0], [0]], [[0], [0]], [[0]]]


def test_pinned_batches_become_lists(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    texts = [([1], "a"), ([2], "b")]
    batch = next(
        iter(
            DataLoader(
                texts,
                2,
                batchify_fn=batchify.Group(batchify.Stack(), batchify.AsList()),
                pin_memory=True,
            )
        )
    )
    assert type(batch) is list
    assert batch[1] == ["a", "b"]
    assert len(pinned) == 1


# -- in bulk ---------------------------------------------------------------------------------------

fields = st.lists(
    st.tuples(
        st.sampled_from(["u1", "i2", "i8", "f4", "f8", "?"]),
        st.lists(st.integers(0, 3), max_size=2),
    ),
    min_size=1,
    max_size=3,
)


@given(fields, st.integers(1, 20), st.integers(1, 6), st.booleans(), st.data())
def test_the_bulk_loader_gives_exactly_what_the_python_loader_gives(
    kinds, length, batch_size, sampled, data
):
    rng = np.random.default_rng(length)
    arrays = [(rng.random((length, *shape)) * 100).astype(dtype) for dtype, shape in kinds]
    arrays = [one[:, ::-1] if one.ndim > 1 and data.draw(st.booleans()) else one for one in arrays]
    dataset = ArrayDataset(
        *(torch.from_numpy(one.copy()) if data.draw(st.booleans()) else one for one in arrays)
    )
    if sampled:
        dataset = dataset.take(max(1, length - 2)).shard(2, 0)
    batches = []
    for try_nopython in (None, False):
        np.random.seed(length)
        loader = DataLoader(dataset, batch_size, shuffle=True, try_nopython=try_nopython)
        batches.append([batch if isinstance(batch, list) else [batch] for batch in loader])
    assert len(batches[0]) == len(batches[1])
    for bulk, one_by_one in zip(*batches, strict=True):
        assert [a.dtype for a in bulk] == [b.dtype for b in one_by_one]
        assert all(a.equal(b) for a, b in zip(bulk, one_by_one, strict=True))


def test_try_nopython_demands_forbids_or_finds_out():
    class Counting(np.ndarray):
        asked = 0

        def __getitem__(self, i):
            Counting.asked += 1
            return np.ndarray.__getitem__(self, i)

    arrays = ArrayDataset(np.arange(10), torch.arange(10))
    threads = {"num_workers": 2, "thread_pool": True}
    assert len(list(DataLoader(arrays, 5, try_nopython=True, **threads))) == 2
    slow = ArrayDataset(np.arange(10).view(Counting))
    assert lists(DataLoader(slow, 5)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert Counting.asked == 10
    with pytest.raises(RuntimeError, match=r"dataset: it is Counting, not an array or a tensor"):
        DataLoader(slow, 5, try_nopython=True, **threads)
    group = batchify.Group(batchify.AsList())
    with pytest.raises(RuntimeError, match=r"batchify_fn: Group is Python"):
        DataLoader(arrays, 5, batchify_fn=group, try_nopython=True, **threads)
    # no warning without workers, as in the original
    assert lists(DataLoader(slow, 5, try_nopython=True))
    grouped = DataLoader(
        [(1, "a")], 1, batchify_fn=batchify.Group(batchify.Stack(), batchify.AsList()), **threads
    )
    assert next(iter(grouped))[1] == ["a"]  # the original fails to fall back from such a function


# -- iterators -------------------------------------------------------------------------------------


@every_kind
def test_several_live_iterators_share_the_workers(kind):
    loader = DataLoader(np.arange(12), 3, **kind)
    outer = []
    for batch in loader:
        outer.append(batch.tolist())
        assert list(chain.from_iterable(lists(loader))) == list(range(12))
    assert list(chain.from_iterable(outer)) == list(range(12))
    both = zip(loader, loader, strict=True)
    assert all(a.equal(b) for a, b in both)


# -- what goes wrong -------------------------------------------------------------------------------


@every_kind
def test_an_error_comes_as_it_is_and_the_workers_go_on(kind):
    loader = DataLoader(Failing(), 2, **kind)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(KeyError, match="boom"):
        next(batches)
    assert next(batches).tolist() == [4, 5]
    assert next(iter(loader)).tolist() == [0, 1]  # the original's pool has ended by now


def test_a_timeout_leaves_the_pool_and_the_iterator_whole():
    release = threading.Event()

    class Waiting:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            if i == 1:
                release.wait(60)
            return i

    def come(batches, count):
        """Take the next ``count`` batches, with no time limit."""
        got = []
        while len(got) < count:
            with contextlib.suppress(multiprocessing.TimeoutError):
                got += next(batches).tolist()
        return got

    loader = DataLoader(Waiting(), 1, num_workers=1, thread_pool=True, timeout=0.05)
    batches = iter(loader)
    assert come(batches, 1) == [0]
    for _ in range(2):
        with pytest.raises(multiprocessing.TimeoutError, match="no batch within") as late:
            next(batches)
    assert isinstance(late.value, LoaderTimeout)
    # Python's TimeoutError, which multiprocessing's is not
    assert isinstance(late.value, TimeoutError)
    release.set()
    assert come(batches, 3) == [1, 2, 3]
    again = iter(loader)
    assert come(again, 4) == [0, 1, 2, 3]
    assert list(again) == list(batches) == []


def test_random_numbers_in_workers_differ_and_follow_numpys_seed():
    class Drawing:
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return np.random.randint(1 << 60)

    def epochs(seed):
        np.random.seed(seed)
        loader = DataLoader(Drawing(), 1, num_workers=2)
        return [[batch.item() for batch in loader] for _ in range(2)]

    first = epochs(1)
    assert len({*first[0], *first[1]}) == 16  # the original draws the same ones in every worker
    assert epochs(1) == first  # whichever worker made which batch
    assert not {*epochs(2)[0]} & {*first[0]}
    np.random.seed(3)
    order = np.random.permutation(8).tolist()
    np.random.seed(3)
    assert lists(DataLoader(range(8), 8, shuffle=True)) == [order]  # no number was drawn for it
