"""Arguments of a client's calls as they are sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import SupportsIndex

from async_loader.errors import ConfigError, SchemaError
from async_loader.feeder.client.weights import Published
from async_loader.feeder.plain_values import plain_of, plain_view
from async_loader.feeder.wire import (
    MOST_AHEAD,
    MOST_ROWS,
    OpenReader,
    name_fault,
)
from async_loader.lifecycle import LONGEST_S, seconds_or_none
from async_loader.replay.arguments import positive, whole_seed
from async_loader.replay.samplers import Sampler
from async_loader.replay.views import View
from async_loader.schema import Schema
from async_loader.validation import path_of, whole

TRY_ONCE_S = 1e-3
"""A timeout of 0 in an OPEN_READER, which has no time limit of 0."""


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


def reader_wanted(
    table: str,
    view: View | None,
    *,
    sampler: Sampler | None = None,
    min_size: int = 1,
    seed: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    max_lag: int | None = None,
    timeout_s: float | None = None,
    masses: bool = False,
) -> OpenReader:
    """Check the arguments of a source; return its OPEN_READER, but for the size of batches.

    Raises
    ------
    ConfigError
    """
    if whole("rank", rank, 0) >= whole("world_size", world_size, 1):
        raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
    limit = seconds_or_none("timeout_s", timeout_s)
    return OpenReader(
        table=table,
        batch_size=1,
        view=plain_view(view),
        rank=rank,
        world_size=world_size,
        seed=None if seed is None else whole_seed(seed),
        timeout_s=None if limit is None or limit > LONGEST_S else max(limit, TRY_ONCE_S),
        together=MOST_AHEAD,
        min_size=positive("min_size", min_size),
        sampler=None if sampler is None else plain_of(sampler),
        max_lag=None if max_lag is None else whole("max_lag", max_lag, 0),
        masses=masses,
    )


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
