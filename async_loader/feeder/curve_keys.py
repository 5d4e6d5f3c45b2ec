"""CURVE keys as files: made once, never overwritten, and read only if no other user can read them.

::

    FOLDER/            0700
      server.secret    the server's own keys; they stay with the server
      NAME.secret      for one client: its own keys and the server's public one; copy it there only
      clients/
        NAME.key       a client's public key. Remove it to lock NAME out, at the next start

A file is one JSON object. ``NAME`` is the client's user name at the server.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import zmq
from msgspec import Meta
from zmq.utils import z85

from async_loader.errors import ConfigError
from async_loader.feeder.addresses import check_private, private_folder
from async_loader.validation import path_of

if TYPE_CHECKING:
    from async_loader.feeder.zmtp import Null


def curve_of(keys: ServerKeys) -> Callable[[], Null]:
    """Return what makes the mechanism of a connection: clients with known keys may connect.

    Raises
    ------
    ConfigError
        If PyNaCl is missing, or a key is not one.
    """
    try:
        from async_loader.feeder.zmtp.curve import Curve
    except ImportError as error:
        raise ConfigError(f"keys take PyNaCl ({error}): pip install pynacl") from None
    names = {z85.decode(public): name for public, name in keys.clients.items()}
    return partial(Curve, z85.decode(keys.public), z85.decode(keys.secret), names.get)


SERVER = "server"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MOST = 4096
Key = Annotated[str, Meta(min_length=40, max_length=40)]


class PublicKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A client's public key, as the server keeps it; in Z85, as all keys here."""

    public: Key


class ServerKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The server's own keys, and the clients that may connect.

    Attributes
    ----------
    clients : dict of str
        Names by public key. Not in the file ``server.secret``.
    """

    public: Key
    secret: Key
    clients: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"ServerKeys(public={self.public!r}, clients={sorted(self.clients.values())})"


class ClientKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A client's own keys, and the server's public one."""

    name: str
    public: Key
    secret: Key
    server: Key

    def __repr__(self) -> str:
        return f"ClientKeys(name={self.name!r}, public={self.public!r}, server={self.server!r})"


F = TypeVar("F", PublicKey, ServerKeys, ClientKeys)


def make_keys(folder: str | Path, names: Iterable[str] = ()) -> list[Path]:
    """Make keys of the server, unless they exist, and of the named clients.

    Returns
    -------
    list of Path
        The secret files that were written.

    Raises
    ------
    ConfigError
        For a wrong name, or one that has keys; if there is nothing to make; for a folder that other
        users can enter.
    """
    folder, names = Path(path_of("folder", folder)), list(names)
    for name in names:
        if not _NAME.fullmatch(name) or name == SERVER:
            raise ConfigError(
                f"{name[:100]!r} is not a name for a client: use up to 64 letters, digits, '_', "
                f"'-' and '.', and not {SERVER!r}"
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"{names} share names: give every client a name of its own")
    clients = private_folder(private_folder(folder) / "clients")
    made = []
    there = folder / f"{SERVER}.secret"
    if not os.path.lexists(there):
        public, secret = _pair()
        _write(there, ServerKeys(public=public, secret=secret))
        made.append(there)
    elif not names:
        raise ConfigError(
            f"{there} exists and is not overwritten: name clients to make keys for, or another "
            "folder"
        )
    server = _read(there, ServerKeys).public
    for name in names:  # before any is written
        for path in (folder / f"{name}.secret", clients / f"{name}.key"):
            if os.path.lexists(path):
                raise ConfigError(
                    f"{path} is there, and is not overwritten: name another client, or remove it "
                    "first"
                )
    for name in names:
        public, secret = _pair()
        made.append(folder / f"{name}.secret")
        _write(made[-1], ClientKeys(name=name, public=public, secret=secret, server=server))
        _write(clients / f"{name}.key", PublicKey(public=public))
    return made


def load_server_keys(folder: str | Path) -> ServerKeys:
    """Return the server's keys, and those of its clients.

    Raises
    ------
    ConfigError
        If one is missing or damaged, or could be read or changed by other users.
    """
    folder = Path(path_of("keys", folder))
    own = _read(folder / f"{SERVER}.secret", ServerKeys)
    paths = private_folder(folder / "clients").glob("*.key")
    clients = {_read(path, PublicKey).public: path.stem for path in paths}
    if not clients:
        raise ConfigError(
            f"{folder / 'clients'} has no key, so no client could connect: async-loader keys "
            f"{folder} NAME"
        )
    return ServerKeys(public=own.public, secret=own.secret, clients=clients)


def load_client_keys(path: str | os.PathLike[str]) -> ClientKeys:
    """Return a client's keys, from its ``NAME.secret``.

    Raises
    ------
    ConfigError
        If the file is missing or damaged, or could be read or changed by other users.
    """
    return _read(Path(path_of("keys", path)), ClientKeys)


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _write(path: Path, keys: msgspec.Struct) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            data = msgspec.to_builtins(keys)
            data.pop("clients", None)
            file.write(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
    except OSError as error:  # of a full disk
        os.unlink(path)  # half a file is no key, and bars the name
        error.filename = str(path)
        raise


def _read(path: Path, kind: type[F]) -> F:
    """Read a key file of this user that no other user can read or write."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        hint = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(
            f"{path} cannot be read: {hint}: async-loader keys makes such files"
        ) from None
    try:
        found = os.fstat(fd)  # of the open file, not of the path, which may lead to another by now
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(
                f"{path} is not a file: give NAME.secret, which `async-loader keys` has made"
            )
        check_private(path, found, 0o600)
        data = os.read(fd, _MOST + 1)
    finally:
        os.close(fd)
    try:
        if len(data) > _MOST:
            raise ConfigError(f"it has more than {_MOST} bytes")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not a key file of this kind: {error}: a client is given NAME.secret"
        ) from None


def apply_client_keys(socket: zmq.Socket[Any], keys: ClientKeys | str | Path) -> None:
    """Give a socket a client's keys, or those in its file, before it connects.

    Raises
    ------
    ConfigError
        If the file is missing, is not a key file, or could be read by other users.
    """
    own = keys if isinstance(keys, ClientKeys) else load_client_keys(keys)
    socket.curve_serverkey = own.server.encode()
    socket.curve_publickey = own.public.encode()
    socket.curve_secretkey = own.secret.encode()
