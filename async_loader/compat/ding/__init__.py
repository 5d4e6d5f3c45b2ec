"""DI-engine's ``ding.utils.data`` (its loader and collate functions) on this package's pipeline.

Only the import line of a program changes: ``from async_loader.compat.ding import AsyncDataLoader,
default_collate``.
"""

from __future__ import annotations

from async_loader.compat.ding.collate import (
    default_collate,
    default_decollate,
    diff_shape_collate,
    timestep_collate,
    ttorch_collate,
)
from async_loader.compat.ding.loader import AsyncDataLoader
from async_loader.public_names import set_public_names

__all__ = [
    "AsyncDataLoader",
    "default_collate",
    "default_decollate",
    "diff_shape_collate",
    "timestep_collate",
    "ttorch_collate",
]
set_public_names(globals())
