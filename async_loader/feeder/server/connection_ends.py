"""When connections are ended: handshakes that take too long, last words, silent peers."""

from __future__ import annotations

from async_loader.feeder.server.peer_connection import PeerConnection

_HANDSHAKE_S = 5.0
_LOOK_S = 0.25  # between two searches for silent peers, at least


class ConnectionEnds:
    """The connections that end when their time is over.

    Attributes
    ----------
    unready : dict of PeerConnection to None
        Within their handshake, oldest first.
    leaving : dict of PeerConnection to float
        An ERROR was sent: when they are closed.
    mortal : dict of PeerConnection to None
        Have a time to live.
    """

    def __init__(self) -> None:
        self.unready: dict[PeerConnection, None] = {}
        self.leaving: dict[PeerConnection, float] = {}
        self.mortal: dict[PeerConnection, None] = {}
        self._look = 0.0

    def forget(self, link: PeerConnection) -> None:
        """Drop a connection that has ended."""
        self.unready.pop(link, None)
        self.leaving.pop(link, None)
        self.mortal.pop(link, None)

    def note_mortal(self, link: PeerConnection, until: float) -> None:
        """Look for this connection's end by ``until``, unless it is heard meanwhile."""
        self.mortal[link] = None
        self._look = min(self._look, until)

    def moments(self) -> list[float]:
        """Return when `over` has to be called."""
        found = []
        if self.unready:
            found.append(next(iter(self.unready)).since + _HANDSHAKE_S)
        if self.leaving:
            found.append(next(iter(self.leaving.values())))
        if self.mortal:
            found.append(self._look)
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
        if self.mortal and now >= self._look:
            silent, due = self._silent(now)
            found += silent
            self._look = max(now + _LOOK_S, due)
        return found

    def _silent(self, now: float) -> tuple[list[PeerConnection], float]:
        """Return connections whose time to live is over, and when the next one may be.

        Unread bytes count as a sign of life. Connections without a time to live are dropped.
        """
        silent, ends = [], []
        for link in list(self.mortal):
            ttl_s = link.connection.ttl_s
            if ttl_s is None:
                del self.mortal[link]
                continue
            if link.paused or (link.heard + ttl_s <= now and link.readable()):
                link.heard = now
            if link.heard + ttl_s <= now:
                silent.append(link)
            else:
                ends.append(link.heard + ttl_s)
        return silent, min(ends, default=now)
