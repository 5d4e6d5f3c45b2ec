"""Nested samples: taken apart and rebuilt."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from async_loader import tree

Point = namedtuple("Point", "x y")
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


@given(nested(st.integers()))
def test_transform_changes_leaves_and_keeps_containers(value):
    structure = tree.structure_of(value)
    changed = tree.transform(value, lambda leaf: leaf + 1)
    assert tree.structure_of(changed) == structure
    assert list(tree.leaves(changed, structure)) == [
        leaf + 1 for leaf in tree.leaves(value, structure)
    ]


@pytest.mark.parametrize(
    ("first", "other", "text"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, "no 'b'"),
        ({"a": 1}, {"a": 1, "b": 2}, "has 2 entries where the first had 1"),
        ([1], {0: 1}, "is dict where the first was list"),
        (Point(1, 2), (1, 2), "is tuple where the first was Point"),
        ({"o": {"a": 1}}, {"o": 1}, "o is int where the first was dict"),
        ({"o": {"a": 1}}, {"o": {"b": 1}}, "no 'o.a'"),
    ],
)
def test_a_sample_that_is_built_differently_is_a_misfit_that_says_where(first, other, text):
    structure = tree.structure_of(first)
    for samples in ([first, other], [other, first]):
        with pytest.raises(tree.Misfit) as caught:
            list(tree.columns(structure, samples))
        assert text in str(caught.value)


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


@pytest.mark.parametrize(("name", "said"), [("to", "say device="), ("obs", r"batch\['obs'\]")])
def test_a_batch_taken_for_a_tensordict_or_a_namedtuple_says_that_it_is_a_dict(name, said):
    with pytest.raises(AttributeError, match=said):
        getattr(BATCH, name)
    assert not hasattr(BATCH, name)
