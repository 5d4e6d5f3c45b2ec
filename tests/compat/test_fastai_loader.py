"""fastai's DataLoader in the drop-in module, without workers."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import IterableDataset

from async_loader.compat.fastai import DataLoader, SkipItemException, stop

LETTERS = list("abcdefghijklmnopqrstuvwxyz")


class Image(torch.Tensor):
    pass


def lists(loader):
    return [batch.tolist() for batch in loader]


class Random(DataLoader):
    """Yield random numbers until one is large."""

    def create_item(self, s):
        number = random.random()
        return number if number < 0.95 else stop()


# -- what an epoch is ------------------------------------------------------------------------------


def test_batches_of_a_size_and_what_is_left_over():
    loader = DataLoader(LETTERS, bs=4, drop_last=True, after_iter=lambda: ends.append(1))
    ends = []
    for _ in range(2):
        assert [len(batch) for batch in loader] == [4] * 6
    assert ends == [1, 1]
    assert len(loader) == 6
    last = list(DataLoader(range(10), bs=4))[-1]
    assert last.tolist() == [8, 9]
    assert len(DataLoader(range(10), batch_size=4)) == 3
    assert DataLoader(range(10), bs=2, batch_size=4).bs == 4


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_iterable_dataset_may_be_gone_through_again(drop_last):
    loader = DataLoader(Stream(), bs=4, drop_last=drop_last)
    whole = [[0, 1, 2, 3], [4, 5]][: 1 if drop_last else 2]
    assert lists(loader) == lists(loader) == whole
    with pytest.raises(TypeError, match="give n"):
        len(loader)


def test_skipped_items_are_made_up_for_by_later_ones():
    def odd(x):
        if x % 3 == 0:
            raise SkipItemException
        return None if x == 4 else x

    assert lists(DataLoader(range(10), bs=3, after_item=odd)) == [[1, 2, 5], [7, 8]]
    assert lists(DataLoader(range(10), bs=3, create_item=odd)) == [[1, 2, 5], [7, 8]]
    # the number of skipped items is unknown beforehand
    assert len(DataLoader(range(10), bs=3, after_item=odd)) == 4


# -- order and seeds -------------------------------------------------------------------------------


def test_the_same_seed_shuffles_as_fastai_does():
    random.seed(3)
    loader = DataLoader(list(range(8)), bs=8, shuffle=True)
    state = random.getstate()
    # Of fastai 2.8.12 with Python 3.11.
    assert lists(loader) == [[4, 2, 5, 6, 3, 0, 7, 1]]
    assert lists(loader) == [[4, 2, 7, 1, 6, 0, 3, 5]]
    assert random.getstate() == state


def test_the_order_of_calls():
    calls = []

    def spy(name, result=None):
        def call(*args):
            calls.append(name)
            return result(*args) if result else (args[0] if args else None)

        return call

    loader = DataLoader(
        list(range(3)),
        bs=2,
        shuffle=True,
        **{
            name: spy(name)
            for name in (
                "before_iter",
                "after_item",
                "before_batch",
                "after_batch",
                "after_iter",
                "wif",
            )
        },
        shuffle_fn=spy("shuffle_fn"),
        retain=spy("retain"),
        create_batch=spy("create_batch", torch.tensor),
        create_item=spy("create_item"),
    )
    list(loader)
    batch = ["before_batch", "create_batch", "retain", "after_batch"]
    item = ["create_item", "after_item"]
    assert calls == ["before_iter", "shuffle_fn", *item, *item, *batch, *item, *batch, "after_iter"]


# -- callbacks -------------------------------------------------------------------------------------


def test_callbacks_change_what_they_should():
    assert lists(
        DataLoader(range(4), bs=2, after_item=lambda x: x + 1, after_batch=lambda b: b * 2)
    ) == [[2, 4], [6, 8]]
    assert list(DataLoader(range(4), bs=2, before_batch=lambda b: b[:1], create_batch=tuple)) == [
        (0,),
        (2,),
    ]
    assert lists(DataLoader(range(4), bs=2, get_idxs=lambda: [3, 3, 0])) == [[3, 3], [0]]
    assert lists(DataLoader(range(4), bs=2, sample=lambda: iter([2, 1]))) == [[2, 1]]
    assert list(DataLoader(range(4), bs=2, create_batches=lambda samps: iter("xy"))) == ["x", "y"]
    assert list(DataLoader(range(4), bs=2, do_batch=len)) == [2, 2]
    assert list(DataLoader(range(2), bs=2, retain=lambda res, b: b)) == [[0, 1]]
    assert lists(
        DataLoader(range(4), bs=2, shuffle=True, shuffle_fn=lambda idxs: iter(idxs[::-1]))
    ) == [[3, 2], [1, 0]]


def test_a_bound_method_is_bound_to_the_loader_and_new_keeps_it():
    class Other:
        def double(self, x):
            seen.append(self)
            return 2 * x

    seen = []
    loader = DataLoader([1, 2], bs=2, after_item=Other().double)
    assert lists(loader) == [[2, 4]]
    assert seen == [loader, loader]
    again = loader.new()  # the original forgets it
    assert lists(again) == [[2, 4]]
    assert seen[-1] is again


def test_overridden_methods():
    class Scaled(DataLoader):
        def __init__(self, dataset, scale, **kwargs):
            self.scale = scale
            super().__init__(dataset, **kwargs)

        def after_item(self, x):
            return x * self.scale

        def before_iter(self):
            self.epochs = getattr(self, "epochs", 0) + 1

        def chunkify(self, b):
            return super().chunkify(x for x in b if x)

    loader = Scaled([0, 1, 2, 3], 10, bs=2)
    assert lists(loader) == lists(loader) == [[10, 20], [30]]
    assert loader.epochs == 2


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"drop_last": True}, AssertionError, "give bs"),
        ({"dataset": iter([1]), "shuffle": True}, ValueError, "no order to shuffle"),
        ({"bs": 0}, ValueError, "bs is 0"),
        ({"num_workers": -1}, ValueError, "num_workers is -1"),
        ({"timeout": -1}, ValueError, "timeout is -1"),
    ],
)
def test_what_cannot_work_is_refused(keywords, error, words):
    with pytest.raises(error, match=words):
        DataLoader(**{"dataset": [1], **keywords})


# -- the rest of the surface -----------------------------------------------------------------------


def test_attributes_are_those_of_the_dataset():
    class Dataset(list):
        public, _private = 5, 6

    loader = DataLoader(Dataset([1, 2, 3]), bs=1)
    assert (loader.public, loader._private, loader.pop()) == (5, 6, 3)
    assert {"public", "pop", "one_batch"} <= set(dir(loader))
    with pytest.raises(AttributeError, match="'Dataset' object has no attribute 'missing'"):
        _ = loader.missing
    with pytest.raises(AttributeError, match="DataLoader has no attribute 'missing'"):
        _ = DataLoader(bs=1).missing


def test_new_keeps_what_it_was_given():
    loader = DataLoader(
        range(10),
        bs=2,
        num_workers=2,
        shuffle=True,
        n=4,
        timeout=3,
        device="cpu",
        persistent_workers=True,
        pin_memory_device="cuda",
        after_item=lambda x: -x,
    )
    again = loader.new(bs=4, shuffle=False)
    assert (again.bs, again.shuffle, again.n, again.timeout, again.device) == (
        4,
        False,
        4,
        3,
        torch.device("cpu"),
    )
    fake = again.fake_l
    assert (fake.num_workers, fake.persistent_workers, fake.pin_memory_device, fake.timeout) == (
        2,
        True,
        "cuda",
        3,
    )
    with again.fake_l.no_multiproc():
        assert lists(again) == [[0, -1, -2, -3]]
    assert loader.new(range(7)).n == 7
    assert type(loader.new(cls=Random)) is Random


def test_the_device():
    class Transform:
        def to(self, device):
            self.device = device

    class Parametrised:
        parameters = "mean"
        mean = torch.zeros(2)

    class Pipeline(list):
        @property
        def fs(self):
            return self

        def __call__(self, batch):
            return batch

    pipeline = Pipeline([Transform(), Parametrised()])
    loader = DataLoader(
        [(torch.zeros(2).as_subclass(Image), {"a": torch.ones(1)}, "x")] * 2,
        bs=2,
        after_batch=pipeline,
    )
    assert loader.device is None
    loader.to("meta")
    assert loader.device == torch.device("meta")
    assert pipeline[0].device == "meta"
    assert pipeline[1].mean.device.type == "meta"
    batch = loader.one_batch()
    assert type(batch) is tuple
    assert type(batch[0]) is Image
    assert [batch[0].device.type, batch[1]["a"].device.type, batch[2]] == [
        "meta",
        "meta",
        ("x", "x"),
    ]


def test_loops_within_loops():
    for dataset in (list(range(4)), Stream()):
        loader = DataLoader(dataset, bs=2)
        whole = lists(DataLoader(dataset, bs=2))
        assert [(outer.tolist(), lists(loader)) for outer in loader] == [
            (batch, whole) for batch in whole
        ]
