"""The HTTP server of metrics and dashboard. An idle connection ends by itself."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from async_loader.errors import AddressInUse, ConfigError
from async_loader.lifecycle import ClosedAtExit

Answer = Callable[[BaseHTTPRequestHandler], tuple[HTTPStatus, str, bytes]]
"""Returns the status, the type and the content of a page."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; connect-src 'self'; img-src data:",
}


class WebServer(ThreadingHTTPServer):
    """Answers requests until `close`, each connection on a thread of its own.

    Parameters
    ----------
    what : str
        For errors.
    address, port
    answer : Answer
        Called by these threads. What it raises is an answer with the status 500.

    Raises
    ------
    AddressInUse, ConfigError
    """

    block_on_close = False  # it would wait without a limit

    def __init__(self, what: str, address: str, port: int, answer: Answer) -> None:
        self.answer = answer
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            self.address_family, *_, where = found[0]
            super().__init__((str(where[0]), port), _Viewer)
        except (OSError, ValueError, OverflowError) as error:  # no such name, or port
            text = f"{what} cannot be served at {address}:{port} ({error}): give "
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise AddressInUse(f"{text}another port") from error
            raise ConfigError(
                f"{text}an address of this machine, and a port from 1024 to 65535"
            ) from error
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="async-loader-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving. May be called again."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that went away is no error."""


class Served(ClosedAtExit):
    """What serves by a `WebServer`, until `close` or the end of a ``with`` block."""

    _server: WebServer

    def close(self) -> None:
        """Stop serving, and end open connections. May be called again."""
        self._server.close()


class _Viewer(BaseHTTPRequestHandler):
    """Answers one viewer; ``timeout`` holds for each byte that is read or written."""

    server: WebServer
    timeout = 3.0
    server_version = "async_loader"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the answer."""
        try:
            status, kind, body = self.server.answer(self)
        except Exception as error:
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain"
            body = f"{error or type(error).__name__}\n".encode()
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(body)), **_HEADERS}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests of viewers are not logged."""
