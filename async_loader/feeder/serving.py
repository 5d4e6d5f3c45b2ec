"""A feeder's process as its settings say: tables, keys, the address, the server."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
from functools import partial

from async_loader.errors import AddressInUse, ConfigError
from async_loader.feeder.addresses import Address, check_bind
from async_loader.feeder.curve_keys import curve_of, load_server_keys
from async_loader.feeder.server.acceptor import listen
from async_loader.feeder.server.event_loop import Server
from async_loader.feeder.server.periodic_saves import Folders, PeriodicSaves
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.wire import Plane
from async_loader.feeder.zmtp import Null


class FeederProcess(Server):
    """Ready for clients when the constructor returns.

    Made, run and closed by one thread.

    Parameters
    ----------
    settings : ServerSettings
    private : bool
        See `Folders`.
    count : bool
        Keep the counts of rows also without periodic checkpoints: a restart names what is lost.

    Raises
    ------
    ConfigError, OutOfMemory
        For settings that cannot be.
    InsecureBindError, AddressInUse
        See `claim`.
    """

    def __init__(
        self,
        settings: ServerSettings,
        private: bool = False,
        count: bool = False,
    ) -> None:
        tables = settings.make_tables()
        folders, address = Folders(settings.checkpoint.path, private), settings.address()
        keys, insecure = settings.security.keys, settings.security.allow_insecure
        saves: PeriodicSaves | None = None
        try:
            saves = PeriodicSaves.of(tables, folders, settings.checkpoint.every_s, count)
            mechanism = Null if keys is None else curve_of(load_server_keys(keys))
            claim(address, encrypted=keys is not None, allow_insecure=insecure)
            super().__init__(
                tables,
                {},
                settings,
                bind=partial(bind, address),
                memory=address.memory,
                checkpoints=folders,
                saves=saves,
                mechanism=mechanism,
                rollouts=settings.make_rollouts(),
                every_s=settings.checkpoint.every_s,
            )
        except BaseException:
            for table in tables.values():
                table.close()
            if saves is not None:
                saves.close()
            raise

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self.endpoints[Plane.CONTROL]


_log = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("=3i")  # pid, user, group
_SUFFIXES = ("", ".insert", ".pull", ".memory")


def claim(address: Address, *, encrypted: bool = False, allow_insecure: bool = False) -> None:
    """Raise unless a server may be bound to an address. Remove the socket files of a killed one.

    Parameters
    ----------
    encrypted : bool
        Whether the sockets will use CURVE.
    allow_insecure : bool
        Bind beyond this machine without CURVE; a warning is logged.

    Raises
    ------
    AddressInUse
        If another server listens there. For tcp, `bind` raises it.
    InsecureBindError
    ConfigError
        If another file is in the way.

    Notes
    -----
    Of two that start at the same moment where a killed one has left its files, both may start, and
    clients reach the last.
    """
    if check_bind(address, encrypted=encrypted, allow_insecure=allow_insecure):
        _log.warning(
            "%s is bound without keys: all who reach it can read and write the tables", address
        )
    elif address.scheme == "tcp" and not encrypted:
        _log.info(
            "%s has no keys: every user of this machine can read and write the tables; ipc is "
            "for you alone",
            address,
        )
    for suffix in _SUFFIXES if address.scheme == "ipc" else ():
        path = address.path + suffix
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise ConfigError(
                    f"{address} cannot be bound: {path} exists and is not a socket: name another "
                    "address"
                )
            if not suffix:
                _check_listener(address)
            os.unlink(path)


def _check_listener(address: Address) -> None:
    """Raise AddressInUse if a process listens at a unix socket."""
    with socket.socket(socket.AF_UNIX) as one:
        one.setblocking(False)
        try:
            one.connect(address.path)
        except ConnectionRefusedError:
            return
        except BlockingIOError:  # many clients wait for it
            raise in_use(address, None) from None
        found = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    raise in_use(address, _CREDENTIALS.unpack(found)[0])


def bind(address: Address, plane: str) -> tuple[socket.socket, str]:
    """Return a listening socket of a plane, and its endpoint for clients.

    Raises
    ------
    AddressInUse
    ConfigError
        If it cannot be bound for another reason.
    """
    wanted: Address = getattr(address, plane)
    try:
        return listen(wanted)
    except OSError as error:
        what = (
            str(address) if wanted == address else f"{address} takes {wanted} too ({plane}), which"
        )
        if error.errno == errno.EADDRINUSE:
            raise in_use(what, None) from None
        remedy = (
            "make the folder" if error.errno == errno.ENOENT else "name an address of this machine"
        )
        raise ConfigError(f"{what} cannot be bound: {error.strerror}: {remedy}") from None


def in_use(address: Address | str, pid: int | None) -> AddressInUse:
    """Return the error for an address that process ``pid`` listens at, if it is known."""
    who = "another process" if pid is None else f"process {pid}"
    return AddressInUse(f"{address} is in use by {who}: end that one, or bind elsewhere", pid)
