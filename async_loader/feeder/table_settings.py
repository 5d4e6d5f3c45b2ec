"""Settings of a feeder's tables, as plain values. Constructors of the replay package check them.

A table is a map of a size and the keywords of `ReplayBuffer`; or of ``queue`` or ``stack``, and the
keywords of these. ``capacity`` is steps, or bytes as in ``8GiB``, and may stand alone. Objects are
maps with a ``kind``, or the kind alone, as in ``sampler: fifo``. A schema is a nested map by names;
a field is its dtype, or a map. A table without a schema takes the first writer's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from async_loader import spaces
from async_loader.errors import ConfigError
from async_loader.feeder.plain_values import (
    SAMPLERS,
    arguments,
    at,
    made,
    object_of,
    plain,
    value_text,
)
from async_loader.feeder.wire.schema_codec import spec_of
from async_loader.name_hints import hint
from async_loader.replay.arguments import storable
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.episode_ends import check_end_names
from async_loader.replay.rate_limiter import check_stack
from async_loader.replay.views import Sequences
from async_loader.rollouts.rollouts import Rollouts
from async_loader.rollouts.schema import GroupSchema
from async_loader.rollouts.slots import GroupSettings
from async_loader.schema import Field, Schema

OBJECTS = {
    "sampler": tuple(SAMPLERS),
    "remover": tuple(SAMPLERS),
    "limiter": ("rate_limiter",),
    "view": ("transitions", "sequences"),
}
MAKERS: dict[str, Any] = {"queue": ReplayBuffer.queue, "stack": ReplayBuffer.stack}
KEYWORDS = (*inspect.signature(ReplayBuffer).parameters, *MAKERS)
_FIELD = {**inspect.signature(Field).parameters}
del _FIELD["name"]


def read_table(value: object) -> dict[str, Any]:
    """Return the settings of a table in full.

    Raises
    ------
    ConfigError, SchemaError
    """
    if isinstance(value, Mapping) and "rollouts" in value:
        if others := sorted(value.keys() - {"rollouts"}):
            raise ConfigError(f"a table of rollouts has {others[0]!r} under 'rollouts'")
        with at("rollouts"):
            rollouts_of(value["rollouts"])
        return {"rollouts": value["rollouts"]}
    given = _given(value)
    schema = given.pop("schema", None)
    if schema is not None:
        spec_of(schema)  # raises for what cannot travel
        if "stack" in given:
            check_stack(schema)
    table: ReplayBuffer = made(_maker(given), {})
    table.close()
    if schema is not None:
        check_end_names(schema, table.view)
    if isinstance(table.view, Sequences) and table.view.ragged:
        text = "whole='ragged' is said where the table is read, as in table.sample(64, view="
        raise ConfigError(f"view: {text}Sequences(100, whole='ragged'))")
    found = {name: plain(one, name) for name, one in given.items()}
    if schema is not None:
        found["schema"] = schema.rebuild([_plain_field(field) for field in schema.fields])
    return found


def rollouts_of(plain: object) -> GroupSettings:
    """Return the settings of a table of rollouts: the arguments of `Rollouts` as plain values.

    Raises
    ------
    ConfigError, SchemaError
    """
    if not isinstance(plain, Mapping):
        raise ConfigError(f"expected a map, got {value_text(plain)}")
    given = arguments({**plain, "schema": None}, Rollouts)
    if not isinstance(plain.get("schema"), Mapping):
        raise ConfigError("it needs a 'schema', as in {tokens: {dtype: int32, ragged: true}}")
    with at("schema"):
        given["schema"] = GroupSchema.from_plain(plain["schema"])
    made_table: Rollouts = made(Rollouts, given)
    return made_table.settings


def make_table(settings: Mapping[str, Any]) -> ReplayBuffer:
    """Make a table, empty; with a schema its memory is allocated now.

    Raises
    ------
    ConfigError, SchemaError, OutOfMemory
    """
    return _maker(_given(settings))()


def _maker(given: Mapping[str, Any]) -> Callable[[], ReplayBuffer]:
    """Return what makes a table of these keywords. Raises ConfigError."""
    rest = dict(given)
    for kind, make in MAKERS.items():
        if kind in rest:
            size = rest.pop(kind)
            if others := sorted(rest.keys() - inspect.signature(make).parameters.keys()):
                raise ConfigError(f"a {kind} sets {', '.join(others)} itself: leave it out")
            return partial(make, size, **rest)
    if "capacity" not in rest:
        raise ConfigError("it needs a capacity, as in 1000000 or 8GiB; or queue, or stack (items)")
    return partial(ReplayBuffer, **rest)


def _given(value: object) -> dict[str, Any]:
    """Return the keywords of a table, with objects and the schema made."""
    if isinstance(value, int | str) and not isinstance(value, bool):
        value = {"capacity": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected a map, got {value_text(value)}: say 1000000 (steps) or '8GiB'")
    found = {}
    for name, one in value.items():
        with at(str(name)):
            if name not in KEYWORDS:
                raise ConfigError(f"there is no such setting: {hint(str(name), KEYWORDS)}")
            if name == "schema" and one is not None:
                found[name] = _schema(one)
            elif one is not None:
                found[name] = _object(one, name) if name in OBJECTS else one
    return found


def _object(value: object, name: str) -> Any:
    said = {"kind": value} if isinstance(value, str) else plain(value, name)
    if name == "view" and isinstance(said, dict) and "kind" not in said:
        said = {"kind": "sequences" if "length" in said else "transitions", **said}
    return object_of(said, OBJECTS[name])


def _schema(spec: Any) -> Schema:
    if isinstance(spec, Mapping) and not spaces.is_space(spec):
        spec = _fields(spec)
    return storable(Schema.of(spec))


def _fields(specs: Mapping[Any, Any]) -> dict[Any, Any]:
    found = {}
    for key, spec in specs.items():
        with at(str(key)):
            found[key] = _field(spec)
    return found


def _field(spec: Any) -> Any:
    """Return a field of a file as `Schema.of` takes it; a map of fields likewise."""
    if isinstance(spec, str):
        spec = {"dtype": spec}
    if not isinstance(spec, Mapping) or spaces.is_space(spec):
        return spec
    if spec and ("dtype" in spec or spec.keys() <= _FIELD.keys()):
        return made(Field, arguments(spec, Field))
    return _fields(spec)


def _plain_field(field: Field) -> dict[str, Any]:
    given = {"shape": list(field.shape), "dtype": field.dtype.name}
    others = {name: getattr(field, name) for name in ("stack", "next", "padding", "codec")}
    return given | {name: one for name, one in others.items() if one != _FIELD[name].default}
