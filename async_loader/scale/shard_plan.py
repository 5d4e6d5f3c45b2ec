"""What a shard's process is started with: plain values that travel to its node."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec.structs import replace

from async_loader.feeder import addresses
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.settings_reader import settings_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Secrets:
    """Key files of one shard, by their paths in its folder of keys. Not shown by ``repr``."""

    files: dict[str, bytes] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardPlan:
    """What a shard is.

    Attributes
    ----------
    cluster : str
    number : int
    folder : str | None
        As in `ClusterSettings`.
    listen : str
    allow_insecure : bool
    feeder : bytes
        `ServerSettings`, in MessagePack.
    secrets : Secrets | None
    start_s : float
    """

    cluster: str
    number: int
    folder: str | None
    listen: str
    allow_insecure: bool
    feeder: bytes = field(repr=False)
    secrets: Secrets | None = None
    start_s: float = 600.0

    @property
    def name(self) -> str:
        return f"shard-{self.number}"

    def settings(self) -> ServerSettings:
        """Return the settings of the feeder, with a folder of the shard's own for checkpoints."""
        found = settings_of(msgspec.msgpack.decode(self.feeder), ServerSettings)
        above = found.checkpoint.path
        path = str(self.place() / "saves" if above is None else Path(above) / self.name)
        return replace(found, checkpoint=replace(found.checkpoint, path=path))

    def place(self) -> Path:
        """Return the folder of the shard on this node. It and those above it are made."""
        if self.folder is None:
            base = addresses.private_folder(addresses.runtime_folder() / "clusters")
        else:
            base = Path(self.folder)
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = addresses.private_folder(base / self.cluster)
        return addresses.private_folder(home / self.name)


def encoded(settings: ServerSettings) -> bytes:
    """Return settings in MessagePack."""
    return msgspec.msgpack.encode(settings)
