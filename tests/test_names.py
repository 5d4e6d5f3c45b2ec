"""Short names of user objects, for messages."""

from __future__ import annotations

import functools
import inspect
import operator
import re

import numpy as np
import pytest

from async_loader import AsyncDataLoader, DataLoader, ReplayBuffer
from async_loader.feeder import Client, TableClient
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.name_hints import (
    ATTRIBUTES,
    attribute_remedy,
    by_name,
    describe,
    explain_wrong_attributes,
    explain_wrong_names,
    misplaced_fields,
)
from async_loader.replay.vector_writer import VectorWriter
from async_loader.replay.writer import LocalWriter
from async_loader.scale.client import ClusterClient
from async_loader.scale.table import ClusterTable


class Dataset:
    def __getitem__(self, i):
        return i

    def __call__(self):
        return 0

    def __repr__(self):
        raise AssertionError("a screenful")


def function():
    return 0


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        (function, r"^function \(.*test_names.py:\d+\)$"),
        (Dataset().__getitem__, r"^Dataset\.__getitem__ \(.*test_names.py:\d+\)$"),
        (Dataset, r"^test_names\.Dataset$"),
        (operator.add, "add$"),
        (
            functools.partial(Dataset().__getitem__, 3),
            r"^partial\(Dataset\.__getitem__ \(.*\), 3\)$",
        ),
        (np.zeros(1000), "^<ndarray>$"),
    ],
)
def test_objects_have_short_names(obj, text):
    assert re.search(text, describe(obj)), describe(obj)
    assert len(describe(obj)) < 300


# -- wrong names -----------------------------------------------------------------------------------


class Tank:
    @explain_wrong_names
    def __init__(self, capacity, schema=None, *, limiter=None, seed=None):
        """Doc."""
        self.capacity = capacity

    @explain_wrong_names
    def sample(self, batch_size, *, timeout_s=None):
        return _broken(batch_size)


def _broken(n):
    return n(1, 2, 3)


@explain_wrong_names
def wait(*, timeout_s=None):
    return timeout_s


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: wait(timeout=1), "wait() has no timeout: say timeout_s"),
        (lambda: Tank(buffer_size=3), "Tank() has no buffer_size: say capacity"),
        (lambda: Tank(10, sed=3), "Tank() has no sed: did you mean 'seed'?"),
        (lambda: Tank(10).sample(8, timeout=3), "Tank.sample() has no timeout: say timeout_s"),
        (
            lambda: Tank(10, None, 3, 4),
            "Tank() takes capacity, schema by place, and 4 values were given: name the others "
            "(limiter=, seed=)",
        ),
    ],
)
def test_a_wrong_name_is_answered_with_ours(call, text):
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == text
    assert caught.value.__suppress_context__


@explain_wrong_attributes
class Cistern:
    level = 3
    sample = None


def test_a_wrong_attribute_is_answered_with_ours():
    cistern = Cistern()
    assert cistern.level == 3
    assert not hasattr(cistern, "is_full")
    with pytest.raises(
        AttributeError,
        match=r"'Cistern' object has no attribute 'is_full': say stats\(\).full",
    ):
        cistern.is_full  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"'Cistern' object has no attribute 'levle'$"
    ) as caught:
        cistern.levle  # noqa: B018
    # Python's own "did you mean" reads these attributes
    assert (caught.value.name, caught.value.obj) == ("levle", cistern)


def test_a_hint_for_a_wrong_attribute_names_one_that_the_object_has():
    kinds = [
        AsyncDataLoader, DataLoader, ReplayBuffer, Client, ClusterClient, TableClient, ClusterTable,
        LocalWriter, RemoteWriter, VectorWriter,
    ]  # fmt: skip
    words = sorted({word for words, *_ in ATTRIBUTES for word in words})
    for kind in kinds:
        assert "__getattr__" in dir(kind)
        for word in words:
            remedy = attribute_remedy(kind, word)
            said = re.match(r"say ([a-z]\w*)\b(?!\.| =)", remedy)
            assert said is None or said[1] in {*dir(kind), "next", "len"}, (kind, word, remedy)
    assert "client.table(name)" in attribute_remedy(Client, "sample")
    assert attribute_remedy(TableClient, "extend") == "say writer().extend(...)"
    assert attribute_remedy(AsyncDataLoader, "reset") == ""
    assert attribute_remedy(AsyncDataLoader, "dataset") == ""
    assert attribute_remedy(ReplayBuffer, "dataset") == "say AsyncDataLoader(table, batch_size)"


def test_fields_given_by_position_are_refused_with_the_keyword_form():
    class Basin:
        @by_name
        def append(self, step=None, /, *misplaced, stream=None, **fields):
            if misplaced:
                raise misplaced_fields("Basin.append", misplaced)
            return step, fields

    assert list(inspect.signature(Basin.append).parameters) == ["self", "step", "stream", "fields"]
    assert list(inspect.signature(Basin().append).parameters) == ["step", "stream", "fields"]
    assert Basin().append({"x": 1}, y=2) == ({"x": 1}, {"y": 2})
    with pytest.raises(
        TypeError,
        match=r"^Basin\.append\(\) takes one step by place, .* 2 values .* as in append\(obs=",
    ):
        Basin().append(1, 2)
