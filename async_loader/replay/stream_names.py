"""Names of streams: one for all rows of a batch, or one for each. The same rule for every writer.

NOTE [one or many]. ``stream=`` of a batch is one name for each row if it is a list, a range, or an
array or tensor ``[rows]``; anything else that can be hashed is the name of one stream. A plain
tuple that is as long as the batch could be either, and is refused; the names that the package makes
are `StreamName`, and always one stream.

NOTE [names that last]. A stream is found again by its name in a table that was loaded. So its name
is a number, a string, None, or a tuple of these, for every writer, whether the table is ever saved
or not.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Hashable, Iterator, MappingView
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError

MANY_STREAMS = 256
"""Streams of one writer, from which on it forgets those whose episodes have ended."""

_numbers = itertools.count(secrets.randbits(48))
"""Of fresh names: a loaded table has none of these."""


class StreamName(tuple[Any, ...]):
    """A tuple that names one stream. Equal to the plain tuple."""

    __slots__ = ()


class EachStream(tuple[Hashable, ...]):
    """Names of streams, one for each row of a batch. Compared by identity.

    ``whole``, ``rows``: where these are some of others, those, and which of them.
    """

    whole: EachStream | None = None
    rows: Any = None

    def some(self, rows: Any) -> EachStream:
        """Return the names of these rows."""
        part = EachStream(map(self.__getitem__, rows.tolist()))
        part.whole, part.rows = self, rows
        return part

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = tuple.__hash__


_PLAIN = (int, str, StreamName)
"""Types of which every value is a name without conversion."""


def fresh_stream() -> StreamName:
    """Make a name that no other stream has."""
    return StreamName(("writer", next(_numbers)))


def stream_name(stream: object) -> Hashable:
    """Convert ``stream`` to the name of one stream.

    Raises ConfigError for a value that cannot be one.

    Numbers that are arrays or tensors are names by their value: a tensor's own hash is its address.
    """
    if type(stream) in _PLAIN:
        name: Hashable = stream
        return name
    array = tensors.as_array(stream)
    if array is not None:
        if array.ndim:
            raise ConfigError(
                f"stream={stream!r}: an array is one name for each row of a batch, a step has one "
                "stream"
            )
        single: Hashable = array.item()
        lasting_json(single)
        return single
    try:
        hash(stream)
    except TypeError:
        raise ConfigError(
            f"stream={stream!r}: a stream is named by something hashable, as a number, a string or "
            "a tuple of these"
        ) from None
    if isinstance(stream, Iterator | MappingView):  # they hash by their address
        raise ConfigError(f"stream={stream!r}: this is no name, list(...) is one name for each row")
    lasting_json(stream)  # raises
    if type(stream) is tuple:
        return StreamName(stream)
    found: Hashable = stream
    return found


def lasting_json(name: object, whole: object = ...) -> Any:
    """Convert the name of a stream to JSON.

    Raises ConfigError for one that JSON cannot hold, see NOTE [names that last].

    ``whole``: the name of which ``name`` is a part.
    """
    whole = name if whole is ... else whole
    if name is None or isinstance(name, str | bool | int):
        return name
    if isinstance(name, np.integer):
        return int(name)
    if isinstance(name, float | np.floating) and math.isfinite(name):
        return float(name)
    if isinstance(name, tuple):
        return [lasting_json(one, whole) for one in name]
    said = str(name) if isinstance(name, float | np.floating) else type(name).__name__
    raise ConfigError(
        f"stream={whole!r} cannot be saved: name streams by numbers, strings, or tuples of these, "
        f"not by {said}"
    )


def stream_names(stream: object, rows: int) -> Hashable | list[Hashable]:
    """Return the name of one stream for all rows, or a list with one for each.

    See NOTE [one or many].

    Raises
    ------
    ConfigError
        For what is not a name, and for what could be one name or many.
    SchemaError
        If there are more or fewer names than rows.
    """
    if type(stream) in _PLAIN:
        name: Hashable = stream
        return name
    if type(stream) is EachStream and len(stream) == rows:
        return list(stream)
    if type(stream) is tuple and len(stream) == rows:
        raise ConfigError(
            f"stream={stream!r} could be the name of one stream, and one name for each of the "
            f"{rows} rows: give list(stream) for one each, or [stream] * rows for that one"
        )
    listed = None if type(stream) is tuple else _listed(stream)
    if listed is None:
        return stream_name(stream)
    if len(listed) != rows:
        raise SchemaError(
            f"{len(listed)} streams are given for {rows} rows: one for each, or one for all"
        )
    return [one if type(one) in _PLAIN else stream_name(one) for one in listed]


def _listed(stream: Any) -> list[Any] | None:
    """Return a list of one for each row; ``None`` if ``stream`` is not a sequence of names."""
    if type(stream) in (list, range, EachStream):
        return list(stream)
    array = tensors.as_array(stream)
    if array is None or array.ndim == 0:
        return list(stream) if isinstance(stream, list) else None
    if array.ndim != 1:
        raise SchemaError(f"stream has shape {list(array.shape)}: one number for each row, [rows]")
    numbers: list[Any] = array.tolist()
    return numbers
