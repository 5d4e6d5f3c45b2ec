"""The server's three sockets: frames in, frames out, neither ever waits. Understands no message."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import zmq

from async_loader.feeder.auth import user_of
from async_loader.feeder.wire import Limits

_ZERO_COPY_FROM = 64 << 10  # below that a copy is cheaper than telling who owns the memory
_ROUTES = 4096
_PATIENCE = 16  # messages that cannot be read


class Plane(Enum):
    """Which of the server's sockets. Separate, so that a large batch never stands before a heartbeat."""

    CONTROL = "control"
    INSERT = "insert"
    PULL = "pull"


# Messages of one peer that wait here to be read, and to be taken by it. Rows and batches can be large: what stays behind waits
# at the peer; a learner that does not read what it asked for is sent no more than this.
_HIGH_WATER = {Plane.CONTROL: (256, 256), Plane.INSERT: (64, 1024), Plane.PULL: (256, 128)}


class Ports:
    """ROUTERs, bound.

    Parameters
    ----------
    context : zmq.Context
    endpoints : mapping of Plane to str
        Where each is bound; a port of 0 in the second and third is filled in.
    limits : Limits
    bind : callable, optional
        Given a socket and a plane's name, binds it in place of this class, and says where clients find it.
    encrypted : bool
        Whether connections have a user; see `user`.

    Attributes
    ----------
    user : str | None
        Whose connection the message came over that was received last. Known on the control plane.
    """

    def __init__(
        self,
        context: Any,
        endpoints: Mapping[Plane, str],
        limits: Limits,
        bind: Callable[[Any, str], str] | None = None,
        encrypted: bool = False,
    ) -> None:
        self.user: str | None = None
        self._encrypted = encrypted
        self.sockets: dict[Plane, Any] = {}
        self.endpoints: dict[Plane, str] = {}
        self._refused: OrderedDict[tuple[Plane, bytes], int] = OrderedDict()
        self.unsent = self.ignored = 0
        try:
            for plane in Plane:
                socket = self.sockets[plane] = _router(context, plane, limits.message_bytes)
                self.endpoints[plane] = _bound(socket, endpoints[plane]) if bind is None else bind(socket, plane.value)
        except BaseException:
            self.close()
            raise

    def receive(self, plane: Plane, most: int) -> Iterator[tuple[bytes, list[Any]]]:
        """Up to ``most`` messages that are there: who sent each, as ZeroMQ calls it on this plane, and its frames."""
        asked = plane is Plane.CONTROL and self._encrypted  # a copy no longer knows whose it is
        socket, copies = self.sockets[plane], plane is not Plane.INSERT and not asked
        for _ in range(most):
            if not socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # cheaper than an exception
                return
            try:
                route, *frames = socket.recv_multipart(zmq.NOBLOCK, copies)
            except zmq.Again:
                return
            if asked:
                self.user = user_of(route)
            if not copies:
                route, frames = route.bytes, [frame.buffer for frame in frames]
            if self._refused and self._refused.get((plane, route), 0) >= _PATIENCE:
                self.ignored += 1
                continue
            yield route, frames

    def refused(self, plane: Plane, route: bytes) -> None:
        """What came from there could not be read. Whoever goes on like that is not listened to any more."""
        key = (plane, route)
        self._refused[key] = self._refused.get(key, 0) + 1
        if len(self._refused) > _ROUTES:
            self._refused.popitem(last=False)

    def send(self, plane: Plane, route: bytes, frames: list[Any], nbytes: int) -> bool:
        """Hand frames to ZeroMQ; whether it took them. It does not, where nobody is there any more or does not read."""
        try:
            self.sockets[plane].send_multipart([route, *frames], zmq.NOBLOCK, nbytes < _ZERO_COPY_FROM)
        except zmq.ZMQError:
            self.unsent += 1
            return False
        return True

    def close(self) -> None:
        """What is not sent yet has ``linger`` milliseconds; see `_router`."""
        for socket in self.sockets.values():
            with contextlib.suppress(zmq.ZMQError):
                socket.close()
        self.sockets.clear()


def _bound(socket: Any, endpoint: str) -> str:
    socket.bind(endpoint)
    found: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return found


def _router(context: Any, plane: Plane, message_bytes: int) -> Any:
    socket = context.socket(zmq.ROUTER)
    socket.linger = 1000  # the last words: END, and the answer to DRAIN
    socket.maxmsgsize = max(message_bytes, 64 << 10)  # of weights, rows, priorities; control bodies are measured when read
    socket.router_mandatory = 1
    socket.rcvhwm, socket.sndhwm = _HIGH_WATER[plane]
    socket.handshake_ivl = 5000
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    return socket
