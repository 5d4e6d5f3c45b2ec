"""Addresses of a feeder: ``tcp://host:port`` and ``ipc:///path``, and those of its planes."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from async_loader.errors import ConfigError, InsecureBindError
from async_loader.feeder.wire import Plane

PATH_BYTES = 107
"""Bytes of a unix socket's path: ``sun_path`` has 108, and one ends it."""
LONGEST = ".insert"  # and ".memory"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the control plane; the others follow from it.

    Attributes
    ----------
    scheme : "tcp" | "ipc"
    host : str
        A name or number, IPv6 without brackets; "*" is every interface. Empty for ipc.
    port : int
        0 lets the system choose, for every plane. 0 for ipc.
    path : str
        Of the socket file, absolute. Empty for tcp.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.scheme == "ipc":
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port or '*'}"

    @property
    def control(self) -> Address:
        return self

    @property
    def insert(self) -> Address:
        """``x.insert``, or the next port."""
        return self._beside(Plane.INSERT, 1)

    @property
    def pull(self) -> Address:
        """``x.pull``, or the port after that."""
        return self._beside(Plane.PULL, 2)

    @property
    def memory(self) -> str | None:
        """Path of the unix socket for offers of shared memory; tcp has none."""
        return f"{self.path}.memory" if self.scheme == "ipc" else None

    def _beside(self, plane: Plane, step: int) -> Address:
        if self.scheme == "ipc":
            return replace(self, path=f"{self.path}.{plane.value}")
        return replace(self, port=self.port + step) if self.port else self

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it, for certain.

        Not for names, which a resolver maps.
        """
        if self.scheme == "ipc":
            return True
        try:
            ip = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        # IPv4-mapped addresses count as foreign: versions of Python differ on them.
        return ip.is_loopback and getattr(ip, "ipv4_mapped", None) is None


def parse(text: str) -> Address:
    """Parse an address as a user writes it. ``localhost`` is 127.0.0.1.

    Raises
    ------
    ConfigError
        Says what an address looks like, or what is wrong with this one.
    """
    if text.startswith("ipc://"):
        return _ipc(text, text.removeprefix("ipc://"))
    if text.startswith("tcp://"):
        return _tcp(text, text.removeprefix("tcp://"))
    raise ConfigError(
        f"address {text[:300]!r}: it begins with tcp:// or ipc://, as in tcp://127.0.0.1:5555 or "
        "ipc:///run/feeder"
    )


def _ipc(text: str, path: str) -> Address:
    if not path.startswith("/") or not path.isprintable():
        raise ConfigError(
            f"address {text[:300]!r}: the path is not absolute, or not printable: use "
            "ipc:///an/absolute/path"
        )
    size = len(os.fsencode(path + LONGEST))
    if size > PATH_BYTES:
        raise ConfigError(
            f"address {text[:300]!r}: with {LONGEST!r} its path has {size} bytes, a socket's has "
            f"{PATH_BYTES} at most: use a shorter one"
        )
    return Address("ipc", path=path)


def _tcp(text: str, rest: str) -> Address:
    found = re.fullmatch(r"(\[[\w:.%]+\]|[\w.*-]+):(\*|[0-9]{1,5})", rest, re.ASCII)
    if found is None:
        raise ConfigError(
            f"address {text[:300]!r}: give a host and a port, as in tcp://127.0.0.1:5555 (or "
            ":* for any that is free)"
        )
    host, port = found[1].strip("[]"), found[2]
    number = 0 if port == "*" else int(port)
    if number > 65535 - len(Plane) + 1:
        raise ConfigError(
            f"address {text!r}: port {number} is too high, the planes take it and the two after "
            "it: use 65533 at most"
        )
    return Address("tcp", "127.0.0.1" if host == "localhost" else host, number)


def check_bind(address: Address, *, encrypted: bool = False, allow_insecure: bool = False) -> bool:
    """Whether a bind is an insecure one that was allowed, which is to be logged.

    Raises
    ------
    InsecureBindError
        Beyond this machine, without keys, and not allowed.
    """
    if address.loopback or encrypted:
        return False
    if not allow_insecure:
        raise InsecureBindError(
            f"{address} can be reached from other machines, and without keys all who reach it can "
            "read and write the tables: "
            "make keys with 'async-loader keys FOLDER' and name them in security.keys, or bind to "
            "127.0.0.1, or ipc, "
            "or allow it with --allow-insecure (security.allow_insecure)"
        )
    return True


def default(name: str = "feeder") -> Address:
    """``ipc://`` in a folder of this user's own.

    Raises
    ------
    ConfigError
        If the folder belongs to another user, or is open to others.
    """
    return parse(f"ipc://{runtime_folder() / name}")


def runtime_folder() -> Path:
    """``$XDG_RUNTIME_DIR/async_loader``, or a folder of this user in the temporary one.

    It is made if it is not there.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base.startswith("/") and Path(base).is_dir():
        return private_folder(Path(base) / "async_loader")
    return private_folder(Path(tempfile.gettempdir()) / f"async_loader-{os.geteuid()}")


def private_folder(path: Path) -> Path:
    """A folder that only this user can enter, made or found.

    Raises
    ------
    ConfigError
        If the path is not a folder, belongs to another user, or is open to others.
    """
    try:
        path.mkdir(mode=0o700, parents=False, exist_ok=True)
        found = os.lstat(path)  # not through a link: in a shared folder any user can put one there
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {error.strerror}: name another place") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(
            f"{path} is no folder but a {_kind(found.st_mode)}: remove it, or name another place"
        )
    check_private(path, found, 0o700)
    return path


def check_private(path: Path, found: os.stat_result, mode: int) -> None:
    """Raise ConfigError unless only this user can get at a path; ``mode`` is a right one."""
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} belongs to user {found.st_uid}, this is user {os.geteuid()}: chown it, or "
            "name another place"
        )
    if found.st_mode & 0o077:
        raise ConfigError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):o}, others can get at it: chmod "
            f"{mode:o} {path}"
        )


def _kind(mode: int) -> str:
    return "link" if stat.S_ISLNK(mode) else "file"
