"""Serves the page and its frames over HTTP. Reads only: there is nothing to change."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from async_loader.lifecycle import every
from async_loader.observe.dashboard.frame import frame_of, paired
from async_loader.observe.http_server import Viewer, ViewerServer

_HEADERS = {
    "Cache_Control": "no-store",
    "Referrer_Policy": "no-referrer",
    "X_Content_Type_Options": "nosniff",
    "Content_Security_Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; connect-src 'self'; img-src data:",
}


class Dashboard:
    """Serves the dashboard of a feeder, or of a cluster, until `close`.

    Threads: one asks for the status each second, others answer viewers.

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
        token = None if _is_loopback(address) else secrets.token_urlsafe(24)
        self._history = History(status)
        self._server = _Server(address, port, self._history, token)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self._server.server_port}/"
        if token is not None:
            self.url += f"?token={token}"
        self._asking = contextlib.ExitStack()
        self._asking.enter_context(every(EVERY_S, self._history.note, "async-loader-dashboard"))

    def close(self) -> None:
        """Stop serving. May be called again."""
        self._asking.close()
        self._server.close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ViewerServer):
    def __init__(self, address: str, port: int, history: History, token: str | None) -> None:
        self.history, self.token = history, token
        self.page = resources.files(__package__).joinpath("page.html").read_bytes()
        super().__init__("the dashboard", address, port, _Page)


class _Page(Viewer):
    server: _Server

    def do_GET(self) -> None:
        """Answer the page, the newest frame, or the points of the curves."""
        parts = urlsplit(self.path)
        token = parse_qs(parts.query).get("token", [""])[0]
        if not self._allowed(token):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"the address lacks its token\n")
            return
        history = self.server.history
        pages: dict[str, tuple[str, Callable[[], bytes]]] = {
            "/": ("text/html; charset=utf-8", lambda: self.server.page),
            "/frame.json": ("application/json", history.newest),
            "/points.json": ("application/json", history.points),
        }
        if parts.path in pages:
            kind, body = pages[parts.path]
            self._send(HTTPStatus.OK, kind, body())
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
        self.send(status, kind, body, **_HEADERS)


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


EVERY_S = 1.0
KEPT = 600
_POINT = ("in_per_s", "out_per_s", "size", "queued_rows", "nbytes", "samples_per_insert")


class History:
    """Frames as JSON, and what the page's curves need of older ones.

    Parameters
    ----------
    status : callable
        Returns the status of a feeder, or of a cluster; an error of this package makes a frame that
        says so.

    Notes
    -----
    Threads: `note` belongs to one thread; all else may be called from any.
    """

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status
        self._before: Mapping[str, Any] | None = None
        self._points: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._newest = b""

    def note(self) -> None:
        """Ask for a status, and add its frame."""
        try:
            status = self._status()
            frame = frame_of(*paired(status, self._before))
            newest = json.dumps(frame, allow_nan=False, separators=(",", ":"))
        except Exception as error:  # the page says so, and asks again
            self._newest = json.dumps({"error": str(error) or type(error).__name__}).encode()
            return
        self._before, self._newest = status, newest.encode()
        self._points.append(_point(frame))

    def newest(self) -> bytes:
        """Return the newest frame as JSON; empty before the first."""
        return self._newest

    def points(self) -> bytes:
        """Return the points of the curves as JSON, oldest first."""
        return json.dumps(list(self._points), separators=(",", ":")).encode()


def _point(frame: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "t": frame["uptime_s"],
        "tables": {
            one["name"]: {
                **{key: one[key] for key in _POINT},
                **one["blocked"],
                "lag": max((lag.get("lag", 0) for lag in one["policies"].values()), default=0),
            }
            for one in frame["tables"]
        },
    }
