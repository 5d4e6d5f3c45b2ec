"""Settings derived from the signatures of constructors: a file takes what Python takes.

# NOTE [derived settings]
A class of the replay package has one struct of settings: its parameters with their types and
defaults, and a ``kind``, its name in snake case. So a parameter is defined once, where it is used,
and its value is checked by making the object.
"""

from __future__ import annotations

import collections.abc
import inspect
import re
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Union

import msgspec
import numpy.typing as npt

from async_loader.errors import ConfigError


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Root of all settings: frozen, keyword-only, without unknown names."""


class ObjectSettings(Settings, frozen=True, kw_only=True):
    """The settings of one object. Making the object checks them."""

    def __post_init__(self) -> None:
        with warnings.catch_warnings():  # the object that is used will warn
            warnings.simplefilter("ignore", UserWarning)
            self.make()

    def make(self, **more: Any) -> Any:
        """Return a new object."""
        kind = _MADE_BY[type(self)]
        return kind(
            **{name: made_of(getattr(self, name)) for name in self.__struct_fields__}, **more
        )


_MADE_BY: dict[type, Callable[..., Any]] = {}
_PARTS: dict[Any, Any] = {}


def made_of(value: object) -> Any:
    """Return the object of a value of settings, or the value itself if it is a plain one."""
    return value.make() if isinstance(value, ObjectSettings) else value


def snake(name: str) -> str:
    """Return ``RankPrioritized`` as ``rank_prioritized``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def part_of(
    kind: Callable[..., Any], *, tagged: bool = True, leave_out: tuple[str, ...] = (), **other: Any
) -> Any:
    """Return the settings of a class; parameters of this class take them from then on.

    ``leave_out``, ``other``: as in `parameters`.
    """
    tag: dict[str, Any] = {"tag_field": "kind", "tag": snake(kind.__name__)} if tagged else {}
    made: Any = msgspec.defstruct(
        f"{kind.__name__}Settings",
        parameters(kind, leave_out, **other),
        bases=(ObjectSettings,),
        module=__name__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
        **tag,
    )
    made.__doc__ = f"Settings of `{kind.__name__}`. See NOTE [derived settings]."
    _MADE_BY[made], _PARTS[kind] = kind, made
    return made


def union_of(protocol: type, kinds: collections.abc.Iterable[type]) -> Any:
    """Return the settings of several classes.

    Parameters of their protocol take them from then on.
    """
    parts = tuple(_PARTS.get(kind) or part_of(kind) for kind in kinds)
    made = _PARTS[protocol] = Union[parts]  # noqa: UP007 - made of a tuple
    return made


def parameters(
    function: Callable[..., Any], leave_out: tuple[str, ...] = (), **other: Any
) -> list[Any]:
    """Return names, types and defaults of a callable's parameters, for `msgspec.defstruct`.

    ``other``: types that replace the annotations.
    """
    called = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    hints = typing.get_type_hints(called)
    found: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in leave_out:
            continue
        kind = other[name] if name in other else _setting(hints[name])
        found.append(
            (name, kind)
            if parameter.default is parameter.empty
            else (name, kind, parameter.default)
        )
    return found


def _setting(hint: object) -> Any:
    """Return the type of a parameter in a file."""
    if hint == npt.DTypeLike:
        return str
    if isinstance(hint, collections.abc.Hashable) and hint in _PARTS:
        return _PARTS[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_setting, inner))]  # noqa: UP007 - made of a tuple
    if origin is collections.abc.Sequence:
        return tuple[_setting(inner[0]), ...]  # type: ignore[misc]
    return hint


def plain(value: object, name: str) -> Any:
    """Return the settings that make an equal object; other values as they are.

    Raises
    ------
    ConfigError
        For an object of another class: a feeder makes objects of its own classes only.
    """
    kind = type(value)
    if kind in _PARTS:
        given = {one: getattr(value, one) for one in _PARTS[kind].__struct_fields__}
        tag = _PARTS[kind].__struct_config__.tag
        return {"kind": tag} | {one: plain(inner, name) for one, inner in given.items()}
    if isinstance(value, Mapping):
        return {key: plain(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [plain(inner, name) for inner in value]
    if value is None or isinstance(value, bool | int | float | str | list):
        return value
    known = sorted(
        one.__name__
        for one in _PARTS
        if isinstance(one, type) and not getattr(one, "_is_protocol", False)
    )
    raise ConfigError(
        f"{name}: {value!r}: a feeder makes objects of {', '.join(known)} alone, give one of these "
        "or their settings"
    )
