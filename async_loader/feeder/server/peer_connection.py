"""One accepted connection: its socket, received messages, and what waits to be sent.

Never waits.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from async_loader.feeder.wire import Plane
from async_loader.feeder.zmtp import Connection

# Messages of one peer that wait here to be taken, and to be sent. Rows and batches can be large:
# the rest waits at the peer, and a learner that does not read gets no more than this.
HIGH_WATER = {Plane.CONTROL: (256, 256), Plane.INSERT: (64, 1024), Plane.PULL: (256, 128)}
_HELD_BYTES = 8 << 20
"""Received and not taken, of one connection: beyond, it is not read."""
_TURN_BYTES, _TURN_FRAMES = 2 << 20, 1024
"""What is read from one connection before the others have their turn."""
_AT_ONCE = 64
"""Buffers in one system call."""
_JOINED = 16 << 10
"""A smaller message is sent as one buffer."""
_PONGS = 32
"""With more buffers waiting to be sent, PINGs are not answered."""
_FLAGS = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT


class PeerConnection:
    """One connection on one plane. Messages come with it as their route, and are answered over it.

    Parameters
    ----------
    sock : socket.socket
        The connection's from here on.
    plane : Plane
    connection : Connection

    Attributes
    ----------
    ends_at : float | None
        When it is ended: its handshake was not over, or an ERROR was sent.
    leaving : bool
        Whether nothing is taken from it any more.
    listed : bool
        Whether it is in a queue of its plane.
    mask : int
        Events that are waited for.
    paused : bool
        Whether it is not read, since enough messages wait to be taken.
    deaf : bool
        Whether nothing can be sent any more.
    ended : bool
        Whether its socket was closed; received messages may still wait.
    refusals : int
        Messages that could not be read, or were of no session.
    known : bool
        Whether it has carried a message of a session.
    """

    def __init__(self, sock: socket.socket, plane: Any, connection: Connection) -> None:
        self.sock, self.plane, self.connection = sock, plane, connection
        self.known = self.listed = self.paused = self.deaf = self.ended = self.leaving = False
        self.refusals = self.mask = 0
        self.ends_at: float | None = None
        self._epoll: Any = None
        self._out: deque[memoryview] = deque()
        self._ends: deque[int] = deque()  # end of each waiting message, in bytes since the start
        self._put = self._sent = 0

    @property
    def user(self) -> str | None:
        """The user whose key the peer has; ``None`` without keys, and during the handshake."""
        return self.connection.user

    @property
    def mark(self) -> int:
        """For `has_sent`: all that was given to be sent so far."""
        return self._put

    def has_sent(self, mark: int) -> bool:
        """Return whether all was sent that had been given at a `mark`, or will never be."""
        return self._sent >= mark

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent, with those of the protocol."""
        return self._put - self._sent

    def full(self, nbytes: int, most: int, most_bytes: int) -> bool:
        """Return whether too much waits to be sent for another message of ``nbytes``."""
        waits = self._put - self._sent
        return waits > 0 and (len(self._ends) >= most or waits + nbytes > most_bytes)

    def read(self, scratch: bytearray) -> bool:
        """Receive bytes, within a turn, until it `holds` enough; False: the peer has closed.

        Raises
        ------
        OSError, ProtocolError
        """
        connection, left = self.connection, _TURN_BYTES
        while left > 0 and not self.holds():
            space = connection.space(scratch)
            try:
                count = self.sock.recv_into(space)
            except (BlockingIOError, InterruptedError):
                return True
            if not count:
                return False
            connection.received(scratch, count, _TURN_FRAMES)
            if connection.cut_short or count < len(space):
                return True
            left -= count
        return True

    def watch(self, epoll: select.epoll, mask: int) -> None:
        """Wait for these events from now on; 0: for none."""
        before, self.mask = self.mask, mask
        if before and (not mask or epoll is not self._epoll):
            self._epoll.unregister(self.sock.fileno())
            before = 0
        self._epoll = epoll
        if mask and not before:
            epoll.register(self.sock.fileno(), mask)
        elif mask != before:
            epoll.modify(self.sock.fileno(), mask)

    def holds(self) -> bool:
        """Return whether enough waits to be taken."""
        connection = self.connection
        return (
            connection.cut_short
            or len(connection.messages) >= HIGH_WATER[self.plane][0]
            or connection.held_bytes >= _HELD_BYTES
        )

    def resume(self, scratch: bytearray) -> None:
        """Parse received bytes that were not parsed yet. Raises ProtocolError."""
        self.connection.resume(scratch, _TURN_FRAMES)

    def discard(self, scratch: bytearray) -> bool:
        """Read and drop bytes; return whether the peer has closed."""
        try:
            return not self.sock.recv_into(scratch)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def answer(self) -> None:
        """Send the answers of the protocol."""
        outgoing, self.connection.outgoing = self.connection.outgoing, []
        if len(self._out) < _PONGS:
            data = b"".join(outgoing)
            self._send([data], len(data))

    def send(self, message: Sequence[Any]) -> bool:
        """Send without blocking; return False if the peer is gone.

        Waiting buffers are not copied: do not change them.
        """
        if self.deaf:
            return False
        parts, nbytes = self.connection.encode(message)
        self._send(parts, nbytes)
        if self._out:
            self._ends.append(self._put)
        return not self.deaf

    def _send(self, parts: Sequence[Any], nbytes: int) -> None:
        if self.deaf:
            return
        waits = bool(self._out)
        if nbytes <= _JOINED:
            parts = [b"".join(parts)]
        self._out.extend(view for part in parts if (view := memoryview(part).cast("B")))
        self._put += nbytes
        if not waits:
            self.flush()

    def _hang_up(self) -> None:
        """Send nothing any more. What the peer sent before can still be read, and then its end."""
        self.deaf = True
        self._out.clear()
        self._ends.clear()
        self._sent = self._put

    def flush(self) -> bool:
        """Send what waits; return whether all of it was sent."""
        out = self._out
        while out:
            some = list(islice(out, _AT_ONCE))
            try:
                sent = self.sock.sendmsg(some, (), _FLAGS)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._hang_up()
                return True
            self._sent += sent
            while self._ends and self._ends[0] <= self._sent:
                self._ends.popleft()
            while sent and sent >= len(out[0]):
                sent -= len(out.popleft())
            if sent:
                out[0] = out[0][sent:]
        return True

    def empty(self, scratch: bytearray) -> None:
        """Read and drop all bytes: a close with unread ones could lose what was sent last."""
        with contextlib.suppress(OSError):
            while self.sock.recv_into(scratch) == len(scratch):
                continue

    def forget(self) -> None:
        """Drop received messages that were not taken."""
        self.connection.forget()

    def close(self) -> None:
        """Close the socket and drop what was not sent. May be called again."""
        self.ended = True
        self.sock.close()
        self._hang_up()


def flush_all(links: Iterable[PeerConnection], until: float) -> None:
    """Send what waits, until ``until`` on the monotonic clock at most."""
    with select.epoll() as epoll:
        waiting = {link.sock.fileno(): link for link in links if link.unsent_bytes}
        for fd in waiting:
            epoll.register(fd, select.EPOLLOUT)
        while waiting and (left := until - time.monotonic()) > 0:
            for fd, _ in epoll.poll(left):
                if waiting[fd].flush():
                    epoll.unregister(fd)
                    del waiting[fd]
