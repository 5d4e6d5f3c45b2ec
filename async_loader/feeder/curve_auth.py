"""Which keys may connect to a server, and which user owns a producer id.

# NOTE [closed unless opened]
A connection with keys is ready only when `Curve` has found the user of its key; until then the
server reads nothing but its handshake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zmq.utils import z85

from async_loader.errors import ConfigError
from async_loader.feeder.curve_keys import ServerKeys

if TYPE_CHECKING:
    from async_loader.feeder.zmtp import Mechanism


class CurveAuthenticator:
    """Knows the keys. Used by one thread, the server's loop.

    Parameters
    ----------
    keys : ServerKeys

    Attributes
    ----------
    public : str
        The server's own public key.
    allowed, refused : int
        Connections so far with a known key, and with an unknown one.

    Raises
    ------
    ConfigError
        If PyNaCl is missing, or a key is not one.

    """

    def __init__(self, keys: ServerKeys) -> None:
        try:
            from async_loader.feeder.zmtp.curve import Curve
        except ImportError as error:
            raise ConfigError(f"keys take PyNaCl ({error}): pip install pynacl") from None
        self.public = keys.public
        self._curve = Curve
        self._own = z85.decode(keys.public), z85.decode(keys.secret)
        self._names = {z85.decode(public): name for public, name in keys.clients.items()}
        self._owners: dict[bytes, str] = {}
        self.allowed = self.refused = 0

    def mechanism(self) -> Mechanism:
        """The mechanism of one connection."""
        return self._curve(*self._own, self._admit)

    def _admit(self, public: bytes) -> str | None:
        """Return the user of a key. The peer has shown that it has the secret one."""
        name = self._names.get(public)
        if name is None:
            self.refused += 1
        else:
            self.allowed += 1
        return name

    def owns(self, user: str | None, producer: bytes) -> bool:
        """Return whether a producer id is ``user``'s: the first user that asks for it gets it."""
        return user is not None and self._owners.setdefault(producer, user) == user

    def forget(self, producer: bytes) -> None:
        """Release a producer id that no table remembers: any user may have it."""
        self._owners.pop(producer, None)
