"""One server at an address, and no second one: locks, binds and unlinks. Reads and writes no message.

NOTE [one server at a path]. The file of a unix socket stays when its server is killed, and a bind
fails until it is removed; to remove that of a living server would take its clients over without an
error. Hence the lock: ``x.lock`` is held by flock for as long as the sockets are, and its holder's
pid stands in it. The file is removed by the process that holds the lock; one that gets a lock on a removed
file sees that its name leads elsewhere, and tries again. A killed server's lock is free, and the files
that it left are removed by its successor, under the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from async_loader.errors import AddressInUse, ConfigError
from async_loader.feeder.addresses import PLANES, Address, check_bind
from async_loader.feeder.listen_sockets import listen

_log = logging.getLogger(__name__)
_SUFFIXES = ("", ".insert", ".pull", ".memory")


class AddressLock:
    """An address, held until `close`. Made, used and closed by one thread.

    Parameters
    ----------
    address : Address
    encrypted : bool
        Whether the sockets will have CURVE.
    allow_insecure : bool
        Bind beyond this machine without; a warning is logged.

    Attributes
    ----------
    endpoints : dict of str
        What each plane was bound to, with the ports that the system chose.

    Raises
    ------
    AddressInUse
        If another server holds it. For tcp, `bind` finds that out.
    InsecureBindError
    ConfigError
        If the folder of an ipc address is not there, or not to be written to.

    Examples
    --------
    ::

        with Claim(settings.address(), encrypted=gatekeeper is not None) as claim:
            control, endpoint = claim.bind("control")
            insert, endpoint = claim.bind("insert")
    """

    def __init__(self, address: Address, *, encrypted: bool = False, allow_insecure: bool = False) -> None:
        self.address = address
        self.endpoints: dict[str, str] = {}
        self._lock: int | None = None
        self.insecure = check_bind(address, encrypted=encrypted, allow_insecure=allow_insecure)
        if self.insecure:
            _log.warning("%s is bound without keys: whoever reaches it reads and writes the tables", address)
        elif address.scheme == "tcp" and not encrypted:
            _log.info("%s has no keys: every user of this machine can read and write the tables; ipc is for you alone", address)
        if address.scheme == "ipc":
            self._lock = _lock(address)
            try:
                self._unlink()  # what a killed server left
            except BaseException:
                self._release()
                raise

    def bind(self, plane: str) -> tuple[socket.socket, str]:
        """A socket that listens for ``control``, ``insert`` or ``pull``, and the endpoint that clients connect to.

        Raises
        ------
        AddressInUse
        ConfigError
            If it cannot be bound for another reason.
        """
        if plane not in PLANES:
            raise ConfigError(f"there is no plane {plane!r}: known are {', '.join(PLANES)}")
        wanted: Address = getattr(self.address, plane)
        try:
            listener, self.endpoints[plane] = listen(wanted)
        except OSError as error:
            raise _refusal(wanted, plane, error) from None
        return listener, self.endpoints[plane]

    def close(self) -> None:
        """Remove the socket files and let go of the lock. After the sockets were closed; may be called again."""
        if self._lock is None:
            return
        try:
            self._unlink()
        finally:
            self._release()

    def __enter__(self) -> AddressLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def _unlink(self) -> None:
        for suffix in _SUFFIXES:
            path = self.address.path + suffix
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    raise ConfigError(f"{path} is there, and no socket: name another address")
                os.unlink(path)

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.address.path}.lock")  # while it is held, see NOTE
            os.close(lock)


def _lock(address: Address) -> int:
    """The held lock of an ipc address."""
    path = f"{address.path}.lock"
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            hint = "make the folder" if error.errno == errno.ENOENT else "name another address"
            raise ConfigError(f"{path} cannot be opened: {error.strerror}: {hint}") from None
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


def _refusal(address: Address, plane: str, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return in_use(address, pid_at(address.port))
    if error.errno == errno.ENAMETOOLONG:
        return ConfigError(f"{address} is too long for a socket: use a shorter path")
    return ConfigError(f"{address} ({plane}) cannot be bound: {error.strerror}: bind to an address of this machine")


def in_use(address: Address, pid: int | None) -> AddressInUse:
    """The error for an address that process ``pid`` listens at."""
    who = "another process" if pid is None else "this process" if pid == os.getpid() else f"process {pid}"
    end = "close that one" if pid == os.getpid() else "end that one"
    return AddressInUse(f"{address} is in use by {who}: {end}, or bind to another address", pid)


def pid_at(port: int) -> int | None:
    """Who listens at a tcp port, as far as this user may know: a process of another user stays unknown."""
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listeners(Path("/proc/net") / table, port)}
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(fd) in inodes:
                        return int(process.name)
    return None


def _listeners(table: Path, port: int) -> Iterator[str]:
    """Links, as they stand in ``/proc/PID/fd``, of the sockets that listen at a port."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        columns = line.split()
        if columns[3] == "0A" and int(columns[1].rpartition(":")[2], 16) == port:  # 0A: TCP_LISTEN
            yield f"socket:[{columns[9]}]"
