"""Reads YAML, converts plain values to settings, and explains errors."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import msgspec

from async_loader.errors import ConfigError, missing_requirement
from async_loader.names import hint
from async_loader.replay.arguments import bytes_of

try:
    import yaml
except ImportError as error:
    raise missing_requirement("pyyaml") from error

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


class Document(dict[str, Any]):
    """What a YAML file holds. ``node`` knows the lines of its keys."""

    node: yaml.Node | None = None


def read_yaml(path: Path) -> Document:
    """Return the map in a file; an empty file is an empty map.

    Raises
    ------
    ConfigError
        Names the file, and the line of a YAML error.
    """
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        value = None if node is None else loader.construct_document(node)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it cannot be read: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {_no_yaml(error)}") from None
    if value is not None and not isinstance(value, dict):
        raise ConfigError(
            f"{path}: it holds {_named(value)}, and settings are a map, as in 'bind: "
            "tcp://127.0.0.1:5555'"
        )
    found = Document(value or {})
    found.node = node
    return found


def as_yaml(settings: msgspec.Struct) -> str:
    """Return settings as a file that `read_yaml` reads; those that are ``None`` are left out."""
    return str(yaml.safe_dump(_given(msgspec.to_builtins(settings, enc_hook=int)), sort_keys=False))


def _given(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _given(one) for key, one in value.items() if one is not None}
    return [_given(one) for one in value] if isinstance(value, list | tuple) else value


def _no_yaml(error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return f"it is not YAML: {' '.join(str(error).split())}"
    if "'\\t'" in problem:
        problem = "a tab, and YAML wants blanks"
    return f"line {mark.line + 1}: it is not YAML: {problem}"


Keys = tuple[str, ...]
Mistake = tuple[Keys, str]
"""The keys that lead to a setting, and what is wrong with it."""


def settings_of(
    value: Mapping[str, Any],
    kind: type[S],
    where: str = "",
    *,
    written: Mapping[str, Any] | None = None,
    wrong: Sequence[Mistake] = (),
) -> S:
    """Return ``value`` as settings.

    Parameters
    ----------
    where : str
        The file, or the option.
    written : mapping, optional
        What the user wrote, where ``value`` was made of that.
    wrong : sequence of Mistake
        What was found while it was made.

    Raises
    ------
    ConfigError
        A line for each mistake, with ``where``, the line of the file, the path of the field as it
        was written, and the expected value.
    """
    found = list(wrong)
    try:
        made: S = _convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        known = [path for path, _ in wrong]
        found += [
            (path, text or str(error))
            for path, text in _mistakes(value, kind, ())
            if not any(path[: len(one)] == one[: len(path)] for one in known)
        ]
    if not found:
        return made
    written = value if written is None else written
    lines = dict[str, int]()
    for path, text in found:
        shown, line = _as_written(path, written)
        parts = (where, f"line {line}" if line else "", ".".join(shown), text)
        lines[": ".join(filter(None, parts))] = line or 0
    raise ConfigError("\n".join(sorted(lines, key=lambda one: lines[one])))


def _as_written(path: Keys, value: object) -> tuple[Keys, int | None]:
    """Return the keys that the user wrote for a setting, and their line in a file."""
    node, line, shown = getattr(value, "node", None), None, list[str]()
    left = list(path)
    while left:
        key = left.pop(0)
        if isinstance(value, Mapping):
            if key not in value and key == "max_bytes":
                key = "capacity"  # bytes are written as either
            if key not in value and "." in key:  # a field that was nested
                key, _, inner = key.partition(".")
                left.insert(0, inner)
            value = {str(name): one for name, one in value.items()}
            if key not in value:
                break
            value = value[key]
        elif isinstance(value, list) and key.isdecimal():
            value = value[int(key)]
        elif isinstance(value, str | int | float | None):
            break  # a short form
        shown.append(key)
        if isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[0].value == key]
            line, node = (pairs[0][0].start_mark.line + 1, pairs[0][1]) if pairs else (line, None)
        elif isinstance(node, yaml.SequenceNode):
            node = node.value[int(key)]
            line = node.start_mark.line + 1
    return tuple(shown), line


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


def _mistakes(value: object, kind: object, path: Keys) -> Iterator[Mistake]:
    """Yield the innermost fields that do not convert, and why."""
    kind = _meant(value, kind)
    parts: list[tuple[Any, Any]] = []
    found = False
    if isinstance(value, Mapping):
        if _is_struct(kind):
            for one in _keys(value, kind, path):
                found = True
                yield one
            hints = typing.get_type_hints(kind, include_extras=True)
            parts = [
                (f.encode_name, hints[f.name])
                for f in msgspec.structs.fields(kind)
                if f.encode_name in value
            ]
        elif typing.get_origin(kind) is dict:
            inner = typing.get_args(kind)[1]
            for key in value:
                if not isinstance(key, str):
                    found = True
                    text = f"expected a name, got {_named(key)}: put it in quotes"
                    yield (*path, str(key)), text
            parts = [(key, inner) for key in value if isinstance(key, str)]
        values: Any = value
    elif (
        isinstance(value, list)
        and typing.get_origin(kind) is tuple
        and typing.get_args(kind)[-1] is ...
    ):
        parts = [(number, typing.get_args(kind)[0]) for number in range(len(value))]
        values = value
    for name, part in parts:
        if _fails(values[name], part):
            found = True
            yield from _mistakes(values[name], part, (*path, str(name)))
    if not found:
        yield path, _why(value, kind)


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


def _keys(value: Mapping[str, Any], kind: type[msgspec.Struct], path: Keys) -> Iterator[Mistake]:
    """Yield what is wrong with the names of a map's keys."""
    fields, tag = msgspec.structs.fields(kind), kind.__struct_config__.tag
    known = [field.encode_name for field in fields]
    known += [str(kind.__struct_config__.tag_field)] * bool(tag)
    for key in value:
        if key not in known:
            near = _below(key, kind)
            what = f"did you mean {near[0]!r}?" if near else hint(str(key), map(str, known))
            yield (*path, str(key)), f"there is no such setting: {what}"
    missing = [
        field.encode_name for field in fields if field.required and field.encode_name not in value
    ]
    if missing:
        names = ", ".join(f"{name}: ..." for name in missing)
        example = f", as in {{kind: {tag}, {names}}}" if tag else ""
        yield path, f"it needs {', '.join(map(repr, missing))}{example}"


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
        return _why_kind(value, tags)
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


def _why_kind(value: Mapping[str, Any], tags: list[str]) -> str:
    given = value.get("kind")
    if given is not None:
        return f"there is no kind {given!r}: {hint(str(given), tags)}"
    inside = next((key for key in value if key in tags), None)  # {prioritized: {alpha: 0.6}}
    form = "" if inside is None else f", as in {{kind: {inside}, ...}}"
    return f"it needs a 'kind'{form}: one of {', '.join(tags)}"


def _named(value: object) -> str:
    return {list: "a list", dict: "a map", type(None): "nothing"}.get(
        type(value), repr(value)[:100]
    )
