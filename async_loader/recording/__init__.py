"""Recording Gymnasium and PettingZoo environments: wrappers that add every step to a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_loader.public_names import set_public_names
from async_loader.recording.env_schema import schema_of
from async_loader.recording.parallel_recorder import ParallelRecorder

__all__ = [
    "ParallelRecorder",
    "Recorder",
    "VectorRecorder",
    "schema_of",
]

if TYPE_CHECKING:
    from async_loader.recording.recorder import Recorder, VectorRecorder

set_public_names(
    globals(),
    dict.fromkeys(("Recorder", "VectorRecorder"), "async_loader.recording.recorder"),
)
