"""The three sockets of a client, and what could not be sent on them yet. Used by the IO thread only; reads no message.

NOTE [cut]. ZeroMQ connects again by itself, and tells nobody that what was under way is gone: a BATCH that the server counts as
sent, a RETURN, a request that somebody waits for. Nothing would ever replace these while the session lives. So the end of a
connection on the control and pull planes is looked for; INSERTs are numbered, and sent again anyway.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections import deque
from typing import Any

import zmq

from async_loader.errors import ConfigError
from async_loader.feeder.auth import apply_client_keys
from async_loader.feeder.keys import ClientKeys

_OPTIONS = {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 1,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.SNDHWM: 1000,
    zmq.RCVHWM: 1000,
    zmq.TCP_KEEPALIVE: 1,
}
_CONTROL_BYTES = 64 << 20
"""Of a frame on the control plane: a part of weights."""
_EVERYWHERE = re.compile(r"^tcp://(?:\*|0\.0\.0\.0|\[::\]):")


class Plane(enum.Enum):
    CONTROL = 0
    INSERT = 1
    PULL = 2


class Planes:
    """Sockets to one server.

    Parameters
    ----------
    address : str
        The control endpoint.
    wake : int
        A descriptor that ends a wait.
    keys : ClientKeys, optional
        Without them nothing is encrypted.
    """

    def __init__(self, address: str, wake: int, keys: ClientKeys | None = None) -> None:
        self._address, self._wake, self._keys = address, wake, keys
        self._context = zmq.Context()
        self._sockets: dict[Plane, Any] = {}
        self._queues: dict[Plane, deque[list[Any]]] = {plane: deque() for plane in Plane}
        self._full: set[Plane] = set()
        self._ends: dict[Plane, Any] = {}
        self.watched: set[Any] = set()
        self._poller = zmq.Poller()
        self._polled: tuple[tuple[Any, int], ...] = ()
        self._seen: set[Any] = set()

    def open_control(self) -> None:
        """Raises ConfigError for an address that is none."""
        self.leave()
        self._open(Plane.CONTROL, self._address, _CONTROL_BYTES)

    def open_data(self, insert: str, pull: str, message_bytes: int) -> None:
        """The endpoints that WELCOME names."""
        self._open(Plane.INSERT, self._seen_from_here(insert), 1 << 20)
        self._open(Plane.PULL, self._seen_from_here(pull), message_bytes)

    def leave(self) -> None:
        """Close the sockets; what was not sent is forgotten."""
        for plane, socket in self._sockets.items():
            end = self._ends.pop(plane, None)
            if end is not None:
                socket.disable_monitor()
                end.close(0)
            socket.close()
        self._sockets.clear()
        self._full.clear()
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
            # Copied: without, pyzmq keeps a thread and sockets of its own for the rest of the process.
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._full.add(plane)
            return False
        return True

    def receive(self, plane: Plane) -> list[Any] | None:
        """The frames of the next message, if one had come when `wait` returned."""
        socket = self._sockets.get(plane)
        if socket is None or socket not in self._seen:
            return None
        try:
            frames: list[Any] = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return frames

    def cut(self) -> set[Plane]:
        """Which connections have ended since the last time. See NOTE [cut]."""
        ended = set()
        for plane, end in self._ends.items():
            if end not in self._seen:
                continue
            with contextlib.suppress(zmq.Again):
                while True:
                    end.recv_multipart(zmq.NOBLOCK)
                    ended.add(plane)
        return ended

    def wait(self, left_s: float | None) -> None:
        """Until something came, something more can be sent, somebody rang, or the time is over."""
        if self.watched:
            self.watched = {one for one in self.watched if one.fileno() >= 0}
        both, one_way = zmq.POLLIN | zmq.POLLOUT, zmq.POLLIN
        polled = (
            *((socket, both if plane in self._full else one_way) for plane, socket in self._sockets.items()),
            *((one, one_way) for one in (self._wake, *self._ends.values(), *(one.fileno() for one in self.watched))),
        )
        if polled != self._polled:
            self._poller, self._polled = zmq.Poller(), polled
            for one, events in polled:
                self._poller.register(one, events)
        seen = self._poller.poll(None if left_s is None else max(0, int(left_s * 1000 + 0.999)))
        self._seen = {one for one, _ in seen}
        self._full.clear()
        for plane, queue in self._queues.items():
            while queue and self.send_now(plane, queue[0]):
                queue.popleft()

    def _open(self, plane: Plane, endpoint: str, frame_bytes: int) -> None:
        socket = self._context.socket(zmq.DEALER)
        self._sockets[plane] = socket
        for option, value in _OPTIONS.items():
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
        if "[" in endpoint:
            socket.setsockopt(zmq.IPV6, 1)
        if self._keys is not None:
            apply_client_keys(socket, self._keys)
        if plane is not Plane.INSERT:
            self._ends[plane] = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            text = f"{endpoint!r} is no address to connect to ({error}): give tcp://host:port or ipc:///path"
            raise ConfigError(text) from None

    def _seen_from_here(self, endpoint: str) -> str:
        host = re.match(r"^tcp://(.*):\d+$", self._address)
        return _EVERYWHERE.sub(lambda _: f"tcp://{host[1]}:", endpoint) if host is not None else endpoint
