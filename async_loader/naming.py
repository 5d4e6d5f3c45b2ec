"""Short names for callables and objects, for messages. Never a screenful, never the value of anything large."""

from __future__ import annotations

import functools
from typing import Any


def describe(obj: Any) -> str:
    """What a callable or object is and where it was written."""
    if isinstance(obj, functools.partial):
        arguments = ", ".join(_brief(a) for a in obj.args)
        return f"partial({describe(obj.func)}{', ' if arguments else ''}{arguments})"
    bound = getattr(obj, "__self__", None)
    code = getattr(getattr(obj, "__func__", obj), "__code__", None)
    if code is not None:
        owner = f"{type(bound).__qualname__}." if bound is not None else ""
        return f"{owner}{obj.__name__} ({code.co_filename}:{code.co_firstlineno})"
    if isinstance(obj, type) or (callable(obj) and hasattr(obj, "__qualname__")):  # a class, or a method written in C
        return f"{obj.__module__ or ''}.{obj.__qualname__}".removeprefix(".").removeprefix("builtins.")
    return _brief(obj)


def _brief(obj: Any) -> str:
    text = repr(obj) if isinstance(obj, str | bytes | int | float | bool | type(None)) else f"<{type(obj).__qualname__}>"
    return text if len(text) <= 60 else text[:57] + "..."
