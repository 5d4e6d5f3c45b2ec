"""The test at each start with keys: a client with an unknown key must be refused.

A wrong line of code could leave the server open without an error, so each start tries to connect
with libzmq and a fresh key, and does not serve unless the authenticator refused it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from async_loader.errors import Broken
from async_loader.feeder.addresses import Address
from async_loader.feeder.curve_auth import CurveAuthenticator
from async_loader.feeder.listen_sockets import listen
from async_loader.feeder.server.sockets import ServerSockets
from async_loader.feeder.wire import Limits, Plane
from async_loader.lifecycle import Deadline

_REFUSED, _IN = zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_SUCCEEDED
_WATCHED = (
    _REFUSED
    | _IN
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)
_LOOK_S = 0.01


def self_test(authenticator: CurveAuthenticator, timeout_s: float = 10.0) -> None:
    """Try to connect with an unknown key.

    Raises
    ------
    Broken
        If the connection succeeded, was refused for another reason, or had no answer: do not start.
    """
    before = (authenticator.allowed, authenticator.refused)
    event = _trial(authenticator, Deadline(timeout_s))
    asked = (authenticator.allowed, authenticator.refused) == (before[0], before[1] + 1)
    authenticator.allowed, authenticator.refused = before
    if event != _REFUSED or not asked:
        outcomes = {_IN: "got in", -1: "had no answer"}
        what = outcomes.get(event, "was not refused by the authenticator")
        text = "so this server cannot tell who connects: it does not start"
        raise Broken(f"a connection with an unknown key {what}, {text}")


def _trial(authenticator: CurveAuthenticator, deadline: Deadline) -> int:
    """Return libzmq's first event of a connection with an unknown key; -1: none in time."""
    folder = Path(tempfile.mkdtemp(prefix="alr-"))  # 0700
    try:
        # Short names: a temporary folder may have a long one, and the path of a socket is short.
        sockets = ServerSockets(
            {},
            Limits(),
            lambda plane: listen(Address("ipc", path=f"{folder}/{plane[0]}")),
            authenticator.mechanism,
        )
        endpoint = sockets.endpoints[Plane.CONTROL]
        try:
            with _stranger(endpoint, authenticator.public) as monitor:
                while not deadline.expired:
                    sockets.wait(_LOOK_S)
                    if monitor.poll(0):
                        return int(parse_monitor_message(monitor.recv_multipart())["event"])
        finally:
            sockets.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return -1


@contextlib.contextmanager
def _stranger(endpoint: str, server: str) -> Iterator[Any]:
    """The monitor of a libzmq client that connects there with a fresh key."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        public, secret = zmq.curve_keypair()
        stranger.curve_publickey, stranger.curve_secretkey = public, secret
        stranger.curve_serverkey = server.encode()
        stranger.reconnect_ivl = -1
        monitor = stranger.get_monitor_socket(_WATCHED)
        try:
            stranger.connect(endpoint)
            yield monitor
        finally:
            stranger.disable_monitor()  # first: it signals the monitor, and hangs where it is gone
            monitor.close(0)
