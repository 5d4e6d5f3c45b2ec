"""A TCP proxy between clients and a feeder, which does to their bytes what networks do. Understands
no message but an ACK's type.

::

    client ◀──▶ Pipe.down  │ client's socket │  Pipe  │ server's socket │  Pipe.up ◀──▶ server

One thread. Faults hold for a plane, until `heal`: connections made under a fault have it too.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import itertools
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field

PLANES = ("control", "insert", "pull")
UP, DOWN = "up", "down"
"""To the server, to the client."""
_CHUNK = 64 << 10
_MOST_WAITING = 4 << 20
"""Bytes that a direction holds back before it reads no more: what a network does, too."""


@dataclass
class Weather:
    """What happens on one plane now.

    Attributes
    ----------
    dead : set of directions
        Nothing passes; the connections stay open. It passes when the weather is better, as TCP has
        it.
    delay_s : float
        Of each chunk.
    cut_after : dict of direction to bytes
        Passed before the connection is cut, which is in the middle of something more often than
        not. Each once.
    cut_acks : int
        How many ACKs are to be cut off: the connection is closed when the server has sent one, and
        no peer gets it.
    """

    dead: set[str] = field(default_factory=set)
    delay_s: float = 0.0
    cut_after: dict[str, int] = field(default_factory=dict)
    cut_acks: int = 0


class Messages:
    """Finds where messages begin in what one peer sends: ZMTP 3 without encryption, which is all
    of it that is known here.
    """

    _GREETING, _MORE, _LONG, _COMMAND = 64, 1, 2, 4

    def __init__(self):
        self._kept = b""
        self._greeted = False
        self._first = True

    def types(self, data: bytes) -> list[int]:
        """Types of the messages that have begun since the last call; -1: of no message of ours."""
        self._kept += data
        found = []
        if not self._greeted and len(self._kept) >= self._GREETING:
            self._greeted, self._kept = True, self._kept[self._GREETING :]
        while self._greeted and (frame := self._frame()) is not None:
            flags, body = frame
            if flags & self._COMMAND:
                continue
            if self._first:
                found.append(body[6] if body[:4] == b"ALDR" and len(body) == 64 else -1)
            self._first = not flags & self._MORE
        return found

    def _frame(self) -> tuple[int, bytes] | None:
        """The next frame that is here as a whole."""
        long = bool(self._kept) and bool(self._kept[0] & self._LONG)
        head = 9 if long else 2
        if len(self._kept) < head:
            return None
        size = struct.unpack_from(">Q", self._kept, 1)[0] if long else self._kept[1]
        if len(self._kept) < head + size:
            return None
        flags, body = self._kept[0], self._kept[head : head + size]
        self._kept = self._kept[head + size :]
        return flags, body


ACK = 33


class Way:
    """One direction of one connection: what was read and has not been written yet."""

    def __init__(self, name: str, source: socket.socket, target: socket.socket):
        self.name, self.source, self.target = name, source, target
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.nbytes = 0
        self.over = False  # the source has said that nothing more comes
        self.messages = Messages()

    def put(self, due: float, data: bytes) -> None:
        self.waiting.append((due, data))
        self.nbytes += len(data)


class Pipe:
    """One client's connection on one plane."""

    def __init__(self, plane: str, client: socket.socket, server: socket.socket):
        self.plane, self.client, self.server = plane, client, server
        self.ways = {UP: Way(UP, client, server), DOWN: Way(DOWN, server, client)}
        self.connected = False
        self.forgotten = False


