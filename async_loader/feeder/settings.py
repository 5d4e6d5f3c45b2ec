"""Settings of a feeder: from a YAML file, from the command line, or from Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from async_loader.errors import AsyncLoaderError, ConfigError, OutOfMemory
from async_loader.feeder import addresses
from async_loader.feeder.plain_values import at
from async_loader.feeder.settings_reader import Settings, read_yaml, settings_of
from async_loader.feeder.table_settings import make_table, read_table, rollouts_of
from async_loader.feeder.wire import codes
from async_loader.replay.arguments import bytes_of
from async_loader.replay.buffer import ReplayBuffer
from async_loader.rollouts.rollouts import Rollouts
from async_loader.rollouts.slots import GroupSettings
from async_loader.validation import path_of

Seconds = Annotated[float, Meta(gt=0, le=1e6)]
if TYPE_CHECKING:
    Bytes = int
else:
    Bytes = int | str
    """A number of bytes, which a file may write as ``64MiB``."""
_SIZES = ("message_bytes", "control_bytes", "in_flight_bytes", "window_bytes", "weight_bytes")


class LimitSettings(Settings, frozen=True, kw_only=True):
    """Limits of the server. They bound how much memory peers can make it use.

    Parameters
    ----------
    message_bytes : int
        Bytes of all body frames of a message.
    control_bytes : int
        Bytes of a control message's body.
    in_flight_bytes : int
        Bytes received from a session and not in a table, or drawn for one and not sent.
    sessions : int
    window_bytes, window_rows : int
        What a writer may send before it is acknowledged.
    weight_bytes : int
        Bytes of one version of published weights.
    """

    message_bytes: Bytes = codes.MESSAGE_BYTES
    control_bytes: Bytes = codes.CONTROL_BYTES
    in_flight_bytes: Bytes = codes.IN_FLIGHT_BYTES
    sessions: Annotated[int, Meta(ge=1, le=1_000_000)] = 1024
    window_bytes: Bytes = 64 << 20
    window_rows: Annotated[int, Meta(ge=1, le=2**32 - 1)] = 65_536
    weight_bytes: Bytes = 4 << 30

    def __post_init__(self) -> None:
        for name in _SIZES:
            with at(name):
                self._replace(**{name: bytes_of(name, getattr(self, name))})
        if not 1024 <= self.control_bytes <= codes.CONTROL_BYTES:
            raise ConfigError(
                f"control_bytes={self.control_bytes}: the wire allows 1024 to {codes.CONTROL_BYTES}"
            )
        for name in ("message_bytes", "window_bytes"):
            if getattr(self, name) > self.in_flight_bytes:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is above "
                    f"in_flight_bytes={self.in_flight_bytes}: raise that"
                )

    def wire(self) -> codes.Limits:
        """Return the limits in WELCOME."""
        return codes.Limits(
            control_bytes=self.control_bytes,
            message_bytes=self.message_bytes,
            in_flight_bytes=self.in_flight_bytes,
        )


class ServiceSettings(Settings, frozen=True, kw_only=True):
    """How a server serves, whatever its tables, address and keys.

    Parameters
    ----------
    limits : LimitSettings
    heartbeat_s, silence_s : float
        A side that has sent nothing for ``heartbeat_s`` sends a PING; a side that was silent for
        ``silence_s`` is taken for dead.
    drain_s : float
        How long, at the end, received rows may wait for their table, and learners for the last
        batches of a queue; half of it where tables are saved then.

    Raises
    ------
    ConfigError
    """

    limits: LimitSettings = LimitSettings()
    heartbeat_s: Seconds = 1.0
    silence_s: Seconds = 10.0
    drain_s: Seconds = 10.0

    def __post_init__(self) -> None:
        if self.silence_s < 2 * self.heartbeat_s:
            raise ConfigError(
                f"silence_s={self.silence_s:g} is less than two heartbeats of "
                f"{self.heartbeat_s:g} s: one late heartbeat would end a session, raise silence_s"
            )


class SecuritySettings(Settings, frozen=True, kw_only=True):
    """Who may connect.

    Parameters
    ----------
    keys : str, optional
        The folder that ``async-loader keys`` made. With it, every connection is encrypted, and only
        clients with known keys connect. In a file, relative to that file.
    allow_insecure : bool
        Bind beyond this machine without keys: every process that reaches the port can read and
        write the tables.
    """

    keys: str | None = None
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        if self.keys is not None:
            path_of("keys", self.keys)


class CheckpointSettings(Settings, frozen=True, kw_only=True):
    """Where tables are saved to, and loaded from.

    Parameters
    ----------
    path : str, optional
        A folder with a folder for each table, in which clients name folders. Without it no table is
        saved or loaded. In a file, relative to that file.
    every_s : float, optional
        Save each table that has changed after this time, while it is served, and once more at the
        end; begin with the newest save. One feeder at a time has the folder then.

    Raises
    ------
    ConfigError
    """

    path: str | None = None
    every_s: Seconds | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            path_of("path", self.path)
        elif self.every_s is not None:
            raise ConfigError(
                f"every_s={self.every_s:g} without a path: name the folder too, as in checkpoint: "
                "{every_s: 60, path: saves}"
            )


class MetricsSettings(Settings, frozen=True, kw_only=True):
    """Where metrics are served, for Prometheus.

    Parameters
    ----------
    port : int
        0 takes a free one.
    address : str
        By default this machine's loopback: metrics are read without a key.
    """

    port: Annotated[int, Meta(ge=0, le=65_535)]
    address: str = "127.0.0.1"


class DashboardSettings(MetricsSettings, frozen=True, kw_only=True):
    """Where the dashboard is served, as `MetricsSettings`.

    Beyond the loopback the page's address has a token, which is logged at the start.
    """

    port: Annotated[int, Meta(ge=0, le=65_535)] = 8484


class ServerSettings(ServiceSettings, frozen=True, kw_only=True):
    """All settings of a feeder: `ServiceSettings`, and these.

    Parameters
    ----------
    bind : str, optional
        ``tcp://127.0.0.1:5555`` or ``ipc:///path``; by default a socket in a folder that only this
        user can enter.
    tables : dict of dict
        One at least, as `table_settings` describes it.
    security : SecuritySettings
    checkpoint : CheckpointSettings
    metrics : MetricsSettings, optional
        Without it no metrics are served. ``async-loader serve`` serves them.
    dashboard : DashboardSettings, optional
        Without it no dashboard is served. ``async-loader serve`` serves it.

    Raises
    ------
    ConfigError

    Examples
    --------
    >>> settings = ServerSettings.of(["replay:1000000"], bind="tcp://127.0.0.1:5555")
    >>> settings.tables["replay"]["capacity"]
    1000000
    """

    bind: str | None = None
    tables: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    security: SecuritySettings = SecuritySettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    metrics: MetricsSettings | None = None
    dashboard: DashboardSettings | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tables:
            raise ConfigError(
                "tables: it is empty: give one, as in --table replay:1000000, or in a file "
                "tables: {replay: {capacity: 1000000}}"
            )
        if len(self.tables) > codes.FIELDS:
            raise ConfigError(f"tables: there are {len(self.tables)}, {codes.FIELDS} are allowed")
        for name in self.tables:
            if not 1 <= len(name) <= 256 or not name.isprintable() or name != name.strip():
                raise ConfigError(
                    f"tables: the name {name[:300]!r} will not do: 1 to 256 printable characters, "
                    "no space at either end"
                )
        if self.bind is not None:
            addresses.parse(self.bind)
        with at("tables"):
            found = {}
            for name, table in self.tables.items():
                with at(name):
                    found[name] = read_table(table)
        self._replace(tables=found)

    @classmethod
    def load(cls, path: str | Path) -> ServerSettings:
        """Read a YAML file.

        Raises
        ------
        ConfigError
            Names the file, the field's path and the expected value.
        """
        return cls.of(config=path)

    @classmethod
    def of(
        cls,
        tables: Iterable[str] = (),
        *,
        bind: str | None = None,
        config: str | Path | None = None,
        allow_insecure: bool = False,
        checkpoint: str | Path | None = None,
        dashboard_port: int | None = None,
    ) -> ServerSettings:
        """Read the command line.

        A file if there is one, and tables as in ``replay:1000000``, ``replay:8GiB``.
        """
        path = None if config is None else Path(path_of("config", config))
        plain, node = ({}, None) if path is None else read_yaml(path)
        given: dict[str, dict[str, Any]] = {
            "tables": tables_of(tables),
            "security": {"allow_insecure": True} if allow_insecure else {},
        }
        if checkpoint is not None:
            given["checkpoint"] = {"path": os.path.abspath(path_of("checkpoint", checkpoint))}
        if dashboard_port is not None:
            given["dashboard"] = {"port": dashboard_port}
        if isinstance(plain, dict):
            for name, values in given.items():
                if values and isinstance(inner := plain.get(name) or {}, dict):
                    plain[name] = {**inner, **values}
            if bind is not None:
                plain["bind"] = bind
        settings = settings_of(plain, cls, "" if path is None else str(path), node)
        return settings if path is None else relative_to(path, settings)

    @classmethod
    def from_plain(cls, tables: Mapping[str, Any]) -> ServerSettings:
        """Return settings with these tables, as in a YAML file. Raises ConfigError, as `load`."""
        plain = {
            name: {"rollouts": one.settings.plain()} if isinstance(one, Rollouts) else one
            for name, one in tables.items()
        }
        return settings_of({"tables": plain}, cls)

    def address(self) -> addresses.Address:
        """Return where to bind."""
        return addresses.default() if self.bind is None else addresses.parse(self.bind)

    def make_tables(self) -> dict[str, ReplayBuffer]:
        """Make all tables, empty. If one cannot be made, all others are closed.

        Raises
        ------
        ConfigError, OutOfMemory
            Names the table.
        """
        made: dict[str, ReplayBuffer] = {}
        for name, table in self.tables.items():
            if "rollouts" in table:
                continue
            try:
                made[name] = make_table(table, name)
            except AsyncLoaderError as error:
                for one in made.values():
                    one.close()
                kind = OutOfMemory if isinstance(error, OutOfMemory) else ConfigError
                raise kind(f"tables.{name}: {error}") from error
        return made

    def make_rollouts(self) -> dict[str, GroupSettings]:
        """Return the settings of the tables of rollouts."""
        return {
            name: rollouts_of(one["rollouts"])
            for name, one in self.tables.items()
            if "rollouts" in one
        }


def tables_of(texts: Iterable[str]) -> dict[str, int | str]:
    """Return the tables of a command line. Raises ConfigError."""
    made: dict[str, int | str] = {}
    for text in texts:
        name, size = table_of(text)
        if name in made:
            raise ConfigError(f"--table {text!r}: {name!r} is there twice: leave one of them out")
        made[name] = size
    return made


def table_of(text: str) -> tuple[str, int | str]:
    """Return the name and the size in ``replay:1000000`` or ``replay:8GiB``.

    Raises
    ------
    ConfigError
    """
    name, colon, size = text.rpartition(":")
    if not colon or not name or not size.strip():
        raise ConfigError(
            f"--table {text!r}: it is a name and a size, as in replay:1000000 (steps) or "
            "replay:8GiB"
        )
    digits = size.strip().replace("_", "")
    return name, int(digits) if digits.isascii() and digits.isdigit() else size.strip()


def relative_to(path: Path, settings: ServerSettings) -> ServerSettings:
    """Return settings whose paths are relative to a file."""
    keys, saves = settings.security.keys, settings.checkpoint.path
    if keys is not None:
        settings = replace(settings, security=replace(settings.security, keys=beside(path, keys)))
    if saves is not None:
        checkpoint = replace(settings.checkpoint, path=beside(path, saves))
        settings = replace(settings, checkpoint=checkpoint)
    for table in settings.tables.values():
        if "keep" in table:
            table["keep"] = beside(path, table["keep"])
    return settings


def beside(path: Path, named: str) -> str:
    """Return a path in a file, relative to that file."""
    return str(path.parent / Path(named).expanduser())
