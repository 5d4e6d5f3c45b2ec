"""How a view shows steps to a learner: which rows each field of a batch comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.names import explain_wrong_names
from async_loader.schema import RESERVED, Field, Schema

STEP, AFTER, LAST = 0, 1, 2
"""Anchors: the drawn step, the observation after the last step of the return, the last step of the
return.
"""


@dataclass(frozen=True, slots=True, init=False)
class Transitions:
    """A step and its result in the following ``n_steps`` (Sutton and Barto, 2nd ed., equation
    7.1).

    - ``reward`` is the sum of gamma**i * reward(t + i) over the k = n_steps steps, or fewer where
      the episode ends before;
    - ``discount`` (float32) is gamma**k, or 0 if the last of those k steps terminated: the target
      is
      ``reward + discount * value(next_obs)``, also where the episode was truncated;
    - fields with ``Field(next=...)`` are followed by the observation k steps on, and stored fields
      whose top-level name begins with ``next_`` are those of the last of the k steps, as are
      ``terminated``, ``truncated`` and ``done``;
    - all others are those of the step that was drawn.

    Parameters
    ----------
    n_steps : int
        Steps of the return. A step is drawn as soon as ``n_steps`` have followed, or its episode
        has ended.
    gamma : float
        Discount per step, 0 to 1.
    reward : str
        Name of the reward's field: a number or a vector; float.

    Raises
    ------
    ConfigError
        For fewer than 1 step, and a gamma outside of 0 to 1.
    """

    n_steps: int
    gamma: float
    reward: str

    @explain_wrong_names
    def __init__(self, n_steps: int = 1, gamma: float = 0.99, *, reward: str = "reward") -> None:
        if isinstance(n_steps, bool) or not isinstance(n_steps, int) or n_steps < 1:
            raise ConfigError(
                f"n_steps={n_steps!r}: the number of steps that a return sums up is a Python int, "
                "1 or more"
            )
        if isinstance(gamma, bool | str) or not hasattr(gamma, "__float__") or not 0 <= gamma <= 1:
            raise ConfigError(f"gamma={gamma!r}: a discount is 0 to 1")
        if not isinstance(reward, str) or not reward:
            raise ConfigError(f"reward={reward!r}: it is the name of a field, as in 'reward'")
        for name, value in (("n_steps", n_steps), ("gamma", gamma), ("reward", reward)):
            object.__setattr__(self, name, value)


def checked_view(view: object) -> Transitions | None:
    """Return ``view`` if it is a view or None. Raises ConfigError."""
    if view is not None and not isinstance(view, Transitions):
        raise ConfigError(f"view={view!r}: give a view, as in view=Transitions(n_steps=3)")
    return view


def links(view: Transitions | None) -> bool:
    """Return whether items of this view need later steps, whatever the schema."""
    return view is not None and view.n_steps > 1


@dataclass(frozen=True, slots=True)
class Output:
    """One array of a batch, and its source.

    Attributes
    ----------
    name : str
    source : int
        Field of the stored step.
    frames : int
        Rows that it shows, the newest at ``anchor``.
    anchor : int
    field : Field
        As it is delivered.
    """

    name: str
    source: int
    frames: int
    anchor: int
    field: Field


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How batches of one view of one schema are read.

    Attributes
    ----------
    schema : Schema
        Of what is read; ``index``, and ``weight`` if there are weights, stand at the end.
    outputs : tuple of Output
        One per field of the schema, but for what is computed: ``discount``, ``index``, ``weight``.
    n, gamma : int, float
    successor : bool
        Whether the observation after the last step is needed.
    depth : int
        Steps that a stack shows.
    reward : int
        Which output is the reward of an n-step return, and which stored field; -1 where none is
        summed up.
    discounts, weighted : bool
        Whether there is a ``discount``, a ``weight``.
    """

    schema: Schema
    outputs: tuple[Output, ...]
    n: int
    gamma: float
    successor: bool
    depth: int
    reward: int
    discounts: bool
    weighted: bool

    @property
    def single(self) -> bool:
        """Whether an item is one row without computed fields."""
        return self.depth == 1 and not self.successor and self.n == 1 and not self.discounts

    @property
    def lookahead(self) -> int:
        """Steps that must follow a step, in its open episode, before it can be drawn."""
        return self.n if self.successor else self.n - 1

    @classmethod
    def of(
        cls, stored: Schema, view: Transitions | None = None, *, weighted: bool = False
    ) -> ReadPlan:
        """Work out how ``view`` shows steps of a schema; ``None``: as they are stored.

        Raises
        ------
        ConfigError
            If the schema lacks what the view needs, or has a field of a name that the view adds.
        """
        view = checked_view(view)
        outputs = [
            _output(i, one, one.name, _anchor(one, view)) for i, one in enumerate(stored.fields)
        ]
        followed = [i for i, one in enumerate(stored.fields) if one.next is not None]
        structure = stored.structure
        for name in sorted({str(stored.fields[i].next) for i in followed}):
            structure, added = _followers(stored, structure, name)
            outputs.extend(added)
        delivered = Schema(structure, tuple(one.field for one in outputs))
        reward = -1
        if view is not None:
            reward = _reward(view, outputs)
            delivered = _with(delivered, "discount", np.dtype(np.float32))
        delivered = _with(delivered, "index", np.dtype(np.int64))
        if weighted:
            delivered = _with(delivered, "weight", np.dtype(np.float32))
        n, gamma = (1, 1.0) if view is None else (view.n_steps, view.gamma)
        depth = max(one.stack for one in stored.fields)
        return cls(
            delivered,
            tuple(outputs),
            n,
            gamma,
            bool(followed),
            depth,
            reward,
            view is not None,
            weighted,
        )


