"""Subclasses of fastai's DataLoader as fastai and its users write them, each in a class of ours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from async_loader.compat.fastai import DataLoader, FakeLoader


def lists(loader):
    return [batch.tolist() for batch in loader]


class Pipeline:
    """Several functions as one callback, with a setup and a split."""

    def __init__(self, fs=None):
        self.fs = fs.fs if isinstance(fs, Pipeline) else list(fs or [])
        self.split_idx = None

    def setup(self, items):
        self.seen = items.one_batch()

    def __call__(self, x):
        for f in self.fs:
            x = f(x)
        return x


class Transformed(DataLoader):
    """Callbacks wrapped by a subclass before they reach the loader, and set up when it is built."""

    def __init__(self, dataset, bs=16, shuffle=False, num_workers=None, do_setup=True, **kwargs):
        names = ("after_item", "before_batch", "after_batch")
        for name in names:
            kwargs[name] = Pipeline(kwargs.get(name))
        super().__init__(dataset, bs=bs, shuffle=shuffle, num_workers=num_workers or 0, **kwargs)
        if do_setup:
            for name in names:
                kwargs[name].setup(self)

    def before_iter(self):
        super().before_iter()
        for name in ("after_item", "before_batch", "after_batch"):
            getattr(self, name).split_idx = getattr(self.dataset, "split_idx", None)

    def one_pass(self):
        return self.after_batch(self.do_batch([self.do_item(None)]))

    def new(self, dataset=None, cls=None, **kwargs):
        return super().new(dataset, cls, do_setup=False, **kwargs)


@pytest.mark.parametrize("number", [0, 2])
def test_transformed(number):
    class Split(list):
        split_idx = 1

    loader = Transformed(
        Split([1, 2, 3]), bs=2, num_workers=number, after_item=[lambda x: x + 1, float]
    )
    assert loader.one_pass().tolist() == [2]
    assert loader.after_item.seen.tolist() == [2, 3]
    assert lists(loader) == [[2, 3], [4]]
    assert loader.after_item.split_idx == 1
    again = loader.new(bs=3)
    assert isinstance(again.after_item, Pipeline)
    assert not hasattr(again.before_batch, "seen")


class SortedByLength(DataLoader):
    """shuffle_fn and get_idxs that give iterators,
    and items that are remembered from the sorting.
    """

    def __init__(self, dataset, **kwargs):
        self.lengths = [len(item) for item in dataset]
        super().__init__(dataset, **kwargs)

    def get_idxs(self):
        idxs = super().get_idxs()
        return idxs if self.shuffle else sorted(idxs, key=lambda i: -self.lengths[i])

    def shuffle_fn(self, idxs):
        return itertools.chain(sorted(idxs, key=lambda i: -self.lengths[i]), ())


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_sorted_by_length(number, shuffle):
    texts = [list(range(n)) for n in (1, 4, 2, 3)]
    loader = SortedByLength(
        texts, bs=2, shuffle=shuffle, num_workers=number,
        before_batch=lambda b: [len(item) for item in b], create_batch=torch.tensor,
    )  # fmt: skip
    assert lists(loader) == [[4, 3], [2, 1]]


class LanguageModel(DataLoader):
    """n assigned after the constructor, a shuffle_fn with side effects,
    and items that refer to several of the dataset.
    """

    def __init__(self, dataset, bs=2, seq_len=3, num_workers=0, **kwargs):
        super().__init__(dataset=dataset, bs=bs, num_workers=num_workers, **kwargs)
        self.seq_len = seq_len
        self.chunks = list(dataset)
        self.make_stream()
        self.n = len(self.stream) // seq_len // bs * bs

    def make_stream(self):
        self.stream = torch.tensor(list(itertools.chain.from_iterable(self.chunks)))

    def shuffle_fn(self, idxs):
        self.chunks.reverse()
        self.make_stream()
        return idxs

    def create_item(self, seq):
        if seq is None:
            seq = 0
        if seq >= self.n:
            raise IndexError
        start = (seq % self.bs * (self.n // self.bs) + seq // self.bs) * self.seq_len
        return self.stream[start : start + self.seq_len]

    def new(self, dataset=None, **kwargs):
        return super().new(dataset=dataset, seq_len=self.seq_len, **kwargs)


@pytest.mark.parametrize("number", [0, 2])
def test_language_model(number):
    texts = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    loader = LanguageModel(texts, shuffle=True, num_workers=number)
    assert len(loader) == 2
    assert lists(loader) == [[[6, 7, 8], [0, 1, 2]], [[9, 10, 11], [3, 4, 5]]]
    assert lists(loader) == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]
    assert lists(loader.new(num_workers=0, shuffle=False))[0] == [[0, 1, 2], [6, 7, 8]]


class Weighted(DataLoader):
    """Indices drawn in get_idxs, as an array."""

    def __init__(self, dataset, weights, **kwargs):
        super().__init__(dataset, **kwargs)
        self.weights = np.array(weights) / sum(weights)

    def get_idxs(self):
        if self.n == 0:
            return []
        return np.random.default_rng(0).choice(self.n, self.n, p=self.weights)


class Partial(DataLoader):
    """An epoch that is shorter than the dataset, with its own length."""

    def __init__(self, dataset, partial_n, **kwargs):
        super().__init__(dataset, **kwargs)
        self.partial_n = min(partial_n, self.n)

    def get_idxs(self):
        return super().get_idxs()[: self.partial_n]

    def __len__(self):
        return self.partial_n // self.bs + (
            0 if self.drop_last or self.partial_n % self.bs == 0 else 1
        )


@pytest.mark.parametrize("number", [0, 2])
def test_weighted_and_partial(number):
    assert lists(Weighted(range(4), [0, 0, 1, 0], bs=2, num_workers=number)) == [[2, 2], [2, 2]]
    loader = Partial(range(10), 5, bs=2, num_workers=number)
    assert lists(loader) == [[0, 1], [2, 3], [4]]
    assert len(loader) == 3


class Distributed(DataLoader):
    """A loader around another one that does not call the constructor of its class."""

    _default = "dl"

    def __init__(self, dl, rank, world_size):
        self.dl, self.rank, self.world_size = dl, rank, world_size
        self.bs = dl.bs
        self.device = dl.device
        self.num_workers = dl.num_workers
        self.drop_last = dl.drop_last
        self.dataset, self.offs = dl.dataset, dl.offs
        fake = dl.fake_l
        self.fake_l = FakeLoader(
            self,
            fake.pin_memory,
            fake.num_workers,
            fake.timeout,
            fake.persistent_workers,
            fake.pin_memory_device,
        )

    def __len__(self):
        return -(-len(self.dl) // self.world_size)

    def get_idxs(self):
        idxs = list(self.dl.get_idxs())
        self.n = len(idxs) // self.world_size
        return idxs[self.rank * self.n : (self.rank + 1) * self.n]

    def before_iter(self):
        self.dl.before_iter()

    def randomize(self):
        self.dl.randomize()

    def after_batch(self, b):
        self.ended = False
        return self.dl.after_batch(b)

    def after_iter(self):
        self.ended = True

    def create_batches(self, samps):
        return self.dl.create_batches(samps)


@pytest.mark.parametrize("number", [0, 2])
def test_distributed(number):
    inner = DataLoader(range(8), bs=2, num_workers=number, after_item=lambda x: x + 1)
    ranks = [Distributed(inner, rank, 2) for rank in range(2)]
    assert [lists(rank) for rank in ranks] == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert [rank.ended for rank in ranks] == [True, True]
    assert ranks[0].shuffle is False
