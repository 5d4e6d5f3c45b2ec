"""The fields of a step of an environment, from its spaces, and what a recorder writes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from async_loader import spaces
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import explain_wrong_names
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
    """What a recorder writes into the fields of a table's schema. The table checks the values.

    Parameters
    ----------
    schema : Schema
        The table's.
    own : sequence of str
        Names that the recorder knows beside those of every step.

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
        For a table without a field that a recorder writes.
    """

    def __init__(self, schema: Schema, own: tuple[str, ...] = ()) -> None:
        root = schema.structure
        if root is None or root.kind is not dict:
            raise SchemaError(
                f"the table's steps ({schema}) are not dicts: a recorder writes the fields "
                f"{', '.join(_OWN)}"
            )
        self.names = tuple(root.keys)
        if missing := [name for name in _OWN[:3] if name not in self.names]:
            raise SchemaError(
                f"the table has no field {missing[0]!r}, which a recorder writes; its fields are "
                f"{', '.join(map(str, self.names))}: "
                "make it with async_loader.recording.schema_of(env)"
            )
        linked = {_top(field) for field in schema.fields if field.next is not None}
        if linked - {"obs"}:
            raise SchemaError(
                f"field {min(linked - {'obs'})!r} has a next=, and of what follows an episode's "
                "last step a recorder knows the observation only: leave next= out, or write with "
                "table.writer()"
            )
        self.linked, self.stores_next = bool(linked), NEXT in self.names
        self.extra = frozenset(self.names) - {*_OWN, NEXT, "done", *own}

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
        waits = f", and waits for {', '.join(missing)}" if missing else ""
        raise SchemaError(
            f"record({unknown[0]}=...): the table has no such field for record(){waits}: give "
            "fields= where it is made"
        )


def _top(field: Field) -> str:
    return field.name.partition(".")[0]
