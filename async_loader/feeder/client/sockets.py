"""The three sockets of a client, and what could not be sent on them yet. Used by the IO thread only; reads no message.

NOTE [cut]. ZeroMQ connects again by itself, and tells nobody that what was under way is gone: a BATCH that the server counts as
sent, a RETURN, a request that somebody waits for. Nothing would ever replace these while the session lives. So the end of a
connection on the control and pull planes is looked for; INSERTs are numbered, and sent again anyway.

NOTE [half-open]. A peer, or a box on the way, that disappears without a word leaves a connection that takes everything and gives
nothing. A session notices by its own heartbeats, which are heard on the control plane; that its batches are gone it would never
notice. So ZeroMQ's heartbeats (ZMTP 3.1, PING with a time to live) go over the data planes: whichever side has heard nothing for
too long after one gives the connection up, and is cut.

NOTE [last words]. With ZMQ_IMMEDIATE a socket forgets what had come and was not received when its connection ends: libzmq ends
the pipe of such a socket without waiting for its reader. That would be END, and the last batches. So only the insert plane has
it, where it keeps messages from queueing for nobody, and where what comes is acknowledged again.

NOTE [room on the way]. A server takes turns: it receives a message, then writes its rows into the table. Meanwhile the kernel
takes 208 KiB more from a Unix socket, and the sender waits: 20 % of the rate of rows of 56 KB. libzmq sets the size of that
buffer for TCP alone, so it is set here, on the descriptor that the socket's monitor names.
"""

from __future__ import annotations

import contextlib
import enum
import re
import socket as hosts
from collections import deque
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from async_loader.errors import ConfigError
from async_loader.feeder.client.errors import refusal_of
from async_loader.feeder.curve_auth import apply_client_keys
from async_loader.feeder.curve_keys import ClientKeys

_OPTIONS: dict[Any, int] = {
    zmq.LINGER: 0,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.SNDHWM: 1000,
    zmq.RCVHWM: 1000,
    zmq.TCP_KEEPALIVE: 1,
}
_MOST_TTL_MS = 6_553_500
"""It travels as 16 bits of tenths of seconds."""
_CONTROL_BYTES = 64 << 20
"""Of a frame on the control plane: a part of weights."""
_LOCAL_BYTES = 1 << 20
"""That the kernel keeps of INSERTs to a server on this host. See NOTE [room on the way]."""
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
SILENCES = 3
"""After how often the time that ends a session a data connection without a sign of life is given up. Not once: a heartbeat stands
behind the message that is under way, and a large batch on a thin line takes its time."""
_EVERYWHERE = re.compile(r"^tcp://(?:\*|0\.0\.0\.0|\[::\]):")


class Plane(enum.IntEnum):
    CONTROL = 0
    INSERT = 1
    PULL = 2


