"""Which machine a shard is on: names of hosts, compared as text."""

from __future__ import annotations

import socket

from async_loader.feeder import addresses


def own_host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def host_of(address: str) -> str:
    """Return the host of a feeder's address: this machine's name for ipc and for loopback."""
    parsed = addresses.parse(address)
    return own_host() if parsed.loopback else parsed.host


def is_here(host: str) -> bool:
    """Whether a host is this machine, by its name or full name."""
    own = own_host()
    return host in ("", own, socket.getfqdn()) or host == own.partition(".")[0]
