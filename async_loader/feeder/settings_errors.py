"""Reads YAML, converts plain values to settings, and explains errors."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import msgspec
import yaml

from async_loader.errors import ConfigError
from async_loader.names import hint
from async_loader.replay.arguments import bytes_of

S = TypeVar("S", bound=msgspec.Struct)

if TYPE_CHECKING:
    Bytes = int
else:

    class Bytes(int):
        """An int that a file may write as ``64MiB``."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain values only. Duplicate keys are refused, and ``1e-6`` is a number, as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise ConfigError(
                    f"line {key.start_mark.line + 1}: {name!r} is there twice: leave one of them "
                    "out"
                )
            seen.add(name if isinstance(name, Hashable) else id(key))
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the map in a file; an empty file is an empty map.

    Raises
    ------
    ConfigError
        Names the file, and the line of a YAML error.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it cannot be read: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: it is not YAML: {' '.join(str(error).split())}") from None
    if value is not None and not isinstance(value, dict):
        raise ConfigError(
            f"{path}: it holds {_named(value)}, and settings are a map, as in 'bind: "
            "tcp://127.0.0.1:5555'"
        )
    return value or {}


def settings_of(value: Mapping[str, Any], kind: type[S], where: str = "") -> S:
    """Return ``value`` as settings.

    Raises
    ------
    ConfigError
        Names ``where``, the path of the field, and the expected value.
    """
    try:
        made: S = _convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        path, text = _explain(value, kind, ())
        place = ": ".join(part for part in (where, ".".join(path)) if part)
        raise ConfigError(": ".join(part for part in (place, text or str(error)) if part)) from None
    return made


def _convert(value: object, kind: object) -> Any:
    return msgspec.convert(value, kind, dec_hook=_bytes)


def _bytes(kind: type, value: object) -> Any:
    if kind is not Bytes:
        raise NotImplementedError
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(f"expected bytes, as in 1048576 or '64MiB', got {_named(value)}")
    try:
        return Bytes(bytes_of("", value))
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("=")) from None


# -- what is wrong, and where: msgspec's own paths leave out the keys of maps ----------------------


def _explain(value: object, kind: object, path: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The innermost field that does not convert, and why."""
    kind = _meant(value, kind)
    if isinstance(value, Mapping):
        if _is_struct(kind):
            if said := _keys(value, kind, path):
                return said
            hints = typing.get_type_hints(kind, include_extras=True)
            parts = [
                (f.encode_name, hints[f.name])
                for f in msgspec.structs.fields(kind)
                if f.encode_name in value
            ]
        else:
            inner = typing.get_args(kind)[1:] if typing.get_origin(kind) is dict else ()
            if (
                inner
                and (strange := next((key for key in value if not isinstance(key, str)), None))
                is not None
            ):
                return (
                    *path,
                    str(strange),
                ), f"expected a name, got {_named(strange)}: put it in quotes"
            parts = [(key, inner[0]) for key in value] if inner else []
        for name, part in parts:
            if _fails(value[name], part):
                return _explain(value[name], part, (*path, name))
    if (
        isinstance(value, list)
        and typing.get_origin(kind) is tuple
        and typing.get_args(kind)[-1] is ...
    ):
        for number, one in enumerate(value):
            if _fails(one, inner := typing.get_args(kind)[0]):
                return _explain(one, inner, (*path, str(number)))
    return path, _why(value, kind)


def _meant(value: object, kind: object) -> Any:
    """Which part of a union ``value`` is meant to be.

    A map is the only one that takes maps, or the kind that it names.
    """
    if typing.get_origin(kind) not in (typing.Union, types.UnionType) or not isinstance(
        value, Mapping | list
    ):
        return kind
    if isinstance(value, list):
        lists = [one for one in typing.get_args(kind) if typing.get_origin(one) is tuple]
        return lists[0] if len(lists) == 1 else kind
    maps = [
        one for one in typing.get_args(kind) if typing.get_origin(one) is dict or _is_struct(one)
    ]
    if len(maps) > 1 or any(_is_struct(one) and _tag(one) for one in maps):
        maps = [one for one in maps if _is_struct(one) and _tag(one) == value.get("kind")]
    return maps[0] if len(maps) == 1 else kind


def _is_struct(kind: object) -> TypeGuard[type[msgspec.Struct]]:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _tag(kind: type[msgspec.Struct]) -> Any:
    return kind.__struct_config__.tag


def _keys(
    value: Mapping[str, Any], kind: type[msgspec.Struct], path: tuple[str, ...]
) -> tuple[tuple[str, ...], str] | None:
    """What is wrong with the names of a map's keys."""
    fields = msgspec.structs.fields(kind)
    known = [field.encode_name for field in fields] + [kind.__struct_config__.tag_field] * bool(
        kind.__struct_config__.tag
    )
    for key in value:
        if key not in known:
            near = _below(key, kind)
            what = f"did you mean {near[0]!r}?" if near else hint(str(key), map(str, known))
            return (*path, str(key)), f"there is no such setting: {what}"
    missing = [
        field.encode_name for field in fields if field.required and field.encode_name not in value
    ]
    if not missing:
        return None
    tag = kind.__struct_config__.tag
    example = (
        f", as in {{kind: {tag}, {', '.join(f'{name}: ...' for name in missing)}}}" if tag else ""
    )
    return path, f"it needs {', '.join(map(repr, missing))}{example}"


def _below(key: object, kind: type[msgspec.Struct]) -> list[str]:
    """Where a setting of this name is, one level down."""
    hints = typing.get_type_hints(kind)
    parts = {name: hint for name, hint in hints.items() if _is_struct(hint)}
    return [f"{name}.{key}" for name, part in parts.items() if key in part.__struct_fields__]


def _fails(value: object, kind: object) -> bool:
    try:
        _convert(value, kind)
    except (msgspec.ValidationError, ConfigError, RecursionError):
        return True
    return False


def _why(value: object, kind: object) -> str:
    tags = [str(_tag(one)) for one in typing.get_args(kind) if _is_struct(one) and _tag(one)]
    if tags and isinstance(value, Mapping):
        return _why_kind(value.get("kind"), tags)
    try:
        _convert(value, kind)
    except (msgspec.ValidationError, ConfigError, RecursionError) as error:
        return _plain(str(error), value)
    return ""


def _plain(text: str, value: object) -> str:
    """What msgspec says, in the words of a file."""
    text = re.sub(r" - at `\$.*`$", "", text)
    expected = re.fullmatch(r"Expected `(.*?)`(?:, got `.*`)?(.*)", text)
    if expected is None:
        return text.replace("`", "'")
    kinds = [
        {"object": "a map", "array": "a list"}.get(one, one)
        for one in expected[1].split(" | ")
        if one != "null"
    ]
    return f"expected {' or '.join(kinds)}{expected[2]}, got {_named(value)}"


def _why_kind(given: object, tags: list[str]) -> str:
    if given is None:
        return f"it needs a 'kind': one of {', '.join(tags)}"
    return f"there is no kind {given!r}: {hint(str(given), tags)}"


def _named(value: object) -> str:
    return {list: "a list", dict: "a map", type(None): "nothing"}.get(
        type(value), repr(value)[:100]
    )
