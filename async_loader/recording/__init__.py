"""Environments that record themselves: wrappers that add every step of a usual loop to a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_loader.errors import MissingExtra
from async_loader.recording.env_schema import schema_of
from async_loader.recording.parallel_recorder import ParallelRecorder

__all__ = [
    "ParallelRecorder",
    "Recorder",
    "VectorRecorder",
    "schema_of",
]

if TYPE_CHECKING:
    from async_loader.recording.recorder import Recorder
    from async_loader.recording.vector_recorder import VectorRecorder
else:
    _HOMES = {
        "Recorder": "async_loader.recording.recorder",
        "VectorRecorder": "async_loader.recording.vector_recorder",
    }

    def __getattr__(name):
        """Import a class that derives from one of Gymnasium's when it is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            value = getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "gymnasium":
                raise
            raise MissingExtra(
                f'{name} wraps environments of gymnasium: pip install "async_loader[demo]"'
            ) from error
        globals()[name] = value
        return value

    def __dir__():
        return sorted(__all__)
