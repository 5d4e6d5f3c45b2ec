"""Reads YAML, and converts plain values to settings. All mistakes are told at once."""

from __future__ import annotations

import re
import typing
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from async_loader.errors import ConfigError, missing_requirement
from async_loader.feeder.plain_values import Mistake, value_text
from async_loader.name_hints import hint

try:
    import yaml
except ImportError as error:
    raise missing_requirement("pyyaml") from error

S = TypeVar("S", bound="Settings")
Keys = tuple[str, ...]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Root of all settings: frozen, keyword-only. A subclass declares each setting once."""

    def _replace(self, **values: Any) -> None:
        """Set values as they are kept. For ``__post_init__``."""
        for name, value in values.items():
            msgspec.structs.force_setattr(self, name, value)


def _names(kind: Any, before: Keys = ()) -> Iterator[Keys]:
    """Return the paths of all settings of a class, and of those in it."""
    for one in msgspec.structs.fields(kind):
        yield (*before, one.name)
        for inner in (one.type, *typing.get_args(one.type)):
            if isinstance(inner, type) and issubclass(inner, Settings):
                yield from _names(inner, (*before, one.name))


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
    left, found, gone = _copied(value), [], list[Keys]()
    while True:
        try:
            made = msgspec.convert(left, kind)
        except msgspec.ValidationError as error:
            path, text = _mistake(left, kind, error)
            if not any(one[: len(path)] == path for one in gone):  # else what is gone is missed
                line = _line(node, path)
                parts = (where, f"line {line}" if line else "", ".".join(path), text)
                found.append((line, ": ".join(filter(None, parts))))
            gone.append(path[:3])  # to what may be wrong by itself, as tables.NAME.sampler
            if _left_out(left, gone[-1]):
                continue
        if found:
            raise ConfigError("\n".join(text for _, text in sorted(found)))
        return made


def _copied(value: Any) -> Any:
    """Copy maps, from which mistakes are removed. What lies in them may be anything."""
    if not isinstance(value, dict):
        return value
    return {key: _copied(one) for key, one in value.items()}


def _left_out(value: Any, path: Keys) -> bool:
    """Remove what is at a path; return whether there was anything."""
    for key in path[:-1]:
        value = value.get(key) if isinstance(value, dict) else None
    return bool(path) and isinstance(value, dict) and value.pop(path[-1], value) is not value


def _mistake(value: Any, kind: Any, error: msgspec.ValidationError) -> tuple[Keys, str]:
    """Return the path of a mistake, and what is wrong."""
    text, _, place = str(error).partition(" - at ")
    path = tuple(re.findall(r"\.(\w+)", place))
    cause = error.__cause__
    if isinstance(cause, Mistake):
        return (*path, *cause.path), cause.text
    if cause is not None:
        return path, text
    name = text.split("`")[1] if "field" in text else ""
    if "unknown field" in text:
        beside = [one for one in _names(kind) if one[-1] == name]
        known = [one[-1] for one in _names(kind) if one[:-1] == path]
        said = f"did you mean '{'.'.join(beside[0])}'?" if beside else hint(name, known)
        return (*path, name), f"there is no such setting: {said}"
    if "missing" in text:
        return path, f"it needs {name!r}"
    text = text.partition(", got")[0].replace("`", "").replace("object", "a map")
    text = text[0].lower() + text[1:]
    if "[" in place or "`key`" in place:
        return path, text
    for key in path:
        value = value[key]
    return path, f"{text}, got {value_text(value)}"


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
