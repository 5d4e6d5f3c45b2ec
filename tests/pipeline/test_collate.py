"""How samples become a batch: DI-engine's rules, a test each; fast path equals general path;
nothing is cast silently.
"""

from __future__ import annotations

import weakref
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import SchemaError
from async_loader.pipeline.batches import collate
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.schema import samples_of

Step = namedtuple("Step", "obs reward")


def general(samples):
    """By the general rules, as tensors."""
    return tree.transform(collate.collate(samples), tensors.as_tensor, leave=is_ignored)


def fast(samples):
    """Column by column into rows, as tensors; ``None`` when the samples have no fixed numeric
    shape.
    """
    schema = collate.schema_of(samples[0])
    if schema is None:
        return None
    layout = BatchLayout.contiguous(schema, len(samples))
    root = np.full(layout.nbytes, 0xA5, np.uint8)
    collate.fill(schema, samples, layout.views(root))
    return layout.rebuild([tensors.to_tensor(view) for view in layout.views(root)])


def both(samples):
    """The batch, which all ways must agree on."""
    expected = general(samples)
    assert_same(fast(samples), expected)
    return expected


def assert_same(one, other):
    assert tree.structure_of(one) == tree.structure_of(other)
    structure = tree.structure_of(one)
    for a, b in zip(tree.leaves(one, structure), tree.leaves(other, structure), strict=True):
        assert isinstance(a, torch.Tensor)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(a, b)


# -- the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda i, shape: torch.full(shape, i),
        lambda i, shape: np.full(shape, i, np.float32),
        lambda i, shape: {"x": (torch.full(shape, i),)},
    ],
    ids=["tensor", "array", "nested"],
)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 1), (1, 2)])
def test_a_sample_keeps_its_shape_in_the_batch(make, shape):
    batch = both([make(i, shape) for i in range(4)])
    column = batch["x"][0] if isinstance(batch, dict) else batch
    assert column.shape == (4, *shape)
    assert column.reshape(4, -1)[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.5, 1.5], torch.float32),
        ([1, 2], torch.int64),
        ([True, False], torch.bool),
        ([np.float64(0.5), np.float64(1.5)], torch.float64),
        ([np.float32(0.5), np.float32(1.5)], torch.float32),
        ([np.float16(0.5), np.float16(1.5)], torch.float16),
        ([np.int32(1), np.int32(2)], torch.int32),
        ([np.uint8(1), np.uint8(255)], torch.uint8),
        ([np.bool_(True), np.bool_(False)], torch.bool),
        ([np.zeros(2, np.uint16), np.ones(2, np.uint16)], torch.uint16),
        ([np.complex64(1j), np.complex64(2)], torch.complex64),
        ([torch.tensor(0.5), torch.tensor(1.5)], torch.float32),
        ([np.array(0.5), np.array(1.5)], torch.float64),
    ],
)
def test_python_floats_are_float32_ints_int64_and_numpy_keeps_its_dtypes(values, dtype):
    batch = both(values)
    assert batch.dtype == dtype
    assert batch.tolist() == [v.tolist() if hasattr(v, "tolist") else v for v in values]


def test_namedtuples_stay_and_other_sequences_become_lists():
    batch = both([Step((1, [2.0]), i) for i in range(2)])
    assert type(batch) is Step
    assert type(batch.obs) is list
    assert type(batch.obs[1]) is list
    assert batch.reward.tolist() == [0, 1]


def test_keys_with_the_prefix_are_left_as_lists_of_what_they_were():
    infos = [np.arange(2), {"deep": (1,)}, "text"]
    batch = general(
        [{"collate_ignore": info, "collate_ignore_too": i, "x": i} for i, info in enumerate(infos)]
    )
    assert all(a is b for a, b in zip(batch["collate_ignore"], infos, strict=True))
    assert batch["collate_ignore_too"] == [0, 1, 2]
    assert batch["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        None,
        {1},
        1j,
        np.array(["a", "b"]),
        np.array([object()]),
        np.datetime64("2026"),
        np.ones(2, np.longdouble),
    ],
    ids=["object", "None", "set", "complex", "strings", "objects", "datetime", "longdouble"],
)
def test_what_no_rule_covers_is_an_error_that_names_the_field_and_the_remedy(value):
    text = (
        r"sample 0 .* in field 'info.x', which cannot be collated: .* collate_ignore_.* collate_fn"
    )
    with pytest.raises(SchemaError, match=text):
        collate.collate([{"info": {"x": value}, "y": 1}] * 2)
    assert collate.schema_of({"x": value}) is None


