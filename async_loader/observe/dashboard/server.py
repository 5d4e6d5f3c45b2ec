"""Serves the page, its frames and its events over HTTP. Reads only: there is nothing to change."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import HTTPServer
from importlib import resources
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from async_loader.observe.dashboard.history import History
from async_loader.observe.http_server import (
    LimitedHead,
    ViewerConnections,
    bind_error,
    check_where,
)

_QUIET_S = 15.0
"""A comment is sent after this long without a frame, so that a viewer that is gone is noticed."""
_SEND_S = 10.0
"""A viewer that takes nothing for this long is let go."""
_VIEWERS = 64


class Dashboard:
    """Serves the dashboard of a feeder, or of a cluster, until `close`.

    Threads: one asks for the status each second, one for each viewer sends it.

    Parameters
    ----------
    status : callable
        Returns the status, a `FeederStatus` or a `ClusterStatus`; called each second on a thread of
        the dashboard.
    port : int
        0 takes a free one.
    address : str
        By default this machine's loopback. Beyond it a token is needed: the page's address has it.

    Raises
    ------
    AddressInUse
    ConfigError
        For an address or port that cannot be.

    Attributes
    ----------
    url : str
        Where the page is, with the token.
    """

    def __init__(
        self,
        status: Callable[[], Mapping[str, Any]],
        port: int = 8484,
        address: str = "127.0.0.1",
    ) -> None:
        check_where(address, port)
        token = None if _is_loopback(address) else secrets.token_urlsafe(24)
        self._history = History(status)
        try:
            self._server = _Server((address, port), self._history, token)
        except (OSError, ValueError) as error:  # ValueError: the address is no name
            raise bind_error("the dashboard", address, port, error) from error
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/"
        if token is not None:
            self.url += f"?token={token}"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(0.05,),
            name="async-loader-dashboard-http",
            daemon=True,
        )
        self._asking = contextlib.ExitStack()
        self._asking.enter_context(self._history.kept_up())
        self._thread.start()
        self._closed = False

    def close(self) -> None:
        """Stop serving, and end the connections of viewers. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._asking.close()
        self._history.close()
        self._server.shutdown()
        self._server.server_close()
        self._server.end_viewers()
        self._thread.join()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Server(ViewerConnections, HTTPServer):
    def __init__(self, where: tuple[str, int], history: History, token: str | None) -> None:
        if ":" in where[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(where, _Viewer)
        self.history, self.token = history, token
        self.page = resources.files(__package__).joinpath("page.html").read_bytes()
        self.viewers = threading.BoundedSemaphore(_VIEWERS)


class _Viewer(LimitedHead):
    server: _Server
    timeout = _SEND_S
    server_version = "async_loader"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer the page, the newest frame, the points of the curves, or the events."""
        parts = urlsplit(self.path)
        token = parse_qs(parts.query).get("token", [""])[0]
        if not self._allowed(token):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"the address lacks its token\n")
            return
        history = self.server.history
        if parts.path == "/":
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif parts.path == "/frame.json":
            self._send(HTTPStatus.OK, "application/json", history.newest())
        elif parts.path == "/points.json":
            self._send(HTTPStatus.OK, "application/json", history.points())
        elif parts.path == "/events":
            self._events()
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page\n")

    def _allowed(self, token: str) -> bool:
        """Return whether a request may be answered.

        On the loopback the Host has to be this machine's: another site's page, whose name was
        pointed here, is refused.
        """
        if self.server.token is not None:
            return hmac.compare_digest(token.encode(), self.server.token.encode())
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return _is_loopback(host)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            (
                "Content-Security-Policy",
                "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                "connect-src 'self'; img-src data:",
            ),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _events(self) -> None:
        if not self.server.viewers.acquire(blocking=False):
            said = f"{_VIEWERS} viewers look already, which is the limit\n".encode()
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", said)
            return
        try:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.close_connection = True
            with contextlib.suppress(OSError):  # the viewer has gone
                self.wfile.write(b"retry: 1000\n\n")
                for frame in self.server.history.follow(_QUIET_S):
                    self.wfile.write(b": still here\n\n" if frame is None else _event(frame))
        finally:
            self.server.viewers.release()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests of viewers are not logged."""


def _event(frame: bytes) -> bytes:
    return b"data: " + frame + b"\n\n"


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
