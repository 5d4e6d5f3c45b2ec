"""Every public name with its signature, as lines of text. ``python tests/surface.py`` writes
them to tests/data/api.txt.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

RECORD = Path(__file__).parent / "data" / "api.txt"

MODULES = [
    "async_loader",
    "async_loader.errors",
    "async_loader.source",
    "async_loader.table",
    "async_loader.schema",
    "async_loader.stats",
    "async_loader.batch_format",
    "async_loader.targets",
    "async_loader.replay",
    "async_loader.recording",
    "async_loader.replay.samplers",
    "async_loader.rollouts",
    "async_loader.feeder",
    "async_loader.scale",
    "async_loader.offline",
    "async_loader.observe",
    "async_loader.offline.lerobot",
    "async_loader.testing.conformance",
]
"""Modules that users import. Those under async_loader.compat have the names of their originals, and
tests of these.
"""

_ARRAY = re.compile(
    r"numpy\.ndarray\[(?:tuple\[typing\.Any, \.\.\.\]|typing\.Any), numpy\.dtype\[([^\]]*)\]\]"
)
_OF_OBJECT = {
    "__init__",
    "__len__",
    "__iter__",
    "__next__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__call__",
}


def lines() -> Iterator[str]:
    """The surface, module by module, each in the order of its names."""
    for name in MODULES:
        module = importlib.import_module(name)
        yield name
        for one in sorted(module.__all__):
            yield from _name(module, one)
        yield ""


def _name(module: ModuleType, name: str) -> Iterator[str]:
    value = getattr(module, name)
    if isinstance(value, type) and value.__module__.startswith("async_loader"):
        home = f"{value.__module__}.{value.__qualname__}"
        if home in _seen(module.__name__, name):
            yield f"  {name} = {home}"
            return
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"  class {name}({bases})"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isfunction(value):
        yield f"  {name}{signature(value)}"
    elif isinstance(value, ModuleType):
        yield f"  {name}: module {value.__name__}"
    elif isinstance(value, str | int | tuple | enum.Enum):
        yield f"  {name} = ..." if name == "__version__" else f"  {name} = {value!r}"
    else:
        yield f"  {name}: {_plain(value)}"


def _seen(module: str, name: str) -> set[str]:
    """Homes of classes that a module earlier in the list has written out."""
    found = set()
    for earlier in MODULES[: MODULES.index(module)]:
        there = importlib.import_module(earlier)
        found |= {
            f"{v.__module__}.{v.__qualname__}"
            for n in there.__all__
            if isinstance(v := getattr(there, n), type)
        }
    return found


def _members(kind: type) -> Iterator[str]:
    fields = getattr(kind, "__annotations__", {})
    names = {
        name
        for base in kind.__mro__
        if base.__module__.startswith("async_loader")
        for name in vars(base)
    }
    for name in sorted(names | set(fields)):
        if name.startswith("_") and name not in _OF_OBJECT:
            continue
        value = inspect.getattr_static(kind, name, None)
        if name == "__init__" and getattr(kind, "_is_protocol", False):
            continue
        if name == "__init__" and hasattr(kind, "__signature__"):
            yield f"__init__{signature(kind)}"
            continue
        if isinstance(value, staticmethod | classmethod):
            yield f"{type(value).__name__} {name}{signature(value.__func__)}"
        elif isinstance(value, property):
            yield f"{name}{'' if value.fset is None else ' (settable)'}: {_returns(value.fget)}"
        elif inspect.isfunction(value):
            yield f"{name}{signature(value)}"
        elif name in fields or inspect.ismemberdescriptor(value):
            yield f"{name}: {_annotation(kind, name)}"


def _annotation(kind: type, name: str) -> str:
    for base in kind.__mro__:
        if name in (own := inspect.get_annotations(base)):
            return _plain(own[name])
    return "?"


def _returns(function: Any) -> str:
    return _plain(inspect.get_annotations(function).get("return", "?"))


class _AsWritten(str):
    """An annotation, without the quotes that `inspect` puts around it."""

    def __repr__(self) -> str:
        return str(self)


def signature(function: Any) -> str:
    """Parameters with annotations and defaults; without ``self``, ``cls`` and addresses."""
    found = inspect.signature(function)
    taken = [
        one.replace(
            annotation=_AsWritten(one.annotation)
            if isinstance(one.annotation, str)
            else one.annotation
        )
        for one in found.parameters.values()
        if one.name not in ("self", "cls")
    ]
    returned = found.return_annotation
    made = inspect.Signature(
        taken, return_annotation=_AsWritten(returned) if isinstance(returned, str) else returned
    )
    return _plain(str(made))


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    text = re.sub(r"<(\w+(?:\.\w+)*) object at 0x[0-9a-f]+>", r"<\1>", text)
    text = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"<\1>", text)
    return _ARRAY.sub(r"NDArray[\1]", text)  # as numpy writes it from 2.5 on


def text() -> str:
    return "\n".join(lines())


if __name__ == "__main__":
    RECORD.write_text(text())
    sys.stdout.write(f"{RECORD}\n")