class Sockets:
    """Sockets to one server.

    Parameters
    ----------
    address : str
        The control endpoint.
    wake : int
        A descriptor that ends a wait.
    keys : ClientKeys, optional
        Without them nothing is encrypted.

    Attributes
    ----------
    refusal : tuple of (str, bool) | None
        Why a connection was refused last, and whether it always will be; see `refusal_of`.
    """

    def __init__(self, address: str, wake: int, keys: ClientKeys | None = None) -> None:
        self._address, self._wake, self._keys = address, wake, keys
        self._context = zmq.Context()
        self._sockets: dict[Plane, Any] = {}
        self._queues: dict[Plane, deque[list[Any]]] = {plane: deque() for plane in Plane}
        self._full: set[Plane] = set()
        self._ends: dict[Plane, Any] = {}
        self._begin: Any = None  # says which descriptor the insert plane's connection has
        self.refusal: tuple[str, bool] | None = None
        self._poller = zmq.Poller()
        self._poller.register(wake, zmq.POLLIN)
        self._ready: dict[Any, int] = {}  # what the last wait found
        self._followed: int | None = None
        self._watched: dict[int, Any] = {}

    def open_control(self) -> None:
        """Raises ConfigError for an address that is none."""
        self.leave()
        self._open(Plane.CONTROL, self._address, _CONTROL_BYTES)

    def open_data(self, insert: str, pull: str, message_bytes: int, heartbeat_s: float, silence_s: float) -> None:
        """The endpoints that WELCOME names. See NOTE [half-open]."""
        gone_ms = max(100, int(SILENCES * silence_s * 1000))
        alive = {
            zmq.HEARTBEAT_IVL: max(1, int(heartbeat_s * 1000)),
            zmq.HEARTBEAT_TIMEOUT: gone_ms,
            zmq.HEARTBEAT_TTL: min(gone_ms, _MOST_TTL_MS),
        }
        self._open(Plane.INSERT, self._seen_from_here(insert), 1 << 20, alive)
        self._open(Plane.PULL, self._seen_from_here(pull), message_bytes, alive)

    def leave(self) -> None:
        """Close the sockets; what was not sent is forgotten."""
        for plane, socket in self._sockets.items():
            self._poller.unregister(socket)
            monitor = self._ends.pop(plane, None)
            if plane is Plane.INSERT:
                monitor, self._begin = self._begin, None
            if monitor is not None:
                self._poller.unregister(monitor)
                socket.disable_monitor()
                monitor.close(0)
            socket.close()
        self._sockets.clear()
        self._full.clear()
        self._ready.clear()
        for queue in self._queues.values():
            queue.clear()

    def close(self) -> None:
        self.leave()
        self._context.term()

    def send(self, plane: Plane, frames: list[Any]) -> None:
        """Now, or as soon as it can be, in order."""
        if self._queues[plane] or not self.send_now(plane, frames):
            self._queues[plane].append(frames)

    def send_now(self, plane: Plane, frames: list[Any]) -> bool:
        """Whether it could be sent. If not, `wait` returns when it is worth another try."""
        socket = self._sockets.get(plane)
        if socket is None:
            return False
        try:
            # All but frames are copied: without, pyzmq keeps a thread and sockets of its own for the rest of the process.
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._full.add(plane)
            self._poller.modify(socket, zmq.POLLIN | zmq.POLLOUT)
            return False
        return True

    def receive(self, plane: Plane) -> list[Any] | None:
        """The frames of the next message, if one had come by the end of the last `wait`."""
        socket = self._sockets.get(plane)
        if socket is None or socket not in self._ready or not socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            return None  # asking is cheaper than an exception
        try:
            frames: list[Any] = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:  # its connection has ended just now; see NOTE [last words]
            return None
        return frames

    def cut(self) -> set[Plane]:
        """Which connections have ended since the last time. See NOTE [cut]."""
        ended = set()
        for plane, end in self._ends.items():
            if end not in self._ready:
                continue
            with contextlib.suppress(zmq.Again):
                while True:
                    said = parse_monitor_message(end.recv_multipart(zmq.NOBLOCK))
                    if said["event"] & _REFUSED:
                        self.refusal = refusal_of(int(said["event"]), int(said["value"]), self._keys is not None)
                    ended.add(plane)
        for plane in ended:  # its last words may have come after the poller had looked at it
            self._ready[self._sockets[plane]] = zmq.POLLIN
        return ended

    def follow(self, descriptor: int) -> None:
        """`wait` ends when it is readable, too; there is one at most."""
        if self._followed is None:
            self._followed = descriptor
            self._poller.register(descriptor, zmq.POLLIN)

    def watch(self, what: Any) -> None:
        """`wait` ends when it is readable, too, until it is closed: its ``fileno()`` is -1 then."""
        descriptor = what.fileno()
        if descriptor >= 0:
            self._watched[descriptor] = what
            self._poller.register(descriptor, zmq.POLLIN)

    def wait(self, left_s: float | None) -> bool:
        """Until something came, something more can be sent, somebody rang, or the time is over; or until the descriptor that is
        followed is readable: whether it is.
        """
        if self._watched:
            self._forget_closed()
        self._ready = dict(self._poller.poll(None if left_s is None else max(0, int(left_s * 1000 + 0.999))))
        if self._full:
            for plane in self._full:
                self._poller.modify(self._sockets[plane], zmq.POLLIN)
            self._full.clear()
        for plane, queue in self._queues.items():
            while queue and self.send_now(plane, queue[0]):
                queue.popleft()
        if self._begin is not None and self._begin in self._ready:
            self._make_room()
        return self._followed in self._ready

    def _make_room(self) -> None:
        """See NOTE [room on the way]."""
        with contextlib.suppress(zmq.Again):
            while True:
                descriptor = int(parse_monitor_message(self._begin.recv_multipart(zmq.NOBLOCK))["value"])
                # A connection that has ended meanwhile has no descriptor, or another socket has its number: no harm is done.
                with contextlib.suppress(OSError):
                    connection = hosts.socket(fileno=descriptor)
                    try:
                        connection.setsockopt(hosts.SOL_SOCKET, hosts.SO_SNDBUF, _LOCAL_BYTES)
                    finally:
                        connection.detach()  # it is ZeroMQ's

    @property
    def rang(self) -> bool:
        """Whether ``wake`` was readable at the end of the last `wait`."""
        return self._wake in self._ready

    def ready(self) -> list[Plane]:
        """Those of which something had come by the end of the last `wait`."""
        return [plane for plane, socket in self._sockets.items() if socket in self._ready]

    def _forget_closed(self) -> None:
        for descriptor in [fd for fd, what in self._watched.items() if what.fileno() != fd]:
            del self._watched[descriptor]
            self._poller.unregister(descriptor)

    def _open(self, plane: Plane, endpoint: str, frame_bytes: int, more: dict[Any, int] | None = None) -> None:
        socket = self._context.socket(zmq.DEALER)
        self._sockets[plane] = socket
        self._poller.register(socket, zmq.POLLIN)
        for option, value in (_OPTIONS | (more or {})).items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.IMMEDIATE, plane is Plane.INSERT)  # see NOTE [last words]
        socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
        if "[" in endpoint:
            socket.setsockopt(zmq.IPV6, 1)
        if self._keys is not None:
            apply_client_keys(socket, self._keys)
        if plane is not Plane.INSERT:
            self._ends[plane] = end = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | _REFUSED)
            self._poller.register(end, zmq.POLLIN)
        elif endpoint.startswith("ipc:"):
            self._begin = socket.get_monitor_socket(zmq.EVENT_CONNECTED)
            self._poller.register(self._begin, zmq.POLLIN)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            text = f"{endpoint!r} is no address to connect to ({error}): give tcp://host:port or ipc:///path"
            raise ConfigError(text) from None

    def _seen_from_here(self, endpoint: str) -> str:
        host = re.match(r"^tcp://(.*):\d+$", self._address)
        return _EVERYWHERE.sub(lambda _: f"tcp://{host[1]}:", endpoint) if host is not None else endpoint
