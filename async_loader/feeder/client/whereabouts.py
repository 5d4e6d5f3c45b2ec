"""Where the server of a client is, asked at each attempt to connect."""

from __future__ import annotations


class Whereabouts:
    """A server that is started anew at the same address. Others know where theirs has moved.

    Threads: all is called by the client's IO thread, and waits for nothing.

    Parameters
    ----------
    address : str
    """

    def __init__(self, address: str) -> None:
        self._address = address

    @property
    def address(self) -> str:
        """The control endpoint. Raises what ends the client, if there will be no other session."""
        return self._address

    def changed(self, reached: bool) -> None:
        """Note that there is a session; or that it is over, or an attempt to open one failed."""
