"""Settings of a feeder's tables. The constructors of the replay package check them."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from async_loader import spaces, tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.feeder.derived_settings import (
    ObjectSettings,
    Settings,
    made_of,
    not_served,
    parameters,
    part_of,
    plain,
    snake,
    union_of,
)
from async_loader.feeder.settings_errors import Bytes
from async_loader.feeder.wire.schema_codec import spec_of
from async_loader.replay import samplers
from async_loader.replay.arguments import storable
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.queues import check_stack
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.views import Sequences, Transitions
from async_loader.schema import Field, Schema

KINDS = [
    one
    for one in map(vars(samplers).get, samplers.__all__)
    if isinstance(one, type) and issubclass(one, Binding)
]
"""The samplers of the package."""

part_of(samplers.Linear)
SamplerSettings = union_of(samplers.Sampler, KINDS)
part_of(RateLimiter)
part_of(Transitions)
not_served(Hindsight)
part_of(Sequences)

_Size = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class FieldPart(ObjectSettings, frozen=True, kw_only=True):
    """Base of `FieldSettings`."""

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...


if TYPE_CHECKING:
    FieldSettings = FieldPart
else:
    FieldSettings = part_of(Field, tagged=False, leave_out=("name",), shape=int | tuple[_Size, ...])

_FIELD = frozenset(FieldSettings.__struct_fields__)
_ALONE = {"limiter": RateLimiter, "view": Transitions, "beta": samplers.Linear}
"""The class of a map without ``kind``; a view with a ``length`` shows sequences."""


class _Table(Settings, frozen=True, kw_only=True):
    """One table: a size, and the keywords of `ReplayBuffer`; or ``queue`` or ``stack``, and theirs.

    In a file ``capacity`` is steps, or bytes as in ``8GiB``. Objects are maps with a ``kind``, or
    the kind alone, as in ``sampler: fifo``. A schema is a map by names, nested or dotted; a field
    is its dtype, or a map. A table without a schema takes the first writer's.

    Raises
    ------
    ConfigError, SchemaError
    """

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.queue, self.stack)) > 1:
            raise ConfigError("queue and stack: a table is one of them")
        if (
            self.capacity is None
            and self.max_bytes is None
            and self.queue is None
            and self.stack is None
        ):
            raise ConfigError(
                "it needs a capacity (steps), max_bytes, or both; or queue, or stack (items)"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            made = self._make(None)
        made.close()
        if isinstance(made.view, Sequences) and made.view.ragged:
            raise ConfigError(
                "view: whole='ragged' is said where the table is read, as in table.sample(64, "
                "view=Sequences(100, whole='ragged')): here say whole: true"
            )
        schema = self.step_schema()
        if self.stack is not None:
            check_stack(schema)
        linked = [] if schema is None else [field.name for field in schema.fields if field.linked]
        if linked and not isinstance(made_of(self.remover), samplers.Fifo | None):
            raise ConfigError(
                f"field {linked[0]!r} has stack or next, which needs steps to be removed in order: "
                "use remover: fifo, "
                f"not {self.remover.__struct_config__.tag}"
            )

    def step_schema(self) -> Schema | None:
        """Return the schema of a step, nested by its dotted names."""
        if self.schema is None:
            return None
        nested: dict[str, Any] = {}
        for name, field in self.schema.items():
            *above, last = name.split(".")
            place = nested
            for key in above:
                place = place.setdefault(key, {})
                if not isinstance(place, dict):
                    raise SchemaError(
                        f"field {name!r} lies in {key!r}, which is a field itself: rename one of "
                        "them"
                    )
            if last in place or not all((*above, last)):
                raise SchemaError(
                    f"field {name!r} has no name of its own: give every field one, as in "
                    "'obs.pixels'"
                )
            place[last] = field.make(name=name)
        made = storable(Schema.of(nested))
        spec_of(made)  # raises for what cannot travel
        return made

    def make(self) -> ReplayBuffer:
        """Make the table, empty; with a schema its memory is allocated now.

        Raises
        ------
        OutOfMemory
            If there is a schema, and not enough memory.
        """
        return self._make(self.step_schema())

    def _make(self, schema: Schema | None) -> ReplayBuffer:
        given = {
            name: made_of(getattr(self, name))
            for name in self.__struct_fields__
            if getattr(self, name) is not None
        }
        given.pop("schema", None)
        given |= {} if schema is None else {"schema": schema}
        if self.capacity is None and self.max_bytes is not None:
            given["capacity"] = f"{given.pop('max_bytes')}B"
        kind = "queue" if self.queue is not None else "stack" if self.stack is not None else None
        if kind is None:
            return ReplayBuffer(**given)
        make, size = getattr(ReplayBuffer, kind), given.pop(kind)
        given = {name: value for name, value in given.items() if value != _DEFAULTS.get(name)}
        if others := sorted(given.keys() - inspect.signature(make).parameters.keys()):
            raise ConfigError(
                f"a {kind} sets {', '.join(others)} itself: leave it out, or say capacity in place "
                f"of {kind}"
            )
        made: ReplayBuffer = make(size, **given)
        return made


_DEFAULTS = {name: one.default for name, one in inspect.signature(ReplayBuffer).parameters.items()}

if TYPE_CHECKING:
    TableSettings = _Table
else:
    TableSettings = msgspec.defstruct(
        "TableSettings",
        [
            ("capacity", int | None, None),
            ("max_bytes", Bytes | None, None),
            ("queue", int | None, None),
            ("stack", int | None, None),
            *parameters(
                ReplayBuffer,
                ("capacity", "max_bytes"),
                schema=dict[str, FieldSettings] | None,
                disk=str | None,
            ),
        ],
        bases=(_Table,), module=__name__, frozen=True, kw_only=True, forbid_unknown_fields=True,
    )  # fmt: skip
    TableSettings.__doc__ = _Table.__doc__


def sized(text: str) -> dict[str, Any]:
    """Return plain settings of a size on the command line: ``1000000`` (steps) or ``8GiB``."""
    steps = text.strip().replace("_", "")
    return (
        {"capacity": int(steps)} if re.fullmatch(r"[0-9]+", steps) else {"max_bytes": text.strip()}
    )


def spelled_out(table: object) -> Any:
    """Return a table's short form, of a file or a script, as a file's full form.

    Raises
    ------
    ConfigError
        Both ``capacity`` and ``max_bytes`` are bytes; an object that a feeder does not make; a kind
        that is a table of its own.
    """
    if isinstance(table, int) and not isinstance(table, bool):
        return {"capacity": table}
    if isinstance(table, str):
        return {"max_bytes": table}
    if not isinstance(table, Mapping):
        return table
    full = dict(table)
    if isinstance(full.get("capacity"), str):
        if full.get("max_bytes") is not None:
            raise ConfigError(
                f"capacity: {table['capacity']!r} beside max_bytes={full['max_bytes']!r}: give "
                "bytes once"
            )
        full["max_bytes"] = full.pop("capacity")
    for name in full.keys() - {"schema", "capacity", "max_bytes"}:
        full[name] = _with_kind(
            name, plain(full[name], name) if isinstance(name, str) else full[name]
        )
    if full.get("schema") is not None:
        full["schema"] = _schema(full["schema"])
    return full


def _with_kind(name: str, value: object) -> Any:
    """Add the kind to an object's map, and to the maps within it."""
    if isinstance(value, str) and name in ("sampler", "remover", "limiter", "view"):
        value = {"kind": value}
    if not isinstance(value, dict):
        return value
    if name == "limiter" and (kind := value.get("kind")) in ("queue", "stack"):
        size = value.get("size", "...")
        raise ConfigError(
            f"limiter: a {kind} is a kind of table: say {kind}: {size} in place of the limiter, "
            "the sampler and max_times_sampled"
        )
    inner = {
        key: _with_kind(key, one) if isinstance(key, str) else one for key, one in value.items()
    }
    if name not in _ALONE or "kind" in inner:
        return inner
    alone = Sequences if name == "view" and "length" in inner else _ALONE[name]
    return {"kind": snake(alone.__name__), **inner}