# -- mixtures within a column: by promotion, never by cutting --------------------------------------


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([1, 0.5], torch.float32, [1, 0.5]),
        ([0.5, 1], torch.float32, [0.5, 1]),
        ([True, 2], torch.int64, [1, 2]),
        ([True, 0.5], torch.float32, [1, 0.5]),
        ([np.int64(1), np.float32(0.5)], torch.float32, [1, 0.5]),
        ([np.float64(0.25), 0.5], torch.float64, [0.25, 0.5]),
        ([np.uint8(255), 300], torch.int64, [255, 300]),
        ([np.uint8(255), np.int8(-1)], torch.int16, [255, -1]),
        ([np.float16(0.5), 100_000], torch.float32, [0.5, 100_000]),
        ([np.array(1), 2], torch.int64, [1, 2]),
        ([torch.tensor(1.5), np.float32(2)], torch.float32, [1.5, 2]),
    ],
)
def test_mixed_columns_take_the_dtype_that_holds_both(values, dtype, expected):
    with pytest.raises(tree.Misfit):
        fast(values)
    batch = general(values)
    assert batch.dtype == dtype
    assert batch.tolist() == expected


# -- silent casts (M7): each of these numpy would write without a word -----------------------------


def image():
    return np.zeros((2, 2), np.uint8)


@pytest.mark.parametrize(
    ("fits", "misfit"),
    [
        pytest.param(1, 0.7, id="0.7 in an int column"),
        pytest.param(1, True, id="bool in an int column"),
        pytest.param(0.5, 1, id="int in a float column"),
        pytest.param(np.uint8(1), 300, id="300 in uint8"),
        pytest.param(np.uint8(1), np.int64(300), id="int64 300 in uint8"),
        pytest.param(image(), 3, id="scalar for an image"),
        pytest.param(image(), np.array(3, np.uint8), id="0-d array for an image"),
        pytest.param(image(), np.zeros(2, np.uint8), id="a row for an image"),
        pytest.param(image(), np.zeros((1, 2), np.uint8), id="a broadcastable image"),
        pytest.param(image(), image().astype(np.float32), id="changed dtype"),
        pytest.param(image(), image().astype(np.int8), id="same size, other dtype"),
        pytest.param(np.zeros(3, np.float32), np.zeros(3, ">f4"), id="other byte order"),
        pytest.param(0.5, None, id="None, which numpy makes nan"),
        pytest.param(0.5, "0.5", id="text that reads as a number"),
        pytest.param(0.5, np.array([0.5, 0.5], np.float32), id="array for a scalar"),
        pytest.param(0.5, [0.5], id="list for a scalar"),
        pytest.param(
            torch.zeros(2), torch.zeros(2, dtype=torch.float64), id="tensor of another dtype"
        ),
        pytest.param(torch.zeros(2), torch.zeros(3), id="tensor of another shape"),
        pytest.param(torch.zeros(2), torch.zeros(1), id="broadcastable tensor"),
    ],
)
class TestSilentCasts:
    def rows(self, schema, count):
        layout = BatchLayout.contiguous(schema, count)
        return layout.views(np.zeros(layout.nbytes, np.uint8))

    def test_a_misfit_within_the_batch_is_never_written(self, fits, misfit):
        schema = collate.schema_of({"x": fits})
        for samples in ([fits, misfit], [misfit, fits]):
            with pytest.raises(tree.Misfit):
                collate.fill(schema, [{"x": s} for s in samples], self.rows(schema, 2))

    def test_a_whole_batch_that_does_not_fit_the_last_schema_is_never_written(self, fits, misfit):
        schema = collate.schema_of({"x": fits})
        with pytest.raises(tree.Misfit):
            collate.fill(schema, [{"x": misfit}] * 2, self.rows(schema, 2))


PROMOTED = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32]


