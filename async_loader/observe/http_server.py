"""The HTTP server of metrics and dashboard: its connections end with it.

# NOTE [connections of viewers]
A browser opens connections ahead of need and leaves them idle, and a timeout of a socket counts
from each byte anew. So a server knows its open sockets and shuts them down when it closes, and the
head of a request has one deadline in all.
"""

from __future__ import annotations

import contextlib
import errno
import io
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from async_loader.errors import AddressInUse, AsyncLoaderError, ConfigError

HEAD_S = 10.0
"""The head of a request is received within this time of its connection."""
_JOIN_S = 2.0  # a thread that takes longer makes an answer; its socket is shut down already


class ViewerServer(socketserver.ThreadingMixIn, HTTPServer):
    """Answers requests until `close`, each connection on a thread of its own.

    Parameters
    ----------
    what : str
        For errors.
    address, port
    viewer : type of Viewer

    Raises
    ------
    AddressInUse, ConfigError
    """

    daemon_threads = True
    block_on_close = False  # it would wait without a limit

    def __init__(self, what: str, address: str, port: int, viewer: type[Viewer]) -> None:
        if not 0 <= port <= 65_535:
            raise ConfigError(f"port={port}: it is a number from 0 to 65535")
        if not address:
            raise ConfigError(
                "address='': give the address of an interface, 0.0.0.0 for all of them"
            )
        self._changed = threading.Condition()
        self._sockets: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            self.address_family = found[0]
            super().__init__((str(found[4][0]), port), viewer)
        except (OSError, ValueError) as error:  # ValueError: the address is no name
            raise _bind_error(what, address, port, error) from error
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="async-loader-http", daemon=True
        )
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin the thread of a new connection."""
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="async-loader-http-viewer",
            daemon=True,
        )
        with self._changed:
            self._sockets[request] = thread
        thread.start()

    def close_request(self, request: Any) -> None:
        """Close a socket. Not while `close` uses it: its descriptor may be another's then."""
        with self._changed:
            self._sockets.pop(request, None)
            super().close_request(request)

    def close(self) -> None:
        """Stop serving, and end open connections. May be called again."""
        with self._changed:
            closed, self._closed = self._closed, True
        if closed:
            return
        self.shutdown()
        self.server_close()
        with self._changed:
            threads = list(self._sockets.values())
            for one in self._sockets:
                with contextlib.suppress(OSError):  # the viewer was faster
                    one.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that went away is no error."""


class Viewer(BaseHTTPRequestHandler):
    """Receives the head of a request before a deadline; ``timeout`` holds for each answer."""

    timeout = 10.0
    server_version = "async_loader"
    sys_version = ""

    def setup(self) -> None:
        """Read through the deadline."""
        super().setup()
        self.rfile.close()
        deadline = time.monotonic() + HEAD_S
        self.rfile = io.BufferedReader(_UntilDeadline(self.connection, deadline))

    def parse_request(self) -> bool:
        """Read the head. The answer has the timeout of the class again."""
        done = super().parse_request()
        self.connection.settimeout(self.timeout)
        return done

    def send(self, status: HTTPStatus, kind: str, body: bytes, **headers: str) -> None:
        """Send an answer. ``headers``: with underscores for dashes."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests of viewers are not logged."""


class _UntilDeadline(io.RawIOBase):
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("the head of the request was not received in time")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


def _bind_error(what: str, address: str, port: int, error: Exception) -> AsyncLoaderError:
    """Return what to raise for an error of a bind."""
    reason = getattr(error, "strerror", None) or error
    text = f"{what} cannot be served at {address}:{port} ({reason}): "
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return AddressInUse(f"{text}give another port")
    if number in (errno.EACCES, errno.EPERM):
        return ConfigError(f"{text}ports below 1024 need more rights, give a higher one")
    return ConfigError(f"{text}give an address of this machine")
