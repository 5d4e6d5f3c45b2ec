"""The fields of a step of an environment, from its spaces, and whether a table's fields hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from async_loader import spaces, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.names import explain_wrong_names
from async_loader.schema import Field, Schema

NEXT = "next_obs"
_ENDS = ("terminated", "truncated")
_OWN = ("obs", "action", "reward", *_ENDS)


@explain_wrong_names
def schema_of(
    env: Any,
    *,
    stack: int = 1,
    fields: Mapping[str, Any] | None = None,
    agents: Sequence[Any] | None = None,
) -> Schema:
    """Return what a step of an environment is: ``obs``, ``action``, ``reward``, ``terminated``,
    ``truncated``, and ``next_obs`` by ``Field(next="next_obs")``.

    Parameters
    ----------
    env : gymnasium.Env | gymnasium.vector.VectorEnv | pettingzoo.ParallelEnv
        Of a vector, the spaces of one environment; of several agents, those that all have.
    stack : int
        Number of observations that the table delivers in a row, ``[stack, ...]``: see `Field`.
    fields : mapping, optional
        More fields, as `Schema.of` takes them, or others in place of these:
        ``{"log_prob": "float32", "obs": Field((17,), "float32", next="next_obs")}``.
    agents : sequence, optional
        Of a parallel environment, those whose steps are meant; all by default.

    Raises
    ------
    SchemaError
        Names the field whose space has no arrays of one shape (Text, Sequence, Graph, OneOf).
    ConfigError
        If agents have different spaces.
    """
    observation, action = spaces_of(env, agents)
    given = dict(fields or {})
    found = Schema.of(
        {
            "obs": observation,
            "action": action,
            "reward": "float32",
            "terminated": "bool",
            "truncated": "bool",
            **given,
        }
    )
    if "obs" in given:
        return found
    linked = tuple(
        replace(field, stack=stack, next=NEXT) if _top(field) == "obs" else field
        for field in found.fields
    )
    return Schema(found.structure, linked)


def spaces_of(env: Any, agents: Sequence[Any] | None = None) -> tuple[Any, Any]:
    """Return the observation space and the action space of one environment, or of every agent."""
    if callable(getattr(env, "observation_space", None)) and not spaces.is_space(
        env.observation_space
    ):
        return _spaces_of_agents(env, agents)
    for names in (
        ("single_observation_space", "single_action_space"),
        ("observation_space", "action_space"),
    ):
        if all(hasattr(env, name) for name in names):
            return getattr(env, names[0]), getattr(env, names[1])
    raise ConfigError(
        f"{type(env).__name__} has no observation_space and action_space: give an environment of "
        "gymnasium, a vector of them, or a parallel environment of pettingzoo"
    )


def _spaces_of_agents(env: Any, which: Sequence[Any] | None) -> tuple[Any, Any]:
    agents = list(which or getattr(env, "possible_agents", None) or ())
    if not agents:
        raise ConfigError(f"{type(env).__name__} names no possible_agents: give agents=[...]")
    first = agents[0]
    for what in ("observation_space", "action_space"):
        for agent in agents[1:]:
            one, other = getattr(env, what)(first), getattr(env, what)(agent)
            if one != other:
                raise ConfigError(
                    f"{what} of agent {first!r} is {one}, and of agent {agent!r} {other}: the "
                    "steps of one table have the same fields, so pad them to the same space, or "
                    "give each kind of agent a table of its own (ParallelRecorder(..., agents=...))"
                )
    return env.observation_space(first), env.action_space(first)


class StepFields:
    """What a recorder writes into the fields of a table's schema.

    Parameters
    ----------
    schema : Schema
        The table's.
    env : object
        As of `schema_of`.
    own : sequence of str
        Names that the recorder knows beside those of every step.
    agents : sequence, optional
        As of `schema_of`.

    Attributes
    ----------
    linked : bool
        Whether the table reads ``next_obs`` from the step that follows.
    stores_next : bool
        Whether ``next_obs`` is a field of its own.
    names : tuple of str
        All fields of a step.
    extra : frozenset of str
        Fields that ``record`` has to give.

    Raises
    ------
    SchemaError
        Names the first field in which environment and table differ.
    """

    def __init__(
        self,
        schema: Schema,
        env: Any,
        own: tuple[str, ...] = (),
        agents: Sequence[Any] | None = None,
    ) -> None:
        observation, action = spaces_of(env, agents)
        root = schema.structure
        if root is None or root.kind is not dict:
            raise SchemaError(
                f"the table's steps ({schema}) are not dicts: a recorder writes the fields "
                f"{', '.join(_OWN)}"
            )
        self.names = tuple(root.keys)
        by_name = {field.name: field for field in schema.fields}
        nested = dict(zip(root.keys, root.children, strict=True))
        for name, space in (("obs", observation), ("action", action), (NEXT, observation)):
            if name in nested:
                _check(name, space, nested[name], by_name)
        if missing := [name for name in _OWN[:3] if name not in nested]:
            raise SchemaError(
                f"the table has no field {missing[0]!r}, which a recorder writes; its fields are "
                f"{', '.join(map(str, self.names))}: "
                "make it with async_loader.recording.schema_of(env)"
            )
        others = {_top(field) for field in schema.fields if field.next is not None} - {"obs"}
        if others:
            raise SchemaError(
                f"field {min(others)!r} has a next=, and of what follows an episode's last step a "
                "recorder knows the observation only: leave next= out, or write with table.writer()"
            )
        self.linked = any(field.next is not None for field in schema.fields)
        self.stores_next = NEXT in nested
        self.extra = frozenset(nested) - {*_OWN, NEXT, "done", *own}

    def check_extra(self, given: Mapping[str, Any]) -> None:
        """Raise SchemaError unless ``given`` are the fields that the recorder does not know."""
        if given.keys() == self.extra:
            return
        missing = sorted(self.extra - given.keys())
        if not (unknown := sorted(given.keys() - self.extra)):
            raise SchemaError(
                f"the table has a field {missing[0]!r}, which no environment gives: call "
                f"record({missing[0]}=...) before each step"
            )
        name = unknown[0]
        if name in self.names:
            text = "the recorder writes this field itself"
        elif missing:
            text = f"the table has no such field, and waits for {', '.join(missing)}"
        else:
            text = f"the table has no such field, give fields={{{name!r}: dtype}} where it is made"
        raise SchemaError(f"record({name}=...): {text}")


def _top(field: Field) -> str:
    return field.name.partition(".")[0]


def _check(name: str, space: Any, node: tree.Structure, fields: Mapping[str, Field]) -> None:
    """Raise SchemaError if a table's field, or one within it, does not hold values of a space."""
    inside = spaces.within(space) if spaces.is_space(space) else None
    if inside is None:
        field = fields.get(name)
        if field is None:
            raise SchemaError(
                f"field {name!r} is one array in the environment ({space}), and nested in the "
                "table: make the table with async_loader.recording.schema_of(env)"
            )
        if why := _misfit(name, space, field):
            raise SchemaError(
                f"field {name!r} is {space} in the environment, and {field.dtype.name}"
                f"{list(field.shape)} in the table: {why}"
            )
        return
    kind, keys, children = inside
    if node is None or node.kind is not kind or set(node.keys) != set(keys):
        there = "one array" if node is None else f"a {node.kind.__name__} of {list(node.keys)}"
        raise SchemaError(
            f"field {name!r} is a {kind.__name__} of {list(keys)} in the environment, and {there} "
            "in the table: make the table with async_loader.recording.schema_of(env)"
        )
    below = dict(zip(node.keys, node.children, strict=True))
    for key, child in zip(keys, children, strict=True):
        _check(f"{name}.{key}", child, below[key], fields)


