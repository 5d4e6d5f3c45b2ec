"""The HTTP servers of the dashboard and of the metrics end in time, with viewers connected."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from async_loader.observe import Dashboard
from async_loader.observe.exporter import MetricsServer

STATUS = {
    "address": "ipc:///feeder", "pid": 1, "incarnation": "a", "uptime_s": 1.0, "draining": False,
    "sessions_open": 0, "sessions_ended": {"left": 0}, "sessions": [], "weights": {},
    "weights_age_s": {}, "weights_waiting": {}, "tables": {},
}  # fmt: skip
BOUND_S = 5.0


@pytest.fixture(params=["dashboard", "metrics"])
def serve(request):
    """Return a function that serves at an address and a port; the test closes what it returns."""
    if request.param == "dashboard":
        return lambda port=0, address="127.0.0.1": Dashboard(lambda: STATUS, port, address)
    return lambda port=0, address="127.0.0.1": MetricsServer(list, port, address)


def port_of(server) -> int:
    return getattr(server, "_server", server).server_port


class Trickle:
    """A client that sends the head of a request byte by byte, until it is let go."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.socket.sendall(b"GET /")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ended = threading.Event()
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.1):
                self.socket.sendall(b"a")
        except OSError:
            return

    def close(self) -> None:
        self._ended.set()
        self.socket.close()
        self._thread.join()


def test_a_server_ends_while_viewers_are_connected(serve):
    server = serve()
    idle = socket.create_connection(("127.0.0.1", port_of(server)), timeout=30)
    trickle = Trickle(port_of(server))
    try:
        time.sleep(0.3)  # both connections have a thread
        closing = threading.Thread(target=server.close)
        began = time.monotonic()
        closing.start()
        closing.join(BOUND_S)
        ended = not closing.is_alive()
        assert ended, f"{time.monotonic() - began:.0f} s"
        idle.settimeout(2 * BOUND_S)
        assert idle.recv(1) == b""
    finally:
        trickle.close()
        idle.close()
        closing.join()
