"""Who may connect: CURVE on the sockets, and the handler that libzmq asks about every key (ZAP, RFC 27). Starts no thread.

NOTE [closed unless opened]. A CURVE server without a handler lets any key in. So that a missing or dead handler means that
nobody gets in, the sockets have a domain that is not empty, and ZAP_ENFORCE_DOMAIN. And since that is easily undone, each start
tries the lock: a connection with a key that was drawn just now must be refused, and by this handler.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from async_loader.errors import Broken, ConfigError
from async_loader.feeder.claim import owner_only
from async_loader.feeder.keys import ClientKeys, ServerKeys, load_client_keys
from async_loader.lifecycle import Deadline

_log = logging.getLogger(__name__)
ENDPOINT = "inproc://zeromq.zap.01"
DOMAIN = b"async_loader"
_VERSION = b"1.0"
_OLDEST_LIBZMQ = (4, 3, 3)  # CVE-2020-15166, CVE-2021-20234 to 20237
_REFUSED, _IN = zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_SUCCEEDED
_WATCHED = _REFUSED | _IN | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED


class Gatekeeper:
    """Answers libzmq's question about each new connection; one for a zmq.Context. Used by one thread, the server's loop.

    Parameters
    ----------
    context : zmq.Context
        That of the sockets. Connections wait (HANDSHAKE_IVL) until `handle` is called.
    keys : ServerKeys

    Attributes
    ----------
    allowed, refused : int
        Connections so far.

    Raises
    ------
    ConfigError
        If libzmq is too old or has no CURVE, or the context has a handler.

    Examples
    --------
    The order in which a server starts::

        gatekeeper = Gatekeeper(context, load_server_keys(folder))
        gatekeeper.self_test()
        for socket in (control, insert, pull):
            gatekeeper.apply(socket)
        ...  # bind; then poll gatekeeper.poll_socket with the others, and call handle() when it is readable
    """

    def __init__(self, context: zmq.Context[Any], keys: ServerKeys) -> None:
        if zmq.zmq_version_info() < _OLDEST_LIBZMQ or not zmq.has("curve"):
            raise ConfigError(f"libzmq {zmq.zmq_version()} will not do: 4.3.3 with CURVE is needed, as in pyzmq's own wheel")
        self._context, self._keys = context, keys
        self._names = {z85.decode(public): name for public, name in keys.clients.items()}
        self._owners: dict[bytes, str] = {}
        self.allowed = self.refused = 0
        self.poll_socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.poll_socket.linger = 0
        try:
            self.poll_socket.bind(ENDPOINT)
        except zmq.ZMQError as error:
            self.poll_socket.close(0)
            raise ConfigError(f"the context has an authenticator ({error.strerror}): use a context of its own") from None

    def apply(self, socket: zmq.Socket[Any]) -> None:
        """Make a socket take connections of known keys only. Before it is bound."""
        socket.curve_secretkey = self._keys.secret.encode()
        socket.curve_publickey = self._keys.public.encode()
        socket.zap_domain = DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.curve_server = True

    def handle(self) -> None:
        """Answer everyone who waits. Never waits itself."""
        while True:
            try:
                request = self.poll_socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.poll_socket.send_multipart(self._answer(request))

    def _answer(self, request: list[bytes]) -> list[bytes]:
        name = self._name(request)
        number = request[1] if len(request) > 1 else b""
        if name is None:
            self.refused += 1
            return [_VERSION, number, b"400", b"unknown key", b"", b""]
        self.allowed += 1
        return [_VERSION, number, b"200", b"OK", name.encode(), b""]

    def _name(self, request: list[bytes]) -> str | None:
        """Whose key it is. A request is version, id, domain, address, routing id, mechanism, and for CURVE the public key."""
        if len(request) != 7 or request[0] != _VERSION or request[2] != DOMAIN or request[5] != b"CURVE":
            return None
        return self._names.get(request[6])

    def owns(self, user: str | None, producer: bytes) -> bool:
        """Whether a producer is ``user``'s: the first who asks for it has it. A User-Id is what `user_of` says of a frame."""
        return user is not None and self._owners.setdefault(producer, user) == user

    def forget(self, producer: bytes) -> None:
        """The server no longer knows this producer: it may be anyone's again."""
        self._owners.pop(producer, None)

    def self_test(self, timeout_s: float = 10.0) -> None:
        """Try to get in with a key that nobody knows.

        Raises
        ------
        Broken
            If it got in, or was refused by something else than this handler, or nothing happened: do not start.
        """
        before = (self.allowed, self.refused)
        with self._trial() as monitor:
            event = self._outcome(monitor, Deadline(timeout_s))
        asked = (self.allowed, self.refused) == (before[0], before[1] + 1)
        self.allowed, self.refused = before
        if event != _REFUSED or not asked:
            what = "got in" if event == _IN else "had no answer" if event == -1 else "was not refused by the authenticator"
            raise Broken(f"a connection with an unknown key {what}, so this server cannot tell who connects: it does not start")

    @contextlib.contextmanager
    def _trial(self) -> Iterator[zmq.Socket[Any]]:
        """The monitor of a socket with an unknown key, which connects to one of this server's kind."""
        folder = Path(tempfile.mkdtemp(prefix="alr-"))  # 0700
        door, stranger = self._context.socket(zmq.ROUTER), self._context.socket(zmq.DEALER)
        try:
            self.apply(door)
            with owner_only():
                door.bind(f"ipc://{folder}/door")
            public, secret = zmq.curve_keypair()
            stranger.curve_publickey, stranger.curve_secretkey = public, secret
            stranger.curve_serverkey = self._keys.public.encode()
            stranger.reconnect_ivl = -1
            monitor = stranger.get_monitor_socket(_WATCHED)
            try:
                stranger.connect(f"ipc://{folder}/door")
                yield monitor
            finally:
                stranger.disable_monitor()  # first: it tells the monitor, and waits for ever where there is none any more
                monitor.close(0)
        finally:
            stranger.close(0)
            door.close(0)
            shutil.rmtree(folder, ignore_errors=True)

    def _outcome(self, monitor: zmq.Socket[Any], deadline: Deadline) -> int:
        """The first event, -1 if there is none, while questions are answered as the server's loop would."""
        poller = zmq.Poller()
        poller.register(monitor, zmq.POLLIN)
        poller.register(self.poll_socket, zmq.POLLIN)
        while not deadline.expired:
            ready = dict(poller.poll(int((deadline.left() or 0) * 1000) + 1))
            if self.poll_socket in ready:
                self.handle()
            if monitor in ready:
                return int(parse_monitor_message(monitor.recv_multipart())["event"])
        return -1

    def close(self) -> None:
        """From now on nobody gets in. May be called again."""
        with contextlib.suppress(zmq.ZMQError):
            self.poll_socket.unbind(ENDPOINT)  # at once; closing takes its time, and who asks meanwhile waits for an answer
        self.poll_socket.close(0)

    def __enter__(self) -> Gatekeeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()


def user_of(frame: zmq.Frame) -> str | None:
    """Whose connection a received frame (``copy=False``) came over; ``None`` without keys."""
    try:
        name = frame.get("User-Id")
    except zmq.ZMQError:
        return None
    return name or None if isinstance(name, str) else None


def apply_client_keys(socket: zmq.Socket[Any], keys: ClientKeys | str | Path) -> None:
    """Make a socket connect with a client's keys, or with those in its file. Before it connects.

    Raises
    ------
    ConfigError
        If the file is missing, no key file, or could be read by others.
    """
    own = keys if isinstance(keys, ClientKeys) else load_client_keys(keys)
    socket.curve_serverkey = own.server.encode()
    socket.curve_publickey = own.public.encode()
    socket.curve_secretkey = own.secret.encode()
