"""What a server does before anybody can reach it, in the only order that is safe. Reads no message."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import TYPE_CHECKING

from async_loader.feeder.address_lock import AddressLock
from async_loader.feeder.curve_auth import CurveAuthenticator
from async_loader.feeder.curve_keys import load_server_keys

if TYPE_CHECKING:
    from async_loader.feeder.settings import ServerSettings


class Front:
    """Keys are read, the lock is tried, the address is claimed; then sockets are bound, one by one.

    Made, used and closed by one thread, the server's loop. If one step fails, the earlier ones are undone.

    Parameters
    ----------
    settings : ServerSettings

    Attributes
    ----------
    authenticator : CurveAuthenticator | None
        With keys: makes the mechanism of each connection.
    claim : Claim

    Raises
    ------
    ConfigError, InsecureBindError, AddressInUse, Broken
        As `load_server_keys`, `AddressLock` and `CurveAuthenticator.self_test` do.

    Examples
    --------
    ::

        with Front(settings) as front:
            listener, endpoint = front.bind("control")
            ...
            # sockets are closed before the front is
    """

    def __init__(self, settings: ServerSettings) -> None:
        keys, self.authenticator = settings.security.keys, None
        address = settings.address()
        if keys is not None:
            self.authenticator = CurveAuthenticator(load_server_keys(keys))
            self.authenticator.self_test()
        insecure = settings.security.allow_insecure
        self.claim = AddressLock(address, encrypted=self.authenticator is not None, allow_insecure=insecure)

    def bind(self, plane: str) -> tuple[socket.socket, str]:
        """A socket that listens for ``control``, ``insert`` or ``pull``, and where clients connect to."""
        return self.claim.bind(plane)

    def close(self) -> None:
        """Let go of the address. After the sockets were closed; may be called again."""
        self.claim.close()

    def __enter__(self) -> Front:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()
