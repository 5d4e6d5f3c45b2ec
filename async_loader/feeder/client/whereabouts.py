"""Where the server of a client is, asked at each attempt to connect."""

from __future__ import annotations

from typing import Protocol


class Whereabouts(Protocol):
    """Knows the address of a server that may move when it is started anew.

    Threads: all methods are called by the client's IO thread, and wait for nothing.
    """

    def now(self) -> str:
        """Return the control endpoint."""

    def reached(self, server: int) -> None:
        """Note that there is a session; ``server``: see `IoThread`."""

    def lost(self) -> None:
        """Note that a session has ended, or that an attempt to open one has failed."""

    def ended(self) -> None:
        """Note that there will be no other session: the client is closed, or was refused."""


class FixedAddress:
    """A server that is started anew at the same address.

    Parameters
    ----------
    address : str
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def now(self) -> str:
        """See `Whereabouts`."""
        return self._address

    def reached(self, server: int) -> None:
        """See `Whereabouts`."""

    def lost(self) -> None:
        """See `Whereabouts`."""

    def ended(self) -> None:
        """See `Whereabouts`."""
