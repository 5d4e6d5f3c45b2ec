"""fastai's DataLoader in the drop-in module, without workers."""

from __future__ import annotations

import contextlib
import pickle
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from async_loader.compat.fastai import DataLoader, FakeLoader, SkipItemException, stop
from async_loader.compat.fastai.parts import NAMES

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


def test_items_are_batches_without_a_batch_size():
    assert list(DataLoader(LETTERS)) == LETTERS
    assert len(DataLoader(LETTERS)) == 26
    assert DataLoader(LETTERS).prebatched
    shuffled = list(DataLoader(LETTERS, shuffle=True))
    assert shuffled != LETTERS
    assert sorted(shuffled) == LETTERS
    assert list(DataLoader(LETTERS, indexed=False)) == LETTERS
    arrays = list(DataLoader([np.zeros(2), (1, np.ones(1)), torch.ones(2)]))
    assert [torch.is_tensor(arrays[0]), torch.is_tensor(arrays[1][1])] == [True, True]
    assert next(iter(DataLoader([np.zeros(2)], create_batch=lambda b: b))).dtype == np.float64


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


def test_n_cuts_short():
    assert lists(DataLoader(range(10), bs=4, n=6)) == [[0, 1, 2, 3], [4, 5]]
    assert lists(DataLoader(iter(range(10)), bs=4, n=6)) == [[0, 1, 2, 3], [4, 5]]
    assert list(DataLoader(range(10), n=3)) == [0, 1, 2]
    with pytest.raises(IndexError):
        list(DataLoader(list(range(3)), bs=4, n=6))
    endless = iter(DataLoader(bs=2, indexed=True, create_item=lambda i: i))
    assert [next(endless).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]


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


def test_dicts_strings_and_one_shot_iterators():
    assert lists(DataLoader({0: 5, 1: 6}, bs=2)) == [[5, 6]]
    assert list(DataLoader("abcd", bs=2)) == [["a", "b"], ["c", "d"]]
    once = DataLoader((i for i in range(3)), bs=2)
    assert (lists(once), lists(once)) == ([[0, 1], [2]], [])


def test_stop_ends_the_stream():
    assert all(0 <= number < 0.95 for number in Random())
    assert all(len(batch) == 4 for batch in Random(bs=4, drop_last=True))
    left = iter(range(5))
    assert lists(DataLoader(bs=2, create_item=lambda s: next(left))) == [[0, 1], [2, 3], [4]]
    assert lists(DataLoader(range(9), bs=2, before_batch=lambda b: stop() if 4 in b else b)) == [
        [0, 1],
        [2, 3],
    ]


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


def test_the_learner_draws_from_torch_what_it_drew_with_fastai():
    torch.manual_seed(7)
    list(DataLoader([1], bs=1))
    # of fastai 2.8.12 with torch 2.13
    assert torch.rand(()).item() == pytest.approx(0.6592116951942444)


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


def test_an_epoch_broken_off_has_no_after_iter():
    ends = []
    loader = DataLoader(Stream(), bs=2, after_iter=lambda: ends.append(1))
    for _ in loader:
        break
    loader.one_batch()
    assert ends == []
    list(loader)
    assert ends == [1]


# -- callbacks -------------------------------------------------------------------------------------


def test_every_callback_may_be_a_keyword():
    assert set(NAMES) == set(DataLoader._methods)
    for name in NAMES:
        marker = partial(max, name)
        assert getattr(DataLoader([1], **{name: marker}), name) is marker
        assert not isinstance(getattr(DataLoader([1], **{name: None}), name), partial)


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


def test_an_unknown_keyword_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match="'afer_item': did you mean 'after_item'"):
        DataLoader([1], afer_item=len)
    with pytest.raises(TypeError, match="'num_worker': did you mean 'num_workers'"):
        DataLoader([1], num_worker=2)
    with pytest.raises(TypeError, match="it takes wif"):
        DataLoader([1], xyzzy=2)


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


def test_an_iterable_dataset_has_no_numbers():
    with pytest.raises(IndexError, match="item 3 of an iterable"):
        DataLoader(iter([1]), bs=1).create_item(3)


# -- the rest of the surface -----------------------------------------------------------------------


def test_one_batch():
    assert DataLoader(range(5), bs=2, num_workers=2).one_batch().tolist() == [0, 1]
    # the original is an AssertionError
    assert DataLoader(range(5), bs=2, timeout=1).one_batch().tolist() == [0, 1]
    assert DataLoader(iter([]), bs=2).one_batch() is None
    for empty in (DataLoader([], bs=1), DataLoader([1], bs=2, drop_last=True)):
        with pytest.raises(ValueError, match="does not contain any batches"):
            empty.one_batch()


def test_attributes_are_those_of_the_dataset():
    class Dataset(list):
        public, _private = 5, 6

    loader = DataLoader(Dataset([1, 2, 3]), bs=1)
    assert (loader.public, loader._private, loader.pop()) == (5, 6, 3)
    assert {"public", "pop", "one_batch"} <= set(dir(loader))
    with pytest.raises(
        AttributeError,
        match="neither DataLoader nor its dataset, Dataset, has an attribute 'missing'",
    ):
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


def test_the_fake_loader_says_how_many_workers_there_are():
    loader = DataLoader(range(4), bs=2, num_workers=3)
    fake = loader.fake_l
    assert (loader.num_workers, fake.num_workers, loader.offs) == (1, 3, 0)
    assert isinstance(fake, FakeLoader)
    assert (fake.dataset is fake, fake.d is loader, fake.default is loader) == (True, True, True)
    assert fake.multiprocessing_context is not None
    with contextlib.suppress(KeyError), fake.no_multiproc() as same:
        assert same is loader
        assert (fake.num_workers, fake.multiprocessing_context) == (0, None)
        assert lists(loader) == [[0, 1], [2, 3]]
        raise KeyError
    assert fake.num_workers == 3


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


def test_pinning_makes_a_tuple_of_a_list():
    batch = next(iter(DataLoader([[1, 2.0]] * 2, bs=2, pin_memory=True)))
    assert type(batch) is tuple


def test_types_are_kept():
    image = torch.zeros(2).as_subclass(Image)
    assert type(DataLoader([image] * 2, bs=2).one_batch()) is Image
    batch = DataLoader([(image, 1)] * 2, bs=2, after_batch=lambda b: b).one_batch()
    assert [type(part) for part in batch] == [Image, torch.Tensor]


def test_a_mismatch_is_explained():
    with pytest.raises(RuntimeError, match=r"field '1' .*in sample 1"):
        list(DataLoader([(1, torch.zeros(2)), (1, torch.zeros(3))], bs=2))


def test_loops_within_loops():
    for dataset in (list(range(4)), Stream()):
        loader = DataLoader(dataset, bs=2)
        whole = lists(DataLoader(dataset, bs=2))
        assert [(outer.tolist(), lists(loader)) for outer in loader] == [
            (batch, whole) for batch in whole
        ]


def test_pickling_also_after_a_break():
    for dataset in (list(range(4)), Stream()):
        loader = DataLoader(dataset, bs=2, shuffle=False)
        for _ in loader:
            break
        assert lists(pickle.loads(pickle.dumps(loader))) == lists(loader)
