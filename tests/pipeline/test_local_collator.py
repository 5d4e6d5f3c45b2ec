"""Batches of arrays that are copied into memory of the loader's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from async_loader.pipeline.batches.local_collator import LocalCollator
from async_loader.pipeline.batches.slot_allocator import SlotAllocator

KINDS = st.sampled_from(["int64", "float32", "bool", "uint8", "complex64"])
SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape, kind = draw(SHAPES), draw(KINDS)
    made = np.arange(int(np.prod(shape))).reshape(shape).astype(kind)
    return made.T if draw(st.booleans()) else made


NAMES = st.sampled_from(["a", "b", "c"])
FLAT = st.dictionaries(NAMES, arrays(), min_size=1, max_size=3)
BATCHES = st.one_of(FLAT, st.fixed_dictionaries({"a": FLAT, "b": arrays()}))


def value(of: Any) -> Any:
    assert of.layout is not None
    return of.layout.rebuild([view.copy() for view in of.layout.views(of.buffer.root)])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


@given(st.lists(BATCHES, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=12))
def test_each_batch_is_copied_as_it_is_whatever_batches_came_before(batches, order):
    collator = LocalCollator(SlotAllocator(2, 2, None, always_slots=False), None)
    for number in order:
        batch = batches[number % len(batches)]
        made = collator.ready(batch)
        assert same(value(made), batch)


def test_tensors_and_arrays_of_the_same_names_are_told_apart():
    import torch

    collator = LocalCollator(SlotAllocator(2, 2, None, always_slots=False), None)
    for batch in ({"a": np.arange(3)}, {"a": torch.arange(3) + 5}, {"a": np.arange(3)}):
        assert value(collator.ready(batch))["a"].tolist() == batch["a"].tolist()


def test_what_is_no_array_stays_as_it_is():
    collator = LocalCollator(SlotAllocator(2, 2, None, always_slots=False), None)
    collator.ready({"a": np.arange(3)})
    made = collator.ready({"a": "text"})
    assert made.tree == {"a": "text"}
    assert made.layout is None
