"""DI-engine's collate functions in the drop-in module: what its tests check, its quirks,
its defects put right.
"""

from __future__ import annotations

import copy
from collections import namedtuple

import numpy as np
import pytest
import torch

from async_loader.compat.ding import (
    default_collate,
    default_decollate,
    diff_shape_collate,
    timestep_collate,
    ttorch_collate,
)

Pair = namedtuple("Pair", "a b")


# torch's, of numpy 1.26
@pytest.mark.filterwarnings("ignore:.*'np.bool_' scalars to be interpreted:DeprecationWarning")
@pytest.mark.parametrize(
    ("samples", "shape", "dtype"),
    [
        ([torch.zeros(2, 3)] * 4, (4, 2, 3), torch.float32),
        ([torch.zeros(1, dtype=torch.int32)] * 4, (4,), torch.int32),
        ([torch.zeros(())] * 4, (4,), torch.float32),
        ([np.zeros((2, 3))] * 4, (4, 2, 3), torch.float64),
        ([np.zeros(1, np.float32)] * 4, (4,), torch.float32),
        ([np.zeros(())] * 4, (4,), torch.float64),
        ([np.float64(1)] * 4, (4,), torch.float64),
        ([np.int8(1)] * 4, (4,), torch.int8),
        ([np.bool_(True)] * 4, (4,), torch.bool),
        ([1.5] * 4, (4,), torch.float32),
        ([1] * 4, (4,), torch.int64),
        ([True] * 4, (4,), torch.bool),
        # the original cuts the fraction off: the first sample decides
        ([1, 1.5, 2, 0], (4,), torch.float32),
        ([True, 2, 3, 4], (4,), torch.int64),
    ],
)
def test_leaves_are_stacked_and_keep_their_kind(samples, shape, dtype):
    batch = default_collate(samples)
    assert tuple(batch.shape) == shape
    assert batch.dtype == dtype
    assert (
        batch.tolist()
        == torch.stack([torch.as_tensor(s, dtype=dtype) for s in samples]).reshape(shape).tolist()
    )


def test_the_first_sample_says_which_keys_there_are():
    assert set(default_collate([{"a": 1}, {"a": 1, "b": 2}])) == {"a"}
    with pytest.raises(KeyError):
        default_collate([{"a": 1, "b": 2}, {"a": 1}])


def test_ignored_keys_stay_lists_by_prefix_outside_and_by_default_within():
    samples = [{"foo_x": i, "in": {"foo_y": i, "collate_ignore_z": i}} for i in range(2)]
    batch = default_collate(samples, ignore_prefix=["foo"])
    assert batch["foo_x"] == [0, 1]
    assert torch.is_tensor(batch["in"]["foo_y"])
    assert batch["in"]["collate_ignore_z"] == [0, 1]
    assert default_collate([{"collate_ignore": object}] * 2) == {"collate_ignore": [object, object]}


@pytest.mark.parametrize(
    "sample",
    [None, object(), np.array(["a"]), np.array([object()]), 1j, {"x": None}, [{}, {1}]],
    ids=["None", "object", "strings", "objects", "complex", "in a dict", "in a list"],
)
def test_what_no_rule_covers_is_a_type_error(sample):
    with pytest.raises(TypeError, match="cannot be collated"):
        default_collate([sample] * 2)


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(RuntimeError, match="equal size"):
        default_collate([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(ValueError, match=r"lengths \[1, 2\]"):  # the original cuts to the shortest
        default_collate([[1], [1, 2]])
    with pytest.raises(IndexError, match="0 samples"):
        default_collate([])


class Tree:
    """The part of a tree tensor that its collation uses; the library need not be installed."""

    def __init__(self, parts):
        self.parts = parts

    def json(self):
        return self.parts

    def get(self, name):
        return self.parts[name]


Tree.__module__ = "treetensor.torch.tensor"


def test_tree_tensors():
    trees = [Tree({"a": torch.zeros(1), "b": {"c": torch.zeros(2)}})] * 3
    assert type(default_collate(trees)) is dict
    assert default_collate([{"t": t} for t in trees])["t"]["b"]["c"].shape == (3, 2)
    tree = ttorch_collate(trees)
    assert type(tree) is Tree
    assert tree.parts["a"].shape == (3,)
    assert ttorch_collate(trees, json=True, cat_1dim=False)["a"].shape == (3, 1)
    whole = {"a": torch.zeros(3, 1), "b": {"c": torch.zeros(3, 2)}}
    assert default_collate(Tree(whole)) is whole
    with pytest.raises(TypeError, match="got dict"):
        ttorch_collate([{"a": torch.zeros(1)}])


# -- and back --------------------------------------------------------------------------------------


def test_decollation_takes_tensors_apart():
    whole = torch.arange(6).view(3, 2)
    parts = default_decollate(whole)
    assert [part.tolist() for part in parts] == whole.tolist()
    assert parts[0].data_ptr() == whole.data_ptr()
    assert [part.shape for part in default_decollate(torch.zeros(3))] == [(1,)] * 3
    assert [part.shape for part in default_decollate(torch.zeros(2, 1, 1))] == [(1, 1)] * 2


# -- trajectories, and shapes that differ ----------------------------------------------------------


def trajectory(steps, state):
    return {
        "obs": [torch.zeros(3)] * steps,
        "reward": [torch.zeros(1)] * steps,
        "done": [False] * steps,
        "value": [0.5] * steps,
        "deep": [{"x": torch.zeros(2)}] * steps,
        "ragged": [(torch.zeros(2), torch.zeros(3))] * steps,
        "whole": torch.zeros(steps, 2),
        "prev_state": [state] * steps,
    }


def test_timesteps_come_first():
    batch = [trajectory(4, None), trajectory(4, {"h": torch.zeros(7)})]
    before = copy.deepcopy(batch)
    out = timestep_collate(batch)
    shapes = {key: tuple(value.shape) for key, value in out.items() if torch.is_tensor(value)}
    assert shapes == {
        "obs": (4, 2, 3),
        "reward": (4, 2),
        "done": (4, 2),
        "value": (4, 2),
        "whole": (2, 4, 2),
    }
    assert [step["x"].shape for step in out["deep"]] == [(2, 2)] * 4
    assert [[part.shape for part in step] for step in out["ragged"]] == [[(2, 2), (2, 3)]] * 4
    assert len(out["prev_state"]) == 4
    assert out["prev_state"][0] == (None, batch[1]["prev_state"][0])
    assert batch[0].keys() == before[0].keys()


def test_shapes_that_differ_stay_lists():
    out = diff_shape_collate(
        [
            {"n": None, "d": torch.zeros(2), "e": np.zeros(3)},
            {"n": 1, "d": torch.zeros(3), "e": np.zeros(3)},
        ]
    )
    assert out["n"] == [None, 1]
    assert [d.shape for d in out["d"]] == [(2,), (3,)]
    assert out["e"].shape == (2, 3)
    assert out["e"].dtype == torch.float64
    mixed = diff_shape_collate([[1, 2.0, True, torch.zeros(1), "s", Pair(1, {"x": None})]] * 2)
    assert [getattr(m, "dtype", None) for m in mixed[:3]] == [
        torch.int64,
        torch.float32,
        torch.bool,
    ]
    assert mixed[3].shape == (2, 1)
    assert mixed[4] == ["s", "s"]
    assert type(mixed[5]) is Pair
    assert mixed[5].b["x"] == [None, None]
    with pytest.raises(TypeError):
        diff_shape_collate([object()] * 2)
