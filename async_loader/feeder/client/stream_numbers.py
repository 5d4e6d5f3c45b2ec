"""Numbers of a writer's streams, by name, in the order of their first use.

# NOTE [a number again]
The table knows a stream by its producer and its number. After the end of an episode the next step
of that number begins another one, whatever its name here. So of many names those whose episodes
have ended are forgotten, and their numbers reused.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError
from async_loader.feeder.wire import STREAMS
from async_loader.replay.stream_names import stream_name

OWN = 0
_MANY = 256
"""With this many names, those whose episodes have ended are forgotten."""


class StreamNumbers:
    """The streams of one writer. Any thread.

    Parameters
    ----------
    own : hashable
        The writer's own stream: number `OWN`, which is never forgotten.

    Attributes
    ----------
    finished : set of int
        Streams whose last episode has ended, or that have no step.
    """

    def __init__(self, own: Hashable) -> None:
        self.own = own
        self._numbers: dict[Hashable, int] = {own: OWN}
        self.finished: set[int] = {OWN}
        self._free: list[int] = []
        self._next, self._many = 1, _MANY
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of known names."""
        return len(self._numbers)

    def names(self) -> dict[Hashable, int]:
        """Return all known names with their numbers. Do not change it."""
        return self._numbers

    def number(self, name: object) -> int:
        """Return the number of a stream, whose episode goes on.

        Raises ConfigError for a wrong name.
        """
        kind = type(name)
        found = name if kind is int or kind is str else stream_name(name)
        number = self._numbers.get(found)
        if number is None:
            number = self._new(found)
        self.finished.discard(number)
        return number

    def known(self, name: object) -> int | None:
        """Return the number of a stream that was used and is not forgotten."""
        return self._numbers.get(stream_name(name))

    def of_rows(self, names: Hashable | Sequence[Hashable], rows: int) -> npt.NDArray[np.uint32]:
        """Return the numbers of one stream for all rows, or of each row's own, ``[rows]``."""
        if not isinstance(names, list):
            return np.full(rows, self.number(names), np.uint32)
        numbers = [self.number(name) for name in names]
        return np.array(numbers, np.uint32)

    def _new(self, name: Hashable) -> int:
        with self._lock:
            if len(self._numbers) >= self._many:
                self._forget_ended()
            if self._free:
                number = self._free.pop()
            elif self._next < STREAMS:
                number, self._next = self._next, self._next + 1
            else:
                text = (
                    f"{STREAMS} streams of this writer have open episodes, which is all that a "
                    "feeder takes"
                )
                raise ConfigError(f"stream={name!r}: {text}: end some, or use another writer")
            self._numbers[name] = number
            return number

    def _forget_ended(self) -> None:
        gone = [
            name for name, number in self._numbers.items() if number in self.finished and number
        ]
        for name in gone:
            number = self._numbers.pop(name)
            self.finished.discard(number)
            self._free.append(number)
        self._many = max(_MANY, 2 * len(self._numbers))

    def ended(self, numbers: Iterable[int]) -> None:
        """Note that the episodes of these streams have ended."""
        self.finished.update(numbers)

    def open(self) -> list[int]:
        """Return the streams with an open episode, as far as this writer knows."""
        return [number for number in list(self._numbers.values()) if number not in self.finished]