class Proxy:
    """Listens on three ports of the loopback, which stay the same, and connects to a server, which
    may be another later.

    What is called from other threads is done by the proxy's own, in order; each call returns when
    it is.
    """

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()[::-1]
        os.set_blocking(self._wake, False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._listeners = {
            plane: socket.create_server(("127.0.0.1", 0), backlog=64) for plane in PLANES
        }
        self.ports = {plane: one.getsockname()[1] for plane, one in self._listeners.items()}
        for plane, one in self._listeners.items():
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ, plane)
        self._weather = {plane: Weather() for plane in PLANES}
        self._servers: dict[str, int] = {}
        self._pipes: list[Pipe] = []
        self._asks: deque[tuple[object, threading.Event]] = deque()
        self._dues: list[tuple[float, int, Way]] = []
        self._numbers = itertools.count()
        self._closed = False
        self.acks_cut = 0
        self._thread = threading.Thread(target=self._run, name="chaos-proxy")
        self._thread.start()

    # -- other threads -----------------------------------------------------------------------------

    def serve(self, ports: dict[str, int]) -> None:
        """New connections go there; nowhere, if there are none."""
        self._do(lambda: self._servers.update(ports) if ports else self._servers.clear())

    def change(self, plane: str, **weather) -> None:
        """Worse weather."""

        def worse():
            for name, value in weather.items():
                setattr(self._weather[plane], name, value)

        self._do(worse)

    def cut(self, plane: str) -> None:
        """Close every connection of a plane, with what is under way."""
        self._do(lambda: [self._drop(pipe) for pipe in list(self._pipes) if pipe.plane == plane])

    def forget(self, plane: str) -> None:
        """Nothing passes any more on the connections that a plane has now, in any weather, and
        no peer is told.
        """
        self._do(
            lambda: [
                setattr(pipe, "forgotten", True) for pipe in self._pipes if pipe.plane == plane
            ]
        )

    def heal(self, plane: str | None = None) -> None:
        """Fine weather."""
        self._do(
            lambda: self._weather.update({one: Weather() for one in PLANES if plane in (None, one)})
        )

    def close(self) -> None:
        if self._thread.is_alive():
            self._do(lambda: setattr(self, "_closed", True))
            self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _do(self, what) -> None:
        done = threading.Event()
        self._asks.append((what, done))
        os.write(self._wake, b"x")
        done.wait()

    # -- its own thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            left = max(0.0, self._dues[0][0] - time.monotonic()) if self._dues else None
            for key, events in self._selector.select(left):
                if key.data is None:
                    os.read(self._woken, 4096)
                elif isinstance(key.data, str):
                    self._accept(key.data)
                elif key.data in self._pipes:
                    self._ready(key.data, key.fileobj, events)
            now = time.monotonic()
            while self._dues and self._dues[0][0] <= now:
                heapq.heappop(self._dues)
            while self._asks:
                what, done = self._asks.popleft()
                what()
                done.set()
            for pipe in list(self._pipes):
                self._move(pipe)
        for pipe in list(self._pipes):
            self._drop(pipe)
        self._selector.close()
        for one in self._listeners.values():
            one.close()
        os.close(self._wake)
        os.close(self._woken)

    def _accept(self, plane: str) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listeners[plane].accept()
            port = self._servers.get(plane)
            if port is None:
                client.close()
                return
            server = socket.socket()
            for one in (client, server):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.connect_ex(("127.0.0.1", port))
            pipe = Pipe(plane, client, server)
            self._pipes.append(pipe)
            self._selector.register(client, selectors.EVENT_READ, pipe)
            self._selector.register(server, selectors.EVENT_WRITE, pipe)

    def _ready(self, pipe: Pipe, sock: socket.socket, events: int) -> None:
        if sock is pipe.server and not pipe.connected:
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._drop(pipe)
                return
            pipe.connected = True
        if events & selectors.EVENT_READ:
            self._read(pipe, pipe.ways[UP if sock is pipe.client else DOWN])

    def _read(self, pipe: Pipe, way: Way) -> None:
        weather = self._weather[pipe.plane]
        try:
            data = way.source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._drop(pipe)
            return
        if not data:
            way.over = True
            return
        if (
            way.name == DOWN
            and pipe.plane == "insert"
            and ACK in way.messages.types(data)
            and weather.cut_acks > 0
        ):
            weather.cut_acks -= 1
            self.acks_cut += 1
            self._drop(pipe)
            return
        due = time.monotonic() + weather.delay_s
        way.put(due, data)
        if weather.delay_s:
            heapq.heappush(self._dues, (due, next(self._numbers), way))

    def _move(self, pipe: Pipe) -> None:
        """Write what is due, and say what to wait for."""
        if pipe.forgotten:
            for sock in (pipe.client, pipe.server):
                self._want(sock, 0, pipe)
            return
        weather, now = self._weather[pipe.plane], time.monotonic()
        wanted = {pipe.client: 0, pipe.server: 0 if pipe.connected else selectors.EVENT_WRITE}
        for way in pipe.ways.values():
            if not self._write(pipe, way, weather, now, wanted):
                self._drop(pipe)
                return
            if not way.over and way.nbytes < _MOST_WAITING and (pipe.connected or way.name == UP):
                wanted[way.source] |= selectors.EVENT_READ
        for sock, events in wanted.items():
            self._want(sock, events, pipe)

    def _write(
        self, pipe: Pipe, way: Way, weather: Weather, now: float, wanted: dict[socket.socket, int]
    ) -> bool:
        """Whether the connection may live on."""
        if way.name in weather.dead or not pipe.connected:
            return True
        while way.waiting and way.waiting[0][0] <= now:
            due, data = way.waiting.popleft()
            left = weather.cut_after.get(way.name)
            part = data if left is None else data[:left]
            try:
                count = way.target.send(part) if part else 0
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                    return False
                count = 0
            way.nbytes -= count
            if left is not None:
                weather.cut_after[way.name] = left - count
                if left - count <= 0:
                    del weather.cut_after[way.name]
                    return False
            if count < len(data):
                way.waiting.appendleft((due, data[count:]))
                wanted[way.target] |= selectors.EVENT_WRITE
                break
        return bool(way.waiting) or not way.over

    def _want(self, sock: socket.socket, events: int, pipe: Pipe) -> None:
        known = self._selector.get_map().get(sock)
        if known is None and events:
            self._selector.register(sock, events, pipe)
        elif known is not None and not events:
            self._selector.unregister(sock)
        elif known is not None and known.events != events:
            self._selector.modify(sock, events, pipe)

    def _drop(self, pipe: Pipe) -> None:
        """With a reset: a peer that waits for bytes is told at once; bytes under way are gone."""
        self._pipes.remove(pipe)
        for sock in (pipe.client, pipe.server):
            self._want(sock, 0, pipe)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