@given(st.lists(st.sampled_from([*PROMOTED, torch.float64]), min_size=1, max_size=4))
def test_a_column_of_several_dtypes_has_the_dtype_of_the_general_rule_or_is_a_misfit(dtypes):
    samples = [torch.tensor([1, 0, 1]).to(dtype) for dtype in dtypes]
    expected = general(samples)
    try:
        batch = fast(samples)
    except tree.Misfit:
        assert len(set(dtypes)) > 1
    else:
        assert_same(batch, expected)


# -- the fast path and the general path are one rule -----------------------------------------------

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DTYPES = st.sampled_from(["?", "i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8", "c8"])


@st.composite
def leaf_makers(draw):
    """A function that makes leaves of one kind from a random generator."""
    kind = draw(st.sampled_from(["array", "tensor", "scalar", "float", "int", "bool", "strided"]))
    shape, dtype = draw(SHAPES), np.dtype(draw(DTYPES))

    def array(rng):
        return (rng.random(shape) * 100).astype(dtype)

    return {
        "array": array,
        "tensor": lambda rng: torch.from_numpy(np.ascontiguousarray(array(rng)).reshape(shape)),
        "scalar": lambda rng: dtype.type(rng.random() * 100),
        "float": lambda rng: float(rng.random()),
        "int": lambda rng: int(rng.integers(-(2**62), 2**62)),
        "bool": lambda rng: bool(rng.integers(2)),
        "strided": lambda rng: np.ascontiguousarray(array(rng)).reshape(shape).T,
    }[kind]


sample_makers = st.recursive(
    leaf_makers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
        st.builds(Step, inner, inner),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(sample_makers, st.integers(1, 5), st.integers(0, 2**32))
def test_the_fast_path_equals_the_general_path_item_for_item(maker, count, seed):
    rng = np.random.default_rng(seed)
    samples = [tree.transform(maker, lambda make: make(rng)) for _ in range(count)]
    expected = general(samples)
    if collate.schema_of(samples[0]) is None:
        assert not list(tree.names(tree.structure_of(samples[0])))
        return
    assert_same(fast(samples), expected)


@settings(deadline=None)
@given(sample_makers, st.integers(2, 6), st.integers(1, 5), st.integers(0, 2**32))
def test_a_batch_that_was_cut_and_written_collates_to_the_same(maker, count, cut, seed):
    """What `samples_of` makes of rows is collated by the same rules as the samples they were made
    of.
    """
    cut = min(cut, count - 1)
    rng = np.random.default_rng(seed)
    samples = [tree.transform(maker, lambda make: make(rng)) for _ in range(count)]
    schema = collate.schema_of(samples[0])
    if schema is None:
        return
    layout = BatchLayout.contiguous(schema, cut)
    views = layout.views(np.zeros(layout.nbytes, np.uint8))
    collate.fill(schema, samples[:cut], views)
    again = [*samples_of(schema, views), *samples[cut:]]
    assert_same(general(again), general(samples))


def test_samples_are_written_before_many_more_are_made():
    """Not all frames of a batch are alive at once."""
    alive, most = weakref.WeakValueDictionary(), 0

    def make(i):
        nonlocal most
        frame = alive[i] = np.full((4, 84, 84), i, np.uint8)
        most = max(most, len(alive))
        return frame, i

    schema = collate.schema_of(make(0))
    views = BatchLayout.contiguous(schema, 64).views(np.zeros(64 << 15, np.uint8))
    assert collate.fill_as_made(schema, make, iter(zip(range(64))), views) is None
    assert [int(one) for one in views[0][:, 0, 0, 0]] == list(views[1]) == list(range(64))
    assert most < 32


@pytest.mark.parametrize("misfit", [0, 1, 20, 63])
def test_all_samples_come_back_when_a_later_one_does_not_fit(misfit):
    def make(i):
        return np.full(64 << 10, i, np.uint8), float(i) if i == misfit else i

    schema = collate.schema_of(make(64))
    views = BatchLayout.contiguous(schema, 64).views(np.zeros(5 << 20, np.uint8))
    samples = collate.fill_as_made(schema, make, iter(zip(range(64))), views)
    assert_same(general(samples), general([make(i) for i in range(64)]))