def _misfit(name: str, space: Any, field: Field) -> str | None:
    """Return why a field does not hold every value of a space; ``None`` if it does."""
    if not spaces.is_space(space):
        return None
    try:
        shape, dtype = spaces.kind_of(name, space)
    except SchemaError:
        return None  # the user has given the field, and values say whether they fit
    if shape != field.shape:
        return f"the shapes differ, give the field the shape {shape}"
    if field.dtype.kind == "b":
        return None if dtype.kind == "b" else "only bools fit a bool field, use 'int8'"
    if dtype.kind == "b" or field.dtype.kind == "c":
        return None
    if dtype.kind == "f":
        return None if field.dtype.kind == "f" else "floats fit no integer field, use 'float32'"
    low, high = _bounds(space, dtype)
    if field.dtype.kind == "f":
        most = 1 << (np.finfo(field.dtype).nmant + 1)
        least = -most
    else:
        least, most = int(np.iinfo(field.dtype).min), int(np.iinfo(field.dtype).max)
    if least <= low and high <= most:
        return None
    return f"values from {low} to {high} do not fit, use {dtype.name!r}"


def _bounds(space: Any, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the least and the greatest value of a space of integers."""
    start = getattr(space, "start", 0)
    if hasattr(space, "nvec"):
        return int(np.min(start)), int(np.max(np.asarray(start) + space.nvec - 1))
    if hasattr(space, "low"):
        return int(np.min(space.low)), int(np.max(space.high))
    size = getattr(space, "n", None)
    if isinstance(size, int | np.integer) and not space.shape:
        return int(start), int(start) + int(size) - 1
    return 0, 1
