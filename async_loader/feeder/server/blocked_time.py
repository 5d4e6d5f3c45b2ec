"""For how long something could not go on."""

from __future__ import annotations


class BlockedTime:
    """Adds up the seconds from each `note` of a block to the next one without."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds = 0.0

    def note(self, blocked: bool, now: float) -> None:
        if blocked and self._since is None:
            self._since = now
        elif not blocked and self._since is not None:
            self._seconds += now - self._since
            self._since = None

    def drop(self) -> None:
        """Forget a block: no reader waits any more."""
        self._since = None

    def seconds(self, now: float) -> float:
        """Return the seconds so far, with those of a block that lasts."""
        return self._seconds + (0.0 if self._since is None else now - self._since)
