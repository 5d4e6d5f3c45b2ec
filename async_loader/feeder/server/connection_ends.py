"""When connections are ended: handshakes that take too long, last words."""

from __future__ import annotations

from async_loader.feeder.server.peer_connection import PeerConnection

_HANDSHAKE_S = 5.0


class ConnectionEnds:
    """The connections that end when their time is over.

    Attributes
    ----------
    unready : dict of PeerConnection to None
        Within their handshake, oldest first.
    leaving : dict of PeerConnection to float
        An ERROR was sent: when they are closed.
    """

    def __init__(self) -> None:
        self.unready: dict[PeerConnection, None] = {}
        self.leaving: dict[PeerConnection, float] = {}

    def forget(self, link: PeerConnection) -> None:
        """Drop a connection that has ended."""
        self.unready.pop(link, None)
        self.leaving.pop(link, None)

    def moments(self) -> list[float]:
        """Return when `over` has to be called."""
        found = []
        if self.unready:
            found.append(next(iter(self.unready)).since + _HANDSHAKE_S)
        if self.leaving:
            found.append(next(iter(self.leaving.values())))
        return found

    def over(self, now: float) -> list[PeerConnection]:
        """Return the connections whose time is over."""
        found = []
        for link in self.unready:
            if link.since + _HANDSHAKE_S > now:
                break
            found.append(link)
        for link, until in self.leaving.items():
            if until > now:
                break
            found.append(link)
        return found
