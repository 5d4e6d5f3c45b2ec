"""A feeder's process as its settings say: tables, keys, the locked address, the server."""

from __future__ import annotations

from async_loader.feeder.address_lock import AddressLock
from async_loader.feeder.curve_auth import CurveAuthenticator
from async_loader.feeder.curve_keys import load_server_keys
from async_loader.feeder.server.event_loop import Server
from async_loader.feeder.server.folders import Folders
from async_loader.feeder.server.periodic_saves import PeriodicSaves
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.wire import Plane


def lock_address(settings: ServerSettings) -> tuple[AddressLock, CurveAuthenticator | None]:
    """Read the keys, then lock the address.

    The lock binds the sockets, and is closed after them.

    Raises
    ------
    ConfigError, InsecureBindError, AddressInUse, Broken
        As `load_server_keys` and `AddressLock` do.
    """
    address, security = settings.address(), settings.security
    authenticator = None
    if security.keys is not None:
        authenticator = CurveAuthenticator(load_server_keys(security.keys))
    insecure = security.allow_insecure
    lock = AddressLock(address, encrypted=authenticator is not None, allow_insecure=insecure)
    return lock, authenticator


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
            self._lock, authenticator = lock_address(settings)
            super().__init__(
                tables,
                {},
                settings,
                bind=self._lock.bind,
                memory=self._lock.address.memory,
                checkpoints=folders,
                saves=saves,
                authenticator=authenticator,
                ends_process=ends_process,
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
