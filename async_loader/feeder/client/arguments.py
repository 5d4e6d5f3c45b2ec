"""Arguments of a client's calls as they are sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import SupportsIndex

from async_loader.errors import ConfigError, SchemaError
from async_loader.feeder.client.weights import Published
from async_loader.feeder.wire import (
    MOST_ROWS,
    name_fault,
)
from async_loader.replay.arguments import positive
from async_loader.schema import Schema
from async_loader.validation import path_of


def batch_size_of(value: object) -> int:
    """Return a batch size that a feeder draws. Raises ConfigError."""
    size = positive("batch_size", value)
    if size > MOST_ROWS:
        text = f"a feeder draws at most {MOST_ROWS:,} items at once"
        raise ConfigError(f"batch_size={size}: {text}")
    return size


def save_path(path: str | os.PathLike[str], absolute: bool) -> str:
    """Return the path of a save as it is sent. ``absolute``: for a client's own feeder."""
    text = path_of("path", path)
    return os.path.abspath(text) if absolute else text


def without_codecs(schema: Schema) -> Schema:
    """Return a schema that a writer may propose.

    Raises
    ------
    ConfigError
        For a field with a codec: steps travel as they are, and the server compresses them.
    """
    for field in schema.fields:
        if field.codec is not None:
            raise ConfigError(
                f"field {field.name!r} has codec={field.codec!r}: how a served table keeps its "
                f"steps is said in the table's settings, as in schema: {{{field.name}: "
                f"{{shape: {list(field.shape)}, dtype: {field.dtype.name}, codec: {field.codec}}}}}"
            )
    return schema


def weights_name(name: object) -> str:
    """Return the name of weights as it is sent. Raises ConfigError."""
    fault = name_fault(name)
    if fault is not None:
        raise ConfigError(f"the name of weights {fault}, as in 'policy'")
    return str.__str__(name)


def newer_than_of(newer_than: object) -> int | Published | None:
    """Return what weights have to be newer than, as it is sent. Raises ConfigError."""
    if newer_than is None or isinstance(newer_than, Published):
        return newer_than
    return _version("newer_than", newer_than, "give a version from 0 on, or what latest returned")


def _version(name: str, version: object, remedy: str) -> int:
    if (
        isinstance(version, bool)
        or not isinstance(version, SupportsIndex)
        or not 0 <= (number := version.__index__()) < 1 << 64
    ):
        raise ConfigError(f"{name}={version!r}: {remedy}")
    return number


def version_of(version: object, tensors: object) -> int:
    """Return the version of weights. Raises ConfigError, SchemaError, also for the tensors."""
    number = _version("version", version, "versions are numbers from 0 that go up")
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise SchemaError(
            f"tensors is a {kind}: give a dict of arrays or tensors, as state_dict() or {{'w': "
            "array}}"
        )
    return number
