"""A feeder's process as its settings say: tables, keys, the locked address, the server."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Callable

from async_loader.errors import AddressInUse, ConfigError
from async_loader.feeder.addresses import Address, check_bind
from async_loader.feeder.curve_keys import curve_of, load_server_keys
from async_loader.feeder.server.acceptor import listen
from async_loader.feeder.server.event_loop import Server
from async_loader.feeder.server.periodic_saves import Folders, PeriodicSaves
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.wire import Plane
from async_loader.feeder.zmtp import Null


def lock_address(settings: ServerSettings) -> tuple[AddressLock, Callable[[], Null]]:
    """Read the keys, then lock the address.

    The lock binds the sockets, and is closed after them.

    Raises
    ------
    ConfigError, InsecureBindError, AddressInUse, Broken
        As `load_server_keys` and `AddressLock` do.
    """
    address, security = settings.address(), settings.security
    keys, insecure = security.keys, security.allow_insecure
    mechanism = Null if keys is None else curve_of(load_server_keys(keys))
    lock = AddressLock(address, encrypted=keys is not None, allow_insecure=insecure)
    return lock, mechanism


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
    InsecureBindError, AddressInUse, Broken
        See `lock_address`.
    """

    def __init__(
        self,
        settings: ServerSettings,
        private: bool = False,
        count: bool = False,
    ) -> None:
        tables = settings.make_tables()
        self._lock: AddressLock | None = None
        folders = Folders(settings.checkpoint.path, private)
        saves: PeriodicSaves | None = None
        try:
            saves = PeriodicSaves.of(tables, folders, settings.checkpoint.every_s, count)
            self._lock, mechanism = lock_address(settings)
            super().__init__(
                tables,
                {},
                settings,
                bind=self._lock.bind,
                memory=self._lock.address.memory,
                checkpoints=folders,
                saves=saves,
                mechanism=mechanism,
            )
        except BaseException:
            for table in tables.values():
                table.close()
            if saves is not None:
                saves.close()
            if self._lock is not None:
                self._lock.close()
            raise

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return self.endpoints[Plane.CONTROL]

    def close(self) -> None:
        """Free everything, if `run` is not called. May be called again."""
        try:
            super().close()
        finally:
            if self._lock is not None:
                self._lock.close()


_log = logging.getLogger(__name__)
_SUFFIXES = ("", ".insert", ".pull", ".memory")


class AddressLock:
    """An address, held until `close`. Made, used and closed by one thread.

    Parameters
    ----------
    address : Address
    encrypted : bool
        Whether the sockets will use CURVE.
    allow_insecure : bool
        Bind beyond this machine without CURVE; a warning is logged.

    Raises
    ------
    AddressInUse
        If another server holds it. For tcp, `bind` raises it.
    InsecureBindError
    ConfigError
        If the folder of an ipc address is missing, or cannot be written to.

    """

    def __init__(
        self, address: Address, *, encrypted: bool = False, allow_insecure: bool = False
    ) -> None:
        self.address = address
        self._lock: int | None = None
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
        if address.scheme == "ipc":
            self._lock = _lock(address)
            try:
                self._unlink()  # files of a killed server
            except BaseException:
                self._release()
                raise

    def bind(self, plane: str) -> tuple[socket.socket, str]:
        """Return a listening socket of a plane, and its endpoint for clients.

        Raises
        ------
        AddressInUse
        ConfigError
            If it cannot be bound for another reason.
        """
        wanted: Address = getattr(self.address, plane)
        try:
            return listen(wanted)
        except OSError as error:
            raise _refusal(self.address, wanted, plane, error) from None

    def close(self) -> None:
        """Remove the socket files and release the lock.

        After the sockets were closed; may be called again.
        """
        if self._lock is None:
            return
        try:
            self._unlink()
        finally:
            self._release()

    def _unlink(self) -> None:
        for suffix in _SUFFIXES:
            path = self.address.path + suffix
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    raise ConfigError(
                        f"{self.address} cannot be bound: {path} exists and is not a socket: name "
                        "another address"
                    )
                os.unlink(path)

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.address.path}.lock")  # while it is held, see NOTE
            os.close(lock)


def _lock(address: Address) -> int:
    """Take the lock of an ipc address; return its descriptor."""
    path = f"{address.path}.lock"
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            hint = "make the folder" if error.errno == errno.ENOENT else "name another address"
            text = f"{address} cannot be bound: {path} cannot be opened: {error.strerror}: {hint}"
            raise ConfigError(text) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _leads_to(path, fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
                return fd
            os.close(fd)
        except BlockingIOError:
            pid = _pid_in(fd)
            os.close(fd)
            raise in_use(address, pid) from None
        except BaseException:
            os.close(fd)
            raise


def _leads_to(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _pid_in(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _refusal(named: Address, address: Address, plane: str, error: OSError) -> Exception:
    """Return the error for an address that follows from the one that was ``named``."""
    what = str(named) if address == named else f"{named} takes {address} too ({plane}), which"
    if error.errno == errno.EADDRINUSE:
        return in_use(what, None)
    if error.errno == errno.ENAMETOOLONG:
        return ConfigError(f"{what} is too long for a socket: use a shorter path")
    return ConfigError(
        f"{what} cannot be bound: {error.strerror}: bind to an address of this machine"
    )


def in_use(address: Address | str, pid: int | None) -> AddressInUse:
    """Return the error for an address that process ``pid`` listens at, if it is known."""
    who = "another process" if pid is None else f"process {pid}"
    return AddressInUse(f"{address} is in use by {who}: end that one, or bind elsewhere", pid)
