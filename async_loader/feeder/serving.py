"""A server as its settings say: tables, keys, a claimed address, the loop. Decides none of it."""

from __future__ import annotations

from typing import Any

from async_loader.feeder.front import Front
from async_loader.feeder.server.event_loop import Server
from async_loader.feeder.server.folders import Folders
from async_loader.feeder.settings import ServerSettings


class FeederProcess:
    """Ready for clients when the constructor returns.

    Parameters
    ----------
    settings : ServerSettings
    private : bool
        See `Folders`.

    Raises
    ------
    ConfigError, OutOfMemory
        For settings that cannot be.
    AddressInUse, InsecureBindError
    """

    def __init__(self, settings: ServerSettings, private: bool = False) -> None:
        limits, tables = settings.limits, settings.make_tables()
        self._front: Front | None = None
        try:
            self._front = front = Front(settings)
            self._server = Server(
                tables,
                {},
                limits=limits.wire(),
                window_bytes=int(limits.window_bytes),
                window_rows=limits.window_rows,
                sessions=limits.sessions,
                weight_bytes=int(limits.weight_bytes),
                heartbeat_s=settings.heartbeat_s,
                silence_s=settings.silence_s,
                drain_s=settings.drain_s,
                bind=front.bind,
                memory=front.claim.address.memory,
                checkpoints=Folders(settings.checkpoint.path, private),
                authenticator=front.authenticator,
            )
        except BaseException:
            for table in tables.values():
                table.close()
            self._close()
            raise

    @property
    def address(self) -> str:
        """Where clients connect to."""
        return str(self._server.status()["address"])

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT, a DRAIN or `stop`; the exit code. Once."""
        try:
            self._server.run()
        finally:
            self._close()
        return 0

    def stop(self) -> None:
        """See `Server.stop`."""
        self._server.stop()

    def status(self) -> dict[str, Any]:
        """See `Server.status`."""
        return self._server.status()

    def _close(self) -> None:
        if self._front is not None:
            self._front.close()
