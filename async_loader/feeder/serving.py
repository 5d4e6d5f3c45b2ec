"""A feeder's process as its settings say: tables, keys, the locked address, the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_loader.feeder.address_lock import AddressLock
from async_loader.feeder.curve_auth import CurveAuthenticator
from async_loader.feeder.curve_keys import load_server_keys
from async_loader.feeder.self_test import self_test
from async_loader.feeder.server.event_loop import Server
from async_loader.feeder.server.folders import Folders
from async_loader.feeder.server.periodic_saves import PeriodicSaves
from async_loader.feeder.settings import ServerSettings


def lock_address(settings: ServerSettings) -> tuple[AddressLock, CurveAuthenticator | None]:
    """Read the keys, test that they keep strangers out, then lock the address: in this order.

    The lock binds the sockets, and is closed after them.

    Raises
    ------
    ConfigError, InsecureBindError, AddressInUse, Broken
        As `load_server_keys`, `AddressLock` and `self_test` do. Earlier steps are undone.
    """
    address, security = settings.address(), settings.security
    authenticator = None
    if security.keys is not None:
        authenticator = CurveAuthenticator(load_server_keys(security.keys))
        self_test(authenticator)
    insecure = security.allow_insecure
    lock = AddressLock(address, encrypted=authenticator is not None, allow_insecure=insecure)
    return lock, authenticator


class FeederProcess:
    """Ready for clients when the constructor returns.

    Made, run and closed by one thread.

    Parameters
    ----------
    settings : ServerSettings
    private : bool
        See `Folders`.
    count : bool
        Keep the counts of rows also without periodic checkpoints: a restart names what is lost.
    ends_process : bool
        See `Server`.

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
        ends_process: bool = False,
    ) -> None:
        tables = settings.make_tables()
        self._lock: AddressLock | None = None
        folders = Folders(settings.checkpoint.path, private)
        saves: PeriodicSaves | None = None
        try:
            saves = PeriodicSaves.of(tables, folders, settings.checkpoint.every_s, count)
            self._lock, self._authenticator = lock_address(settings)
            self._server = Server(
                tables,
                {},
                settings,
                bind=self._lock.bind,
                memory=self._lock.address.memory,
                checkpoints=folders,
                saves=saves,
                authenticator=self._authenticator,
                ends_process=ends_process,
            )
        except BaseException:
            for table in tables.values():
                table.close()
            if saves is not None:
                saves.close()
            self._close()
            raise

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return str(self._server.status()["address"])

    def run(self, ready: Callable[[], None] | None = None) -> int:
        """Serve until SIGTERM, SIGINT, a DRAIN or `stop`; return the exit code. Once.

        It is 1 if a table could not be saved at the end.

        ``ready``: see `Server.run`.
        """
        try:
            self._server.run(ready)
        finally:
            self._close()
        return 1 if self._server.unsaved else 0

    def close(self) -> None:
        """Free everything, if `run` is not called. May be called again."""
        self._server.close()
        self._close()

    def stop(self) -> None:
        """See `Server.stop`."""
        self._server.stop()

    def status(self) -> dict[str, Any]:
        """See `Server.status`."""
        return self._server.status()

    def ask_status(self, timeout_s: float) -> dict[str, Any]:
        """See `Server.ask_status`."""
        return self._server.ask_status(timeout_s)

    def _close(self) -> None:
        if self._lock is not None:
            self._lock.close()