def depth_and_lookahead(stored: Schema) -> tuple[int, int]:
    """Return how many rows a stack of the stored steps shows, and how many steps must follow."""
    return max(one.stack for one in stored.fields), int(
        any(one.next is not None for one in stored.fields)
    )


def _anchor(stored: Field, view: Transitions | None) -> int:
    top = stored.name.split(".")[0]
    ends = top.startswith("next_") or top in ("terminated", "truncated", "done")
    return LAST if view is not None and ends else STEP


def _output(i: int, stored: Field, name: str, anchor: int) -> Output:
    shape = (stored.stack, *stored.shape) if stored.stack > 1 else stored.shape
    delivered = Field(shape, stored.dtype, padding=stored.padding, name=name)
    return Output(name, i, stored.stack, anchor, delivered)


def _followers(
    stored: Schema, structure: tree.Structure, name: str
) -> tuple[tree.Structure, list[Output]]:
    """Return the structure with ``name`` added, and the outputs below it."""
    assert structure is not None
    if structure.kind is not dict or name in structure.keys or name in ("discount", *RESERVED):
        raise ConfigError(
            f"next={name!r}: steps are dicts, and this name is taken in ({stored}), choose another"
        )
    tops = {f.name.split(".")[0] for f in stored.fields if f.next == name}
    if len(tops) > 1:
        raise ConfigError(
            f"next={name!r} is said by fields of {', '.join(sorted(tops))}: give each a name of "
            "its own"
        )
    (top,) = tops
    kept: list[Output] = []
    child = stored.structure.children[stored.structure.keys.index(top)]  # type: ignore[union-attr]
    names = iter(tree.names(child, top))
    places = {f.name: i for i, f in enumerate(stored.fields)}

    def linked(node: tree.Structure) -> tuple[bool, tree.Structure]:
        if node is None:
            old = next(names)
            one = stored.fields[places[old]]
            if one.next != name:
                return False, None
            kept.append(_output(places[old], one, name + old[len(top) :], AFTER))
            return True, None
        found = [(key, *linked(below)) for key, below in zip(node.keys, node.children, strict=True)]
        there = [(key, below) for key, is_there, below in found if is_there]
        return bool(there), tree.Node(
            node.kind, tuple(k for k, _ in there), tuple(b for _, b in there)
        )

    _, below = linked(child)
    return tree.Node(dict, (*structure.keys, name), (*structure.children, below)), kept


def _reward(view: Transitions, outputs: Sequence[Output]) -> int:
    found = [i for i, one in enumerate(outputs) if one.name == view.reward and one.anchor == STEP]
    if not found:
        raise ConfigError(
            f"the view sums up {view.reward!r}, and steps have "
            f"{', '.join(o.name for o in outputs)}: give reward=..."
        )
    one = outputs[found[0]]
    dtype = one.field.dtype
    if view.n_steps > 1 and (
        dtype.kind != "f" or dtype.itemsize < 4 or len(one.field.shape) > 1 or one.frames > 1
    ):
        raise ConfigError(
            f"{one.field}: a return is summed up over float32 or float64, a number or a vector for "
            "each step"
        )
    return found[0] if view.n_steps > 1 else -1


def _with(schema: Schema, name: str, dtype: np.dtype[Any]) -> Schema:
    try:
        return schema.with_field(name, dtype)
    except SchemaError:
        raise ConfigError(
            f"steps have a field {name!r}, which this view adds: rename yours"
        ) from None
