"""Received messages that wait to be taken, by plane, and whose turn is next.

# NOTE [whose turn is next]
`ServerSockets.wait` reads each connection for a turn, and not at all while enough of it waits to be
taken: the rest stays in the kernel, and soon at the peer. `receive` goes round the connections that
have messages: a connection of a session has its turn after each one without a session. So a peer
that floods, or is slow, costs others one turn, and thousands of peers without a session cost those
that have one half of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from async_loader.feeder.server.peer_connection import PeerConnection
from async_loader.feeder.wire import Plane

PATIENCE = 16
"""Messages that cannot be read, or are of no session, before the connection is ended."""
_MOST_LEFT = 256
"""Ended connections without a session whose messages are kept."""
_TURN = 16
"""Messages of one connection before the others have their turn."""


class MessageQueues:
    """The connections with messages, of each plane.

    Attributes
    ----------
    known, strangers : dict of Plane to deque of PeerConnection
        With a session, and without.
    held : set of Plane
        Planes whose messages are not taken yet.
    """

    def __init__(self) -> None:
        self.known: dict[Plane, deque[PeerConnection]] = {plane: deque() for plane in Plane}
        self.strangers: dict[Plane, deque[PeerConnection]] = {plane: deque() for plane in Plane}
        self.held = {Plane.INSERT, Plane.PULL}
        self._left: deque[PeerConnection] = deque()

    @property
    def backlog(self) -> bool:
        """Whether there is a message that may be taken."""
        known, strangers, held = self.known, self.strangers, self.held
        return any((known[one] or strangers[one]) and one not in held for one in known)

    def add(self, link: PeerConnection) -> None:
        """Append a connection that has messages to the queue of its plane."""
        link.listed = True
        (self.known if link.known else self.strangers)[link.plane].append(link)

    def keep_ended(self, link: PeerConnection) -> None:
        """Keep the messages of an ended connection.

        Of many without a session the oldest are dropped.
        """
        self._left.append(link)
        if len(self._left) > _MOST_LEFT:
            forgotten = self._left.popleft()
            if not forgotten.known:
                forgotten.forget()

    def receive(
        self, plane: Plane, most: int, settle: Callable[[PeerConnection], None]
    ) -> Iterator[tuple[PeerConnection, list[Any]]]:
        """Yield up to ``most`` messages; call ``settle`` after each turn of a connection."""
        queues = (self.known[plane], self.strangers[plane])
        while any(queues):
            for queue in queues:
                if not queue:
                    continue
                if most <= 0:
                    return
                link = queue.popleft()
                messages = link.connection.messages
                try:
                    while messages and link.turn < _TURN and most > 0:
                        frames, nbytes = messages.popleft()
                        link.connection.held_bytes -= nbytes
                        link.turn += 1
                        most -= 1
                        yield link, frames
                        if link.refusals >= PATIENCE:
                            break
                finally:
                    settle(link)
