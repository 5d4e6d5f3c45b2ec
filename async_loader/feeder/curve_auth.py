"""Who may connect: the keys of a server's connections, and whose a producer is. Starts no thread.

NOTE [closed unless opened]. A connection with keys is ready only when `Curve` has found the user
of its key; until then nothing but its handshake is read. And since a lock is easily undone, each
start tries it: a client of libzmq with a key that was drawn just now must be refused, and by this
gatekeeper.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from async_loader.errors import Broken, ConfigError
from async_loader.feeder.addresses import Address
from async_loader.feeder.curve_keys import ClientKeys, ServerKeys, load_client_keys
from async_loader.feeder.listen_sockets import listen
from async_loader.lifecycle import Deadline

if TYPE_CHECKING:
    from async_loader.feeder.zmtp import Mechanism

_REFUSED, _IN = zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_SUCCEEDED
_WATCHED = _REFUSED | _IN | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
_LOOK_S = 0.01


class CurveAuthenticator:
    """Knows the keys. Used by one thread, the server's loop.

    Parameters
    ----------
    keys : ServerKeys

    Attributes
    ----------
    allowed, refused : int
        Connections so far, by whether their key was known.

    Raises
    ------
    ConfigError
        If PyNaCl is not there, or a key is none.

    Examples
    --------
    The order in which a server starts::

        gatekeeper = CurveAuthenticator(load_server_keys(folder))
        gatekeeper.self_test()
        ...  # bind
        connection = Connection(gatekeeper.mechanism(), ...)  # for each that is accepted
    """

    def __init__(self, keys: ServerKeys) -> None:
        try:
            from async_loader.feeder.zmtp.curve import Curve
        except ImportError as error:
            raise ConfigError(f"keys take PyNaCl ({error}): pip install pynacl") from None
        self._curve, self._keys = Curve, keys
        self._public, self._secret = z85.decode(keys.public), z85.decode(keys.secret)
        self._names = {z85.decode(public): name for public, name in keys.clients.items()}
        self._owners: dict[bytes, str] = {}
        self.allowed = self.refused = 0

    def mechanism(self) -> Mechanism:
        """That of one connection."""
        return self._curve(self._public, self._secret, self._admit)

    def _admit(self, public: bytes) -> str | None:
        """Whose key it is; the peer has shown that it has the secret one."""
        name = self._names.get(public)
        if name is None:
            self.refused += 1
        else:
            self.allowed += 1
        return name

    def owns(self, user: str | None, producer: bytes) -> bool:
        """Whether a producer is ``user``'s: the first that asks for it has it."""
        return user is not None and self._owners.setdefault(producer, user) == user

    def forget(self, producer: bytes) -> None:
        """The server no longer knows this producer: any user may have it."""
        self._owners.pop(producer, None)

    def self_test(self, timeout_s: float = 10.0) -> None:
        """Try to get in with a key that is unknown.

        Raises
        ------
        Broken
            If it got in, or was refused by something else than this gatekeeper, or nothing happened: do not start.
        """
        before = (self.allowed, self.refused)
        event = self._trial(Deadline(timeout_s))
        asked = (self.allowed, self.refused) == (before[0], before[1] + 1)
        self.allowed, self.refused = before
        if event != _REFUSED or not asked:
            what = "got in" if event == _IN else "had no answer" if event == -1 else "was not refused by the authenticator"
            raise Broken(f"a connection with an unknown key {what}, so this server cannot tell who connects: it does not start")

    def _trial(self, deadline: Deadline) -> int:
        """What libzmq says first of a connection with an unknown key, to sockets as the server's; -1: nothing in time."""
        from async_loader.feeder.server.sockets import Plane, ServerSockets
        from async_loader.feeder.wire import Limits

        folder = Path(tempfile.mkdtemp(prefix="alr-"))  # 0700
        try:
            # Short names: a temporary folder may have a long one, and the path of a socket is short.
            ports = ServerSockets({}, Limits(), lambda plane: listen(Address("ipc", path=f"{folder}/{plane[0]}")), self.mechanism)
            try:
                with self._stranger(ports.endpoints[Plane.CONTROL]) as monitor:
                    while not deadline.expired:
                        ports.wait(_LOOK_S)
                        if monitor.poll(0):
                            return int(parse_monitor_message(monitor.recv_multipart())["event"])
            finally:
                ports.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return -1

    @contextlib.contextmanager
    def _stranger(self, endpoint: str) -> Iterator[Any]:
        """The monitor of a client of libzmq that connects there."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.linger = 0
            public, secret = zmq.curve_keypair()
            stranger.curve_publickey, stranger.curve_secretkey = public, secret
            stranger.curve_serverkey = self._keys.public.encode()
            stranger.reconnect_ivl = -1
            monitor = stranger.get_monitor_socket(_WATCHED)
            try:
                stranger.connect(endpoint)
                yield monitor
            finally:
                stranger.disable_monitor()  # first: it tells the monitor, and waits for ever where there is none any more
                monitor.close(0)


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
