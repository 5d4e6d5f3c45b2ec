"""Received messages that wait to be taken, by plane, and whose turn is next.

# NOTE [whose turn is next]
`ServerSockets.wait` reads each connection for a turn, and not at all while enough of it waits to be
taken: the rest stays in the kernel, and soon at the peer. `receive` goes round the connections that
have messages. So a peer that floods, or is slow, costs others one turn.

# NOTE [strangers]
Connections that have carried no message of a session, of which there can be thousands, have little
of a round, whatever they send: `wait` reads some of them, for a shorter turn, and `receive` ends
their part when it has cost what `_STRANGERS_COST` says, in frames. All of them hold no more memory
than one message may have: beyond, the one that holds most is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from async_loader.errors import Malformed
from async_loader.feeder.server.peer_connection import PeerConnection
from async_loader.feeder.wire import ErrorCode, Plane, encode, refuse

PATIENCE = 16
"""Messages that cannot be read, or are of no session, before the connection is ended."""
_TURN = 16
"""Messages of one connection before the others have their turn."""
_STRANGERS_COST, _MESSAGE_COST = 2048, 8
"""In frames: what those without a session may cost in one `receive`, of which each message costs
some by itself. See NOTE [strangers]."""


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
        self._held: dict[PeerConnection, int] = {}  # bytes of strangers
        self._held_bytes = 0

    @property
    def backlog(self) -> bool:
        """Whether there is a message that may be taken."""
        known, strangers, held = self.known, self.strangers, self.held
        return any((known[one] or strangers[one]) and one not in held for one in known)

    def add(self, link: PeerConnection) -> None:
        """Append a connection that has messages to the queue of its plane."""
        link.listed = True
        (self.known if link.known else self.strangers)[link.plane].append(link)

    def receive(
        self, plane: Plane, most: int, settle: Callable[[PeerConnection], None]
    ) -> Iterator[tuple[PeerConnection, list[Any]]]:
        """Yield up to ``most`` messages; call ``settle`` after each turn of a connection."""
        known, strangers = self.known[plane], self.strangers[plane]
        left = _STRANGERS_COST
        while known or (strangers and left > 0):
            for queue in (known, strangers):
                if not queue or (queue is strangers and left <= 0):
                    continue
                if most <= 0:
                    return
                link = queue.popleft()
                messages = link.connection.messages
                left -= (
                    0
                    if link.known
                    else _MESSAGE_COST + link.turn_frames * link.connection.cut_short
                )
                try:
                    while messages and link.turn < _TURN and most > 0:
                        frames, nbytes = messages.popleft()
                        link.connection.held_bytes -= nbytes
                        link.turn += 1
                        most -= 1
                        left -= 0 if link.known else _MESSAGE_COST + len(frames)
                        yield link, frames
                        if link.refusals >= PATIENCE or (left <= 0 and not link.known):
                            break
                finally:
                    settle(link)

    def weigh(self, link: PeerConnection, most: int) -> list[PeerConnection]:
        """Note what a connection holds, if it is a stranger.

        While strangers hold more than ``most``, the messages of the one that holds most are
        dropped. Return these connections.
        """
        held = 0 if link.known else link.connection.memory
        self._held_bytes += held - self._held.pop(link, 0)
        if held:
            self._held[link] = held
        largest = []
        while self._held_bytes > most:
            largest.append(max(self._held, key=self._held.__getitem__))
            self._held_bytes -= self._held.pop(largest[-1])
            largest[-1].forget()
        return largest


def too_much(most: int) -> list[Any]:
    """Return the message to a stranger that is refused."""
    text = f"clients that have no session yet hold {most} bytes here, which is the limit"
    refusal = refuse(Malformed(f"{text}: say HELLO first", ErrorCode.LIMIT))
    assert refusal is not None
    return encode(refusal)
