"""The public names of a module, which `dir` shows alone; some are imported at their first use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from opcode import opmap
from types import FrameType
from typing import Any

_NONE: Mapping[str, str] = {}


def set_public_names(module: dict[str, Any], homes: Mapping[str, str] = _NONE) -> None:
    """Have `dir` show what ``__all__`` names, and a missing name say what to write in its place.

    A name that is not there, or whose library is not installed, is an AttributeError, as `hasattr`
    expects; in ``from module import name`` it is the ImportError that says the remedy.

    Parameters
    ----------
    module : dict
        Its ``globals()``.
    homes : mapping of str to str, optional
        Names that are imported when they are first used, and the modules that have them; a module
        by its own full name.
    """
    own = module["__name__"]

    def look(name: str) -> Any:
        missing: ImportError
        try:
            if name in homes:
                home = import_module(homes[name])
                value = home if homes[name] == f"{own}.{name}" else getattr(home, name)
                module[name] = value
                return value
            if name.startswith("__") or (remedy := _remedy(own, name)) is None:
                raise AttributeError(
                    f"module {own!r} has no attribute {name!r}", name=name, obj=sys.modules.get(own)
                )
            missing = ImportError(f"{own} has no {name}: {remedy}", name=own)
        except ImportError as error:
            missing = error
        # of an AttributeError "from module import name" keeps the type alone
        if _imports(sys._getframe(1)):
            raise missing
        raise AttributeError(str(missing), name=name, obj=sys.modules.get(own)) from missing

    module["__getattr__"], module["__dir__"] = look, lambda: sorted(module["__all__"])


def _remedy(module: str, name: str) -> str | None:
    from async_loader.name_hints import PUBLIC  # late: errors are imported before it

    return PUBLIC.get(module, {}).get(name)


def _imports(frame: FrameType) -> bool:
    """Return whether this frame is at ``from module import name``."""
    return frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]
