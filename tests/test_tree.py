"""Nested samples: taken apart and rebuilt."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from types import MappingProxyType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_loader import tree
from async_loader.errors import MissingField

Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x y")
Named = namedtuple("Named", "a b")

KEYS = st.text("abcde.", min_size=1, max_size=3) | st.integers(0, 5)


def nested(leaves: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(KEYS, inner, max_size=3),
            st.builds(Point, inner, inner),
        ),
        max_leaves=10,
    )


@given(nested(st.integers()))
def test_rebuild_is_the_inverse_of_leaves(value):
    structure = tree.structure_of(value)
    again = tree.rebuild(structure, tree.leaves(value, structure))
    assert again == value
    assert tree.structure_of(again) == structure
    assert len(list(tree.names(structure))) == len(list(tree.leaves(value, structure)))


@given(nested(st.integers()), st.integers(1, 4))
def test_columns_of_equal_samples_hold_every_leaf_of_every_sample(value, count):
    structure = tree.structure_of(value)
    columns = list(tree.columns(structure, [value] * count))
    assert columns == [[leaf] * count for leaf in tree.leaves(value, structure)]


@given(nested(st.integers()))
def test_transform_changes_leaves_and_keeps_containers(value):
    structure = tree.structure_of(value)
    changed = tree.transform(value, lambda leaf: leaf + 1)
    assert tree.structure_of(changed) == structure
    assert list(tree.leaves(changed, structure)) == [
        leaf + 1 for leaf in tree.leaves(value, structure)
    ]


def test_transform_leaves_alone_what_it_is_told_to():
    kept = [1, (2,)]
    changed = tree.transform(
        {"a": 1, "keep": kept, "b": [{"keep": kept}]}, str, leave=lambda key: key == "keep"
    )
    assert changed == {"a": "1", "keep": kept, "b": [{"keep": kept}]}
    assert changed["keep"] is kept


def test_names_are_dotted_paths():
    structure = tree.structure_of({"obs": {"a": 1, "b": [1, 2]}, "p": Point(1, 2), 3: 4})
    assert list(tree.names(structure)) == ["obs.a", "obs.b.0", "obs.b.1", "p.x", "p.y", "3"]
    assert list(tree.names(tree.structure_of(5))) == ["value"]


def test_collated_tuples_are_lists_and_namedtuples_stay():
    structure = tree.structure_of(((1, 2), Point(3, 4)), collated=True)
    assert tree.rebuild(structure, [1, 2, 3, 4]) == [[1, 2], Point(3, 4)]


def test_any_mapping_is_a_dict():
    value = MappingProxyType({"a": OrderedDict(b=1)})
    structure = tree.structure_of(value)
    assert tree.rebuild(structure, tree.leaves(value, structure)) == {"a": {"b": 1}}


def test_dict_samples_may_have_their_keys_in_any_order():
    structure = tree.structure_of({"a": 1, "b": 2})
    assert list(tree.columns(structure, [{"a": 1, "b": 2}, {"b": 20, "a": 10}])) == [
        [1, 10],
        [2, 20],
    ]


@pytest.mark.parametrize(
    ("first", "other", "text"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, "no 'b'"),
        ({"a": 1, "b": 2}, {"a": 1}, "has 1 entries where the first had 2"),
        ({"a": 1}, {"a": 1, "b": 2}, "has 2 entries where the first had 1"),
        ({"a": 1}, [1], "is list where the first was dict"),
        ([1], {0: 1}, "is dict where the first was list"),
        ([1, 2], Point(1, 2), "is Point where the first was list"),
        (Point(1, 2), (1, 2), "is tuple where the first was Point"),
        (Point(1, 2), Named(1, 2), "is Named where the first was Point"),
        ({"o": {"a": 1}}, {"o": 1}, "o is int where the first was dict"),
        ({"o": {"a": [1]}}, {"o": {"a": [1, 2]}}, "o.a has 2 entries where the first had 1"),
        ({"o": {"a": 1}}, {"o": {"b": 1}}, "no 'o.a'"),
        ({"a": 1}, None, "a sample is NoneType where the first was dict"),
    ],
)
def test_a_sample_that_is_built_differently_is_a_misfit_that_says_where(first, other, text):
    structure = tree.structure_of(first)
    for samples in ([first, other], [other, first]):
        with pytest.raises(tree.Misfit) as caught:
            list(tree.columns(structure, samples))
        assert text in str(caught.value)


def test_lists_match_tuples_and_namedtuples_match_by_field_names():
    assert list(tree.columns(tree.structure_of([1, 2]), [(1, 2), [3, 4]])) == [[1, 3], [2, 4]]
    # Two workers may each have their own class of one namedtuple that was sent by value.
    assert list(tree.columns(tree.structure_of(Point(1, 2)), [Other(3, 4)])) == [[3], [4]]


BATCH = tree.Fields(obs=torch.zeros(2), action=torch.ones(2), reward=torch.ones(2))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("next_obs", r"Field\(\.\.\., next='next_obs'\) for 'obs'"),
        ("next_observations", r"next='next_obs'"),
        ("obs_next", r"next='next_obs'"),
        ("next_action", r"next='next_action'"),
        ("observation", "say obs"),
        ("actoin", "did you mean 'action'"),
        ("weights", r"sampler=Prioritized"),
        ("discount", r"view=Transitions"),
        ("zzz", "it has obs, action, reward"),
        (3, "it has obs, action, reward"),
    ],
)
def test_a_batch_says_how_to_get_a_field_that_it_lacks(name, said):
    with pytest.raises(KeyError, match=said) as caught:
        BATCH[name]
    assert str(caught.value).startswith("the batch has no field")
    assert BATCH.get(name) is None


def test_a_batch_with_next_observations_names_them():
    batch = tree.Fields(obs=1, next_obs=2)
    for name in ("obs_next", "new_obs", "next_observation"):
        with pytest.raises(MissingField, match="next_obs"):
            batch[name]


def test_a_batch_is_a_dict_for_torch_and_for_pickle(tmp_path):
    batch = tree.fields(list(BATCH), BATCH.values())
    total = torch.vmap(lambda one: one["obs"] + one["action"])(batch)
    assert total.tolist() == [1, 1]
    doubled = torch.utils._pytree.tree_map(lambda one: 2 * one, batch)
    assert doubled["reward"].tolist() == [2, 2]
    torch.save(batch, tmp_path / "batch")
    assert list(torch.load(tmp_path / "batch", weights_only=True)) == list(batch)
    assert pickle.loads(pickle.dumps(tree.Fields(a=1))) == {"a": 1}
    assert type(tree.transform(batch, torch.clone)) is tree.Fields