def _schema(spec: Any) -> Any:
    """Return fields by dotted names, each a map; other values as they are."""
    if isinstance(spec, str | int | float):
        return spec
    named: dict[Any, Any] = {}
    for name, field in (
        _fields(spec, "") if isinstance(spec, Mapping) else _of_schema(_step_of(spec))
    ):
        if name in named:
            raise SchemaError(
                f"field {name!r} is there twice, nested and with dots: leave one of them out"
            )
        named[name] = field
    return named


def _step_of(spec: Any) -> Schema:
    schema = Schema.of(spec)
    return storable(schema) if schema.structure is None else schema


def _fields(spec: Mapping[Any, Any], prefix: str) -> Iterator[tuple[Any, Any]]:
    for key, value in spec.items():
        name = f"{prefix}{key}" if isinstance(key, str) or prefix else key
        if isinstance(value, str):
            yield name, {"dtype": value}
        elif isinstance(value, Mapping) and not spaces.is_space(value):
            if value and ("dtype" in value or value.keys() <= _FIELD):
                yield name, dict(value)
            elif value:
                yield from _fields(value, f"{name}.")
            else:
                yield name, value
        elif _is_object(value):
            yield from _of_schema(Schema.of({name: value}))
        else:
            yield name, value


def _is_object(value: object) -> bool:
    """Return whether a field is an object of Python, not a value of a file."""
    pair = isinstance(value, tuple | list) and len(value) == 2 and not isinstance(value[0], str)
    return pair or isinstance(value, Field | np.dtype | np.ndarray | np.generic | type) or (
        spaces.is_space(value) or tensors.is_tensor(value)
    )  # fmt: skip


def _of_schema(schema: Schema) -> Iterator[tuple[str, Any]]:
    if odd := _no_dict(schema.structure):
        raise ConfigError(
            f"schema: it has a {odd.__name__}, and a feeder's settings nest maps alone: name its "
            "fields by a dict"
        )
    for field in schema.fields:
        given = {name: getattr(field, name) for name in _FIELD}
        yield field.name, {**given, "shape": list(field.shape), "dtype": field.dtype.name}


def _no_dict(structure: tree.Structure) -> type | None:
    if structure is None:
        return None
    if structure.kind is not dict:
        return structure.kind
    return next(filter(None, map(_no_dict, structure.children)), None)
