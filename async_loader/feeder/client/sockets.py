"""The three ZeroMQ sockets of a client, which keep what cannot be sent yet.

# NOTE [cut]
ZeroMQ reconnects by itself and does not report lost messages: a BATCH that the server counts as
sent, a RETURN, a request. Nothing would replace these while the session lives. So the end of a
connection ends the session; INSERTs are numbered, and sent again in the next one.
A server that ends closes all: what it sent on the other planes is read before.

# NOTE [half-open]
A peer, or a router, that vanishes leaves a connection that accepts messages and delivers none. A
session notices it by its own heartbeats on the control plane, but not on the data planes. So
ZeroMQ's heartbeats (ZMTP 3.1, PING with a time to live) go over the data planes: a side that has
heard nothing for too long ends the connection.

# NOTE [last words]
No socket has ZMQ_IMMEDIATE: with it a socket drops received messages that were not read when its
connection ends, as libzmq ends the pipe of such a socket without waiting for its reader. Those
would be END, and the last batches.

# NOTE [room on the way]
A server alternates: it receives a message, then writes its rows into the table. Meanwhile the
kernel takes 208 KiB more from a Unix socket, and the sender waits: this costs 20 % of the rate of
rows of 56 KB. libzmq sets the size of that buffer for TCP only, so it is set here, on the
descriptor that the socket's monitor reports.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket as hosts
from collections.abc import Iterator
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from async_loader.errors import ConfigError
from async_loader.feeder.client.errors import refusal_of
from async_loader.feeder.curve_keys import ClientKeys, apply_client_keys
from async_loader.feeder.wire import MESSAGE_BYTES, Plane, Welcome

_OPTIONS: dict[Any, int] = {
    zmq.LINGER: 0,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.SNDHWM: 0,  # windows and calls bound what is under way
    zmq.RCVHWM: 1000,
    zmq.TCP_KEEPALIVE: 1,
}
_LOCAL_BYTES = 1 << 20
"""Bytes of INSERTs in the kernel, to a server on this host. See NOTE [room on the way]."""
_LAST_MS = 200
"""For the last message, to a server that does not read."""
_MOST_TTL_MS = 6_553_500
"""It is sent as 16 bits of tenths of seconds."""
_MOST_MS = 2**31 - 1
_REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
SILENCES = 3
"""A silent data connection is given up after this many times the silence that ends a session. Not
after one: a heartbeat waits behind the message under way, and a large batch takes time."""
_IN_TURN = 256
"""Messages of one plane that are read before the others have their turn."""
_EVERYWHERE = re.compile(r"^tcp://(?:\*|0\.0\.0\.0|\[::\]):")


class Sockets:
    """The sockets to one server. They belong to the IO thread.

    Parameters
    ----------
    wake : int
        A descriptor that ends a wait when it is readable.
    keys : ClientKeys, optional
        Without keys, connections are not encrypted.

    Attributes
    ----------
    refusal : tuple of (str, bool) | None
        Why the last connection was refused, and whether the next one will be; see `refusal_of`.
    """

    def __init__(self, wake: int, keys: ClientKeys | None = None) -> None:
        self._address, self._wake, self._keys = "", wake, keys
        self._context = zmq.Context()
        self._sockets: dict[Plane, Any] = {}
        self._ends: dict[Plane, Any] = {}
        self.refusal: tuple[str, bool] | None = None
        self._poller = zmq.Poller()
        self._poller.register(wake, zmq.POLLIN)
        self._ready: dict[Any, int] = {}  # from the last wait

    def open_control(self, address: str) -> None:
        """Connect the control plane. Raises ConfigError for a wrong address."""
        self.leave()
        self._address = address
        self._open(Plane.CONTROL, self._address, MESSAGE_BYTES)

    def open_data(self, welcome: Welcome) -> None:
        """Connect to the endpoints that WELCOME names. See NOTE [half-open]."""
        heartbeat_s, silence_s = welcome.heartbeat_s, welcome.silence_s
        gone_ms = max(100, min(int(SILENCES * silence_s * 1000), _MOST_MS))
        alive = {
            zmq.HEARTBEAT_IVL: max(1, int(heartbeat_s * 1000)),
            zmq.HEARTBEAT_TIMEOUT: gone_ms,
            zmq.HEARTBEAT_TTL: min(gone_ms, _MOST_TTL_MS),
        }
        self._open(Plane.INSERT, self._seen_from_here(welcome.insert_endpoint), 1 << 20, alive)
        self._open(
            Plane.PULL,
            self._seen_from_here(welcome.pull_endpoint),
            welcome.limits.message_bytes,
            alive,
        )

    def leave(self) -> None:
        """Close the sockets; messages that were not sent are dropped."""
        for plane, socket in self._sockets.items():
            self._poller.unregister(socket)
            monitor = self._ends[plane]
            self._poller.unregister(monitor)
            socket.disable_monitor()
            monitor.close(0)
            socket.close()
        self._sockets.clear()
        self._ends.clear()
        self._ready.clear()

    def close(self) -> None:
        self.leave()
        self._context.term()

    def send(self, plane: Plane, frames: list[Any]) -> None:
        """Send now, or as soon as possible, in order.

        Drops what has no connection any more: it was refused just now, as `cut` will say.
        """
        # Buffers other than frames are copied: else pyzmq starts a thread of its own for good.
        with contextlib.suppress(zmq.Again):
            self._sockets[plane].send_multipart(frames, zmq.NOBLOCK)

    def linger(self) -> None:
        """Let `close` wait a moment for the last messages of the control plane."""
        self._sockets[Plane.CONTROL].setsockopt(zmq.LINGER, _LAST_MS)

    def messages(self) -> Iterator[tuple[Plane, list[Any]]]:
        """Return the messages that were there at the end of the last `wait`, and their planes."""
        for plane in list(self._sockets):
            for _ in range(_IN_TURN):
                socket = self._sockets.get(plane)
                if (
                    socket is None
                    or socket not in self._ready
                    or not socket.getsockopt(zmq.EVENTS) & zmq.POLLIN
                ):
                    break  # asking is cheaper than an exception
                with contextlib.suppress(zmq.Again):  # it has ended just now: NOTE [last words]
                    yield plane, socket.recv_multipart(zmq.NOBLOCK, copy=False)

    def cut(self) -> bool:
        """Return whether a connection has ended at the last `wait`. See NOTE [cut]."""
        ended = False
        for plane, end in self._ends.items():
            if end not in self._ready:
                continue
            with contextlib.suppress(zmq.Again):
                while True:
                    said = parse_monitor_message(end.recv_multipart(zmq.NOBLOCK))
                    if said["event"] == zmq.EVENT_CONNECTED:
                        _make_room(int(said["value"]))
                        continue
                    if said["event"] & _REFUSED:
                        self.refusal = refusal_of(
                            int(said["event"]), int(said["value"]), self._keys is not None
                        )
                    ended = True
            self._ready[self._sockets[plane]] = zmq.POLLIN  # its last messages may be newer
        return ended

    def wait(self, left_s: float) -> None:
        """Wait for a message, ``wake``, or the time."""
        timeout = None if left_s == math.inf else max(0, int(left_s * 1000 + 0.999))
        self._ready = dict(self._poller.poll(timeout))

    @property
    def rang(self) -> bool:
        """Whether ``wake`` was readable at the end of the last `wait`."""
        return self._wake in self._ready

    def _open(
        self, plane: Plane, endpoint: str, frame_bytes: int, more: dict[Any, int] | None = None
    ) -> None:
        socket = self._context.socket(zmq.DEALER)
        events: int = zmq.EVENT_DISCONNECTED | _REFUSED
        if plane is Plane.INSERT and endpoint.startswith("ipc:"):
            events |= zmq.EVENT_CONNECTED
        self._sockets[plane] = socket
        self._ends[plane] = end = socket.get_monitor_socket(events)
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(end, zmq.POLLIN)
        for option, value in (_OPTIONS | (more or {})).items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
        if "[" in endpoint:
            socket.setsockopt(zmq.IPV6, 1)
        if self._keys is not None:
            apply_client_keys(socket, self._keys)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"the {plane.value} plane of the feeder at {self._address} cannot be connected to "
                f"at {endpoint!r} ({error}): connect to, or bind it to, another address"
            ) from None

    def _seen_from_here(self, endpoint: str) -> str:
        host = re.match(r"^tcp://(.*):\d+$", self._address)
        return (
            _EVERYWHERE.sub(lambda _: f"tcp://{host[1]}:", endpoint)
            if host is not None
            else endpoint
        )


def _make_room(descriptor: int) -> None:
    """See NOTE [room on the way]."""
    # an ended connection has no descriptor, or another socket has its number: harmless
    with contextlib.suppress(OSError):
        connection = hosts.socket(fileno=descriptor)
        try:
            connection.setsockopt(hosts.SOL_SOCKET, hosts.SO_SNDBUF, _LOCAL_BYTES)
        finally:
            connection.detach()  # it is ZeroMQ's
