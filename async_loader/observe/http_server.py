"""The HTTP server of metrics and dashboard: its connections end with it.

# NOTE [connections of viewers]
A browser opens connections ahead of need and leaves them idle. So a server knows its open sockets,
and shuts them down when it closes.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from async_loader.errors import AddressInUse, ConfigError

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
        self._sockets: set[socket.socket] = set()
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            self.address_family = found[0]
            super().__init__((str(found[4][0]), port), viewer)
        except (OSError, ValueError) as error:  # ValueError: the address is no name
            text = f"{what} cannot be served at {address}:{port} ({error}): give "
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise AddressInUse(f"{text}another port") from error
            remedy = "an address of this machine, and a port from 1024 on"
            raise ConfigError(text + remedy) from error
        self._thread: threading.Thread | None = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="async-loader-http", daemon=True
        )
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin the thread of a new connection."""
        with self._changed:
            self._sockets.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """Close a socket. Not while `close` uses it: its descriptor may be another's then."""
        with self._changed:
            self._sockets.discard(request)
            super().close_request(request)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop serving, and end open connections. May be called again."""
        with self._changed:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self.shutdown()
        self.server_close()
        with self._changed:
            for one in self._sockets:
                with contextlib.suppress(OSError):  # the viewer was faster
                    one.shutdown(socket.SHUT_RDWR)
            self._changed.wait_for(lambda: not self._sockets, _JOIN_S)
        thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that went away is no error."""


class Viewer(BaseHTTPRequestHandler):
    """Answers one viewer; ``timeout`` holds for each byte that is read or written."""

    timeout = 10.0
    server_version = "async_loader"
    sys_version = ""

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
