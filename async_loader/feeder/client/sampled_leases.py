"""Leases of batches that were drawn for a call, until the feeder knows what became of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from async_loader.feeder.wire import CloseReader, Return


@dataclass(slots=True)
class SampledLeases:
    """The leases of a `SampleChannel`.

    Attributes
    ----------
    used : deque of int
        User code has their batches.
    late : list of int
        Of calls that were given up.
    most : int
        The largest lease that was returned since the reader was opened; -1: none.
    parting : CloseReader | None
        What was sent last of a channel that closes.
    """

    used: deque[int] = field(default_factory=deque)
    late: list[int] = field(default_factory=list)
    most: int = -1
    parting: CloseReader | None = None

    def begin(self) -> None:
        """Forget them: there is a new session, in which leases count anew."""
        self.used.clear()
        self.late.clear()
        self.most = -1

    def returned(self) -> Return:
        """Return the message that returns what was used."""
        numbers = [self.used.popleft() for _ in range(len(self.used))]
        self.most = max(self.most, *numbers)
        return Return(np.array(numbers, np.uint64))

    def closing(self) -> CloseReader:
        """Return the message that closes the reader: all but the late ones were used."""
        late, self.late = self.late, []
        arrived = max([self.most, *late]) + 1
        self.most = -1  # those of the next reader of this number count anew
        return CloseReader(arrived, 0, np.array(late, np.uint64))
