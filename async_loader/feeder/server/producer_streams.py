"""The streams of one producer: its own numbers, and the table's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from async_loader.errors import Malformed
from async_loader.feeder.wire import STREAMS
from async_loader.replay.table.nonblocking_table import NonblockingTable

_UNUSED = -1
Numbers = npt.NDArray[np.int64]


class ProducerStreams:
    """Table streams by the producer's own numbers.

    Parameters
    ----------
    key : bytes
        Of the producer.
    table : NonblockingTable
    """

    def __init__(self, key: bytes, table: NonblockingTable) -> None:
        self._key, self._table = key.hex(), table
        self._numbers: Numbers = np.empty(0, np.int64)

    def of(self, said: npt.NDArray[np.uint32]) -> Numbers:
        """Return the table's streams; new ones are added.

        Raises Malformed for a number too high.
        """
        most = int(said.max())
        if most >= len(self._numbers):
            if most >= STREAMS:
                text = f"a row is of stream {most}, a producer has at most {STREAMS}"
                raise Malformed(f"{text}: number streams from 0")
            more = np.full(max(most + 1, 2 * len(self._numbers)), _UNUSED, np.int64)
            more[: len(self._numbers)] = self._numbers
            self._numbers = more
        numbers = self._numbers[said]
        if (numbers < 0).any():
            for one in np.unique(said[numbers < 0]).tolist():
                self._numbers[one] = self._table.stream((self._key, one))
            numbers = self._numbers[said]
        return numbers

    def _used(self) -> list[int]:
        return [int(one) for one in self._numbers if one != _UNUSED]

    def end(self) -> None:
        """End the open episodes."""
        self._table.end(self._used())

    def release(self) -> None:
        """End the open episodes and let the table forget the streams."""
        used = self._used()
        self._table.end(used)
        self._table.release(used)

    def release_ended(self) -> None:
        """Let the table forget the streams whose episodes have ended."""
        if not len(self._numbers):
            return
        left = self._numbers.copy()
        for one in np.flatnonzero(left != _UNUSED):
            if not self._table.is_open(int(left[one])):
                left[one] = _UNUSED
        self._table.release(self._numbers[self._numbers != left].tolist())
        self._numbers = left if (left != _UNUSED).any() else np.empty(0, np.int64)

    def renumber(self) -> dict[int, int]:
        """Forget the table's numbers, which a load has changed.

        Return own numbers by the old ones.
        """
        before = {
            number: said for said, number in enumerate(self._numbers.tolist()) if number != _UNUSED
        }
        self._numbers = np.empty(0, np.int64)
        return before
