"""What a server does before anybody can reach it, in the only order that is safe. Reads no message."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import zmq

from async_loader.feeder.auth import Gatekeeper
from async_loader.feeder.claim import Claim
from async_loader.feeder.keys import load_server_keys

if TYPE_CHECKING:
    from async_loader.feeder.settings import ServerSettings


class Front:
    """Keys are read, the authenticator is started and tried, the address is claimed; then sockets are bound, one by one.

    Made, used and closed by one thread, the server's loop. If one step fails, the earlier ones are undone.

    Parameters
    ----------
    context : zmq.Context
        That of the sockets.
    settings : ServerSettings

    Attributes
    ----------
    gatekeeper : Gatekeeper | None
        With keys: poll ``gatekeeper.poll_socket``, and call ``handle()`` when it is readable.
    claim : Claim

    Raises
    ------
    ConfigError, InsecureBindError, AddressInUse, Broken
        As `load_server_keys`, `Claim` and `Gatekeeper.self_test` do.

    Examples
    --------
    ::

        with Front(context, settings) as front:
            endpoint = front.bind(control, "control")
            ...
            # sockets are closed before the front is
    """

    def __init__(self, context: zmq.Context[Any], settings: ServerSettings) -> None:
        keys, self.gatekeeper = settings.security.keys, None
        address = settings.address()
        if keys is not None:
            self.gatekeeper = Gatekeeper(context, load_server_keys(keys))
        try:
            if self.gatekeeper is not None:
                self.gatekeeper.self_test()
            insecure = settings.security.allow_insecure
            self.claim = Claim(address, encrypted=self.gatekeeper is not None, allow_insecure=insecure)
        except BaseException:
            if self.gatekeeper is not None:
                self.gatekeeper.close()
            raise

    def bind(self, socket: zmq.Socket[Any], plane: str) -> str:
        """Lock a socket, if there are keys, and bind it to ``control``, ``insert`` or ``pull``; where clients connect to."""
        if self.gatekeeper is not None:
            self.gatekeeper.apply(socket)
        return self.claim.bind(socket, plane)

    def close(self) -> None:
        """Let go of the address. After the sockets were closed; may be called again."""
        try:
            if self.gatekeeper is not None:
                self.gatekeeper.close()
        finally:
            self.claim.close()

    def __enter__(self) -> Front:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()
