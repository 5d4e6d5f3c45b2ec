"""ZMTP 3.1 as a server speaks it (ZeroMQ RFC 37; CURVE: RFC 26): bytes in,
messages out, without sockets and clock.

::

    bytes ──▶ Connection.received ──▶ greeting ──▶ mechanism (NULL, CURVE) ──▶ messages
                     │                                   │
                     └──── outgoing: greeting, READY, PONG, ERROR ◀┘

# NOTE [own ZMTP]
libzmq aborts its process by assertions that peers can reach: a routing id that the next peer is
about to get; a heartbeat that was read while the input of its connection was stopped. So the
process that holds tables reads and writes ZMTP itself: wrong input raises `ProtocolError` here, and
ends one connection. Clients use libzmq. `curve` is imported late, and only with keys: it needs
PyNaCl.
"""

from __future__ import annotations

from async_loader.feeder.zmtp.connection import Connection, Null
from async_loader.feeder.zmtp.frames import Buffer, ProtocolError

__all__ = ["Buffer", "Connection", "Null", "ProtocolError"]
