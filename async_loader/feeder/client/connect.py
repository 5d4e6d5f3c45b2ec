"""`connect`: a client of a feeder at an address, or of one that is started for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from async_loader.errors import ConfigError
from async_loader.feeder import addresses
from async_loader.feeder.client.client import Client
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.curve_keys import load_client_keys
from async_loader.feeder.reach import absent
from async_loader.lifecycle import Deadline, seconds
from async_loader.name_hints import explain_wrong_names
from async_loader.process_hooks import SignalsDeferred
from async_loader.validation import require_linux

OnDisconnect = Literal["wait", "raise"] | float
_log = logging.getLogger("async_loader.feeder")
_EMBEDDED_DRAIN_S = 1.0
_NAME = 64
"""Characters of a client's name."""


@explain_wrong_names
def connect(
    address: str | None = None,
    *,
    name: str = "",
    tables: Mapping[str, Any] | None = None,
    on_disconnect: OnDisconnect = "wait",
    timeout_s: float = 30.0,
    keys: str | os.PathLike[str] | None = None,
) -> Client:
    """Return a client of the feeder at ``address``, or of one that is started for it.

    Parameters
    ----------
    address : str, optional
        ``tcp://host:port`` or ``ipc:///path``, as the feeder prints it; by default the socket of
        ``async-loader serve`` without ``--bind``. Or "embedded": a feeder is started, a child of
        this process at a private address, and ends with the client, or with this process, even if
        that is killed. Other processes of this machine connect to the client's ``address``.
    name : str
        Name of this client in the feeder's status.
    tables : mapping, optional
        Tables of an embedded feeder by name: how many steps it keeps, bytes as in ``"8GiB"``, or a
        mapping with the arguments of a `ReplayBuffer`, as in Python or as in the YAML file of
        ``async-loader serve``; or a `Rollouts`, for one that is made alike. By default
        ``{"replay": 1_000_000}``.
    on_disconnect : "wait" | "raise" | float
        What to do when the feeder is lost: reconnect for as long as it takes, give up at once, or
        give up after this number of seconds. Until then writers fill their buffers and sources
        wait. An embedded feeder that has ended is Broken at once: it is not started again.
    timeout_s : float
        Seconds for connecting, and for every call that waits, unless it has a timeout of its own.
    keys : path, optional
        The client's ``NAME.secret`` of ``async-loader keys``, for a feeder that has keys.

    Raises
    ------
    Timeout
        The feeder did not answer.
    ConfigError
        The address is wrong, its host is not known, or the keys of feeder and client do not match.
    Unsupported
        The feeder speaks another version, or an embedded one is asked for where Linux is not.
    """
    limit, wait_s = seconds("timeout_s", timeout_s), _wait_s(on_disconnect)
    if not isinstance(name, str) or len(name) > _NAME or not name.isprintable():
        raise ConfigError(f"name={name!r}: it is text of at most {_NAME} printable characters")
    if address == "embedded":
        return _embedded(tables, name, on_disconnect, limit)
    if address is not None and (not isinstance(address, str) or "://" not in address):
        raise ConfigError(
            f"{address!r} is not an address: give tcp://host:port, ipc:///path or 'embedded'"
        )
    where = str(addresses.default()) if address is None else address
    if tables is not None:
        raise ConfigError(
            f"tables={tables!r}: the feeder at {where!r} has its own: leave them out, or connect "
            "to 'embedded'"
        )
    own = None if keys is None else load_client_keys(keys)
    connection: Connection | None = None
    deadline = Deadline(limit)
    reason = absent(where, deadline)
    if reason:
        _log.warning("the feeder at %s %s: it is waited for, %g s at most", where, reason, limit)
    try:
        with SignalsDeferred():  # else an interrupted start leaves a thread running
            connection = Connection(where, wait_s, keys=own, name=name)
        connection.wait_open(deadline, reason)
        return Client(connection, limit)
    except BaseException:
        if connection is not None:
            connection.stop(limit)
        raise


def _wait_s(on_disconnect: OnDisconnect) -> float | None:
    waits = {"wait": None, "raise": 0.0}
    if isinstance(on_disconnect, str):
        if on_disconnect not in waits:
            raise ConfigError(f"on_disconnect={on_disconnect!r}: 'wait', 'raise' or seconds")
        return waits[on_disconnect]
    return seconds("on_disconnect", on_disconnect)


def _embedded(
    tables: Mapping[str, Any] | None, name: str, on_disconnect: OnDisconnect, timeout_s: float
) -> Client:
    require_linux("an embedded feeder")
    from async_loader.feeder.embedded import Embedded
    from async_loader.feeder.settings import ServerSettings

    wanted = {"replay": 1_000_000} if tables is None else tables
    if not isinstance(wanted, Mapping):
        raise ConfigError(
            f"tables={wanted!r}: give a dict of names and sizes, as in tables={{'replay': "
            "1_000_000}"
        )
    settings = ServerSettings.from_plain(dict(wanted))
    # Rows that wait for a table at the end could not be read any more: a short drain is enough.
    feeder = Embedded(msgspec.structs.replace(settings, drain_s=_EMBEDDED_DRAIN_S))
    try:
        client = connect(
            feeder.address, name=name, on_disconnect=on_disconnect, timeout_s=timeout_s
        )
    except BaseException:
        feeder.close()
        raise
    client._embedded, client._connection.fate = feeder, feeder.fate
    return client
