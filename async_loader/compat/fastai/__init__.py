"""fastai's ``fastai.data.load`` (its DataLoader and related names) on this package's pipeline.

Only the import line of a program changes: ``from async_loader.compat.fastai import DataLoader``.
fastai is not needed.
"""

from __future__ import annotations

from async_loader.compat.fastai.batch_maker import collate_error, fa_collate, fa_convert
from async_loader.compat.fastai.loader import DataLoader
from async_loader.compat.fastai.parts import FakeLoader, SkipItemException, stop
from async_loader.public_names import set_public_names

__all__ = [
    "DataLoader",
    "FakeLoader",
    "SkipItemException",
    "collate_error",
    "fa_collate",
    "fa_convert",
    "stop",
]
set_public_names(globals())

_FakeLoader = FakeLoader
"""The name by which wrapping loaders find it."""
