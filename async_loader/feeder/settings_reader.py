"""Reads YAML, and converts plain values to settings: all mistakes are told at once."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import msgspec

from async_loader.errors import AsyncLoaderError, ConfigError, missing_requirement
from async_loader.feeder.plain_values import Mistake, value_text
from async_loader.feeder.plain_values import Path as Keys
from async_loader.name_hints import hint
from async_loader.replay.arguments import bytes_of

try:
    import yaml
except ImportError as error:
    raise missing_requirement("pyyaml") from error

S = TypeVar("S", bound="Settings")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Root of all settings: frozen, keyword-only. A subclass declares each setting once.

    Its type is what `msgspec` converts to, other `Settings`, or ``Annotated`` with a function like
    `read`.
    """

    @classmethod
    def read(cls, value: object, path: Keys, wrong: list[Mistake]) -> Self | None:
        """Return plain values as settings; ``None``, and why in ``wrong``, if that fails."""
        if not isinstance(value, Mapping):
            wrong.append((path, f"expected a map, got {value_text(value)}"))
            return None
        before, hints = len(wrong), typing.get_type_hints(cls, include_extras=True)
        for key in value.keys() - hints.keys():
            inner = [name for name, kind in hints.items() if key in _names(kind)]
            what = f"did you mean '{inner[0]}.{key}'?" if inner else hint(str(key), hints)
            wrong.append(((*path, str(key)), f"there is no such setting: {what}"))
        given = {
            name: read(value[name], kind, (*path, name), wrong)
            for name, kind in hints.items()
            if name in value
        }
        for one in msgspec.structs.fields(cls):
            if one.required and one.name not in value:
                wrong.append((path, f"it needs {one.name!r}"))
        if len(wrong) > before:
            return None
        try:
            return cls(**given)
        except AsyncLoaderError as error:
            wrong.append((path, str(error)))
            return None


def _names(kind: Any) -> tuple[str, ...]:
    return getattr(_present(kind), "__struct_fields__", ())


def _present(kind: Any) -> Any:
    """Return the type of a setting that is not ``None``."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(kind) if one is not types.NoneType]
        return kinds[0] if len(kinds) == 1 else kind
    return kind


def read(value: object, kind: Any, path: Keys, wrong: list[Mistake]) -> Any:
    """Return a value as ``kind``; what is wrong with it is added to ``wrong``."""
    if value is None and _present(kind) is not kind:
        return None
    kind = _present(kind)
    if isinstance(kind, type) and issubclass(kind, Settings):
        return kind.read(value, path, wrong)
    for one in getattr(kind, "__metadata__", ()):
        if callable(one):
            return one(value, path, wrong)
    if typing.get_origin(kind) is dict and isinstance(value, Mapping):
        found = {}
        for key, inner in value.items():
            at = (*path, str(key))
            if not isinstance(key, str):
                wrong.append((at, f"expected a name, got {key!r}: put it in quotes"))
            found[key] = read(inner, typing.get_args(kind)[1], at, wrong)
        return found
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = re.sub(r"(, got| - at) .*|`", "", str(error)).replace("object", "a map")
        wrong.append((path, f"{text[0].lower()}{text[1:]}, got {value_text(value)}"))
        return None


def _read_bytes(value: object, path: Keys, wrong: list[Mistake]) -> int:
    try:
        return bytes_of(path[-1], value)
    except ConfigError as error:
        wrong.append((path, str(error)))
        return 0


Bytes = Annotated[int, _read_bytes]
"""A number of bytes, which a file may write as ``64MiB``."""


def settings_of(value: object, kind: type[S], where: str = "", node: yaml.Node | None = None) -> S:
    """Return plain values as settings.

    Parameters
    ----------
    where : str
        The file, or the option.
    node : yaml.Node, optional
        The file's, which knows the lines.

    Raises
    ------
    ConfigError
        A line for each mistake: ``where``, the line of the file, the setting's path, what is wrong.
    """
    wrong: list[Mistake] = []
    made = kind.read(value, (), wrong)
    if made is not None and not wrong:
        return made
    found = []
    for path, text in wrong:
        line = _line(node, path)
        parts = (where, f"line {line}" if line else "", ".".join(path), text)
        found.append((line, ": ".join(filter(None, parts))))
    raise ConfigError("\n".join(text for _, text in sorted(found, key=lambda one: one[0])))


def _line(node: Any, path: Keys) -> int:
    """Return the line of a setting in a file, or of the map that it ought to be in; 0: none."""
    line = 0
    for key in path:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        found = [pair for pair in pairs if pair[0].value == key]
        if not found:
            break
        line, node = found[0][0].start_mark.line + 1, found[0][1]
    return line


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain values only. Duplicate keys are refused, and ``1e-6`` is a number, as in YAML 1.2."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for name, (key, _) in zip(names, node.value, strict=True):
            if names.count(name) > 1:
                line = key.start_mark.line + 1
                raise ConfigError(f"line {line}: {name!r} is there twice: leave one of them out")
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path) -> tuple[Any, yaml.Node | None]:
    """Return what a file holds, an empty map if it is empty; and its node, which knows the lines.

    Raises
    ------
    ConfigError
        Names the file, and the line of a YAML error.
    """
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        return {} if node is None else loader.construct_document(node), node
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it cannot be read: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        text = " ".join(str(problem or error).split())
        raise ConfigError(f"{path}: {line}it is not YAML: {text}") from None


def as_yaml(settings: Settings) -> str:
    """Return settings as a file that `read_yaml` reads; those that are ``None`` are left out."""
    return str(yaml.safe_dump(_given(msgspec.to_builtins(settings)), sort_keys=False))


def _given(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _given(one) for key, one in value.items() if one is not None}
    return [_given(one) for one in value] if isinstance(value, list | tuple) else value
