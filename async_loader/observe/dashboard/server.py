"""Serves the page and its frames over HTTP. Reads only: there is nothing to change."""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from async_loader.observe.dashboard.frame import frame_of
from async_loader.observe.http_server import Served, WebServer


class Dashboard(Served):
    """Serves the dashboard of a feeder, or of a cluster, until `close`.

    Threads: `close` may be called from any.

    Parameters
    ----------
    status : callable
        Returns the status, a `FeederStatus` or a `ClusterStatus`; called for each viewer once a
        second, on a thread of the dashboard, one call at a time.
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
        self._status, self._lock = status, threading.Lock()
        self._token = "" if _is_loopback(address) else f"token={secrets.token_urlsafe(24)}"
        files = resources.files(__package__)
        page = files.joinpath("page.html").read_text()
        self._page = re.sub(r"/\* (\S+) \*/", lambda of: files.joinpath(of[1]).read_text(), page)
        self._server = WebServer("the dashboard", address, port, self._answer)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/"
        if self._token:
            self.url += f"?{self._token}"

    def _answer(self, viewer: BaseHTTPRequestHandler) -> tuple[HTTPStatus, str, bytes]:
        """Answer the page, or a frame."""
        parts = urlsplit(viewer.path)
        if not self._allowed(viewer, parts.query):
            return HTTPStatus.FORBIDDEN, "text/plain", b"the address lacks its token\n"
        if parts.path == "/":
            return HTTPStatus.OK, "text/html; charset=utf-8", self._page.encode()
        if parts.path != "/frame.json":
            return HTTPStatus.NOT_FOUND, "text/plain", b"there is no such page\n"
        with self._lock:
            frame = frame_of(self._status())
        return HTTPStatus.OK, "application/json", json.dumps(frame, allow_nan=False).encode()

    def _allowed(self, viewer: BaseHTTPRequestHandler, query: str) -> bool:
        """Return whether a request may be answered.

        On the loopback the Host has to be this machine's: another site's page, whose name was
        pointed here, is refused.
        """
        if self._token:
            return hmac.compare_digest(query.encode(), self._token.encode())
        return _is_loopback(urlsplit(f"//{viewer.headers.get('Host', '')}").hostname or "")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
