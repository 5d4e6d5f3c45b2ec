"""Settings of a cluster of shards, from a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from async_loader.errors import ConfigError
from async_loader.feeder.settings import (
    SecuritySettings,
    ServerSettings,
    beside,
    relative_to,
)
from async_loader.feeder.settings_reader import Settings, read_yaml, settings_of
from async_loader.scale.shards import MOST_SHARDS
from async_loader.validation import path_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,31}")
Listen = Literal["ipc", "loopback", "node"]
Strategy = Literal["spread", "pack"]
ROLES = ("actor", "learner", "operator")


class NetworkSettings(Settings, frozen=True, kw_only=True):
    """Where the shards listen.

    Parameters
    ----------
    listen : "ipc" | "loopback" | "node"
        On a socket file in the shard's folder, for processes of the same machine and user; on
        127.0.0.1; or on the address by which Ray knows the shard's node, for other machines.
    keys : str, optional
        A folder for CURVE keys, which ``cluster up`` makes: one of each role for each shard. In a
        file, relative to that file. Required for "node".
    roles : list of str
        Users to make keys for.
    allow_insecure : bool
        Listen on "node" without keys.
    """

    listen: Listen = "ipc"
    keys: str | None = None
    roles: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] = ROLES
    allow_insecure: bool = False

    def __post_init__(self) -> None:
        if self.listen == "node" and self.keys is None and not self.allow_insecure:
            raise ConfigError(
                "listen: node can be reached from other machines, and without keys all who reach "
                "it can read and write the tables: name a folder for keys in keys, or set "
                "allow_insecure"
            )
        if self.keys is not None and "operator" not in self.roles:
            raise ConfigError(
                f"roles={list(self.roles)} without 'operator', whose keys `cluster status` and "
                "`cluster drain` use: add it"
            )
        for role in self.roles:
            if not _NAME.fullmatch(role) or role == "server" or self.roles.count(role) > 1:
                raise ConfigError(
                    f"roles: {role!r} will not do: up to 32 letters, digits, '_' and '-', each "
                    "once, and not 'server'"
                )


class PlacementSettings(Settings, frozen=True, kw_only=True):
    """On which nodes the shards are.

    Parameters
    ----------
    strategy : "spread" | "pack"
        On as many nodes as there are, or on few.
    labels : dict of str
        Only nodes with these labels of Ray.
    cpus : float
        What each shard reserves.
    memory : int, optional
        Bytes that each shard reserves.
    """

    strategy: Strategy = "spread"
    labels: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    cpus: Annotated[float, Meta(ge=0, le=4096)] = 1.0
    memory: Annotated[int, Meta(ge=1)] | None = None

    def resources(self) -> dict[str, float]:
        """Return what one shard reserves."""
        return {"CPU": self.cpus} | ({} if self.memory is None else {"memory": self.memory})


class ClusterSettings(Settings, frozen=True, kw_only=True):
    """All settings of a cluster on Ray.

    Parameters
    ----------
    name : str
        Of the cluster; several of different names may be in one Ray.
    shards : int
        From 1 to 64.
    folder : str, optional
        On each node: sockets, keys and counts of its shards. By default one of this user in
        ``$XDG_RUNTIME_DIR`` or the temporary folder.
    network : NetworkSettings
    placement : PlacementSettings
    restarts : int
        How often Ray starts a shard's actor again, on another node where its own is lost; -1:
        always.
    start_s : float
        How long a shard may take to start: compiling of kernels, and loading of its checkpoint.
    feeder : ServerSettings
        Of each shard, as of ``async-loader serve``: without ``bind`` and ``security``, which the
        cluster sets. With ``checkpoint.path`` each shard has a folder of its own in it.

    Raises
    ------
    ConfigError
    """

    name: str = "default"
    shards: Annotated[int, Meta(ge=1, le=MOST_SHARDS)] = 1
    folder: str | None = None
    network: NetworkSettings = NetworkSettings()
    placement: PlacementSettings = PlacementSettings()
    restarts: Annotated[int, Meta(ge=-1)] = -1
    start_s: Annotated[float, Meta(gt=0, le=1e6)] = 600.0
    feeder: ServerSettings

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"name={self.name!r}: up to 32 letters, digits, '_' and '-', as in 'pong'"
            )
        if self.feeder.bind is not None:
            raise ConfigError(
                f"feeder.bind={self.feeder.bind!r}: the cluster gives each shard an address: leave "
                "it out, and see network.listen"
            )
        if self.feeder.security != SecuritySettings():
            raise ConfigError("feeder.security: a cluster makes the keys: see network.keys")
        if self.folder is not None:
            path_of("folder", self.folder)

    @classmethod
    def load(cls, path: str | Path) -> ClusterSettings:
        """Read a YAML file.

        Raises
        ------
        ConfigError
            Names the file, the field's path and the expected value.
        """
        path = Path(path_of("path", path))
        plain, node = read_yaml(path)
        settings = settings_of(plain, cls, str(path), node)
        network = settings.network
        if network.keys is not None:
            network = replace(network, keys=beside(path, network.keys))
        return replace(settings, network=network, feeder=relative_to(path, settings.feeder))

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ClusterSettings:
        """Return settings of plain values, as `load` does."""
        return settings_of(plain, cls)
