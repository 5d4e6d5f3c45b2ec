"""The streams of the last batch: a vector of environments names the same ones in every call."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Self

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.stream_names import EachStream, StreamName

_INT64 = np.dtype(np.int64)


class LastStreams:
    """The names and numbers of a batch's streams, to be used again while they hold.

    Parameters
    ----------
    given : range | EachStream | bytes
        What named the streams; the bytes of an int64 array.
    names : list of hashable
    known_to : mapping
        The table's numbers of its streams. They hold while the table has this mapping: it replaces
        the mapping when it forgets a stream.
    numbers : int64 array [rows]
    """

    __slots__ = ("_given", "known_to", "names", "numbers")

    def __init__(
        self,
        given: object,
        names: list[Hashable],
        known_to: Mapping[Hashable, int],
        numbers: Ids,
    ) -> None:
        self._given, self.names, self.known_to, self.numbers = given, names, known_to, numbers

    @classmethod
    def of(
        cls, stream: object, names: list[Hashable], known_to: Mapping[Hashable, int], numbers: Ids
    ) -> Self | None:
        """Keep them, if it is cheap to see that the next batch names the same streams."""
        given = comparable(stream)
        return None if given is None else cls(given, names, known_to, numbers)

    def are(self, stream: object, rows: int) -> bool:
        """Return whether ``stream`` names the same streams, one for each of ``rows`` rows."""
        return len(self.names) == rows and self._given == comparable(stream)


_AS_THEY_ARE = (EachStream, range, int, str, StreamName)


def comparable(stream: Any) -> object:
    """Return a copy of ``stream`` that is cheap to compare, ``None`` for others."""
    if type(stream) in _AS_THEY_ARE:
        return stream
    if type(stream) is np.ndarray and stream.dtype is _INT64 and stream.ndim == 1:
        return stream.tobytes()
    return None
