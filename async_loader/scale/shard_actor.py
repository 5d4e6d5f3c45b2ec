"""The actor of a shard, as Ray runs it on the shard's node: a feeder on a thread of its process.

::

    FOLDER/CLUSTER/shard-0/     0700, on the shard's node
      feeder, feeder.insert...  its sockets, where it listens on ipc
      keys/                     its CURVE keys, 0600
      saves/TABLE/rows          counts of rows, see periodic_saves.py

# NOTE [restarts]
Ray starts the actor again when its process ends, with the same plan, on another node where its own
is lost. A feeder that cannot start again, as another process has its address, ends the process, so
that Ray tries again. The first start raises instead: ``cluster up`` says why.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from async_loader.errors import Broken, Timeout
from async_loader.feeder import addresses
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import SecuritySettings, ServerSettings
from async_loader.lifecycle import join
from async_loader.scale import ray_library
from async_loader.scale.cluster_settings import ClusterSettings
from async_loader.scale.shards import own_host
from async_loader.shm.hugepages import keep_freed

_log = logging.getLogger("async_loader.scale")
_STATUS_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardPlan:
    """What a shard is.

    Attributes
    ----------
    settings : ClusterSettings
    number : int
    secrets : dict of bytes
        Its key files, by their paths in its folder of keys. Not shown by ``repr``.
    removed : frozenset of int
        Numbers of shards that are no part of the cluster any more.
    """

    settings: ClusterSettings = field(repr=False)
    number: int
    secrets: dict[str, bytes] = field(default_factory=dict, repr=False)
    removed: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return f"shard-{self.number}"

    def place(self) -> Path:
        """Return the folder of the shard on this node. It and those above it are made."""
        settings = self.settings
        if settings.folder is None:
            base = addresses.private_folder(addresses.runtime_folder() / "clusters")
        else:
            base = Path(settings.folder)
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = addresses.private_folder(base / settings.name)
        return addresses.private_folder(home / self.name)

    def feeder(self) -> ServerSettings:
        """Return the settings of the feeder on this node. Its keys are written."""
        settings, folder = self.settings, self.place()
        found, network = settings.feeder, settings.network
        above, host = found.checkpoint.path, "127.0.0.1"
        path = str(folder / "saves" if above is None else Path(above) / self.name)
        if network.listen == "node":
            host = ray_library.node_address()
            host = f"[{host}]" if ":" in host else host
        for name, content in self.secrets.items():
            _write_secret(folder / "keys" / name, content)
        keys = str(folder / "keys") if self.secrets else None
        return replace(
            found,
            bind=f"ipc://{folder}/feeder" if network.listen == "ipc" else f"tcp://{host}:*",
            checkpoint=replace(found.checkpoint, path=path),
            security=SecuritySettings(keys=keys, allow_insecure=network.allow_insecure),
        )


class ShardActor:
    """Runs the feeder of one shard. All methods may be called at the same time.

    Parameters
    ----------
    plan : ShardPlan

    Raises
    ------
    ConfigError, OutOfMemory, AddressInUse, ...
        As `FeederProcess`; after a restart the process ends instead: see NOTE [restarts].
    """

    def __init__(self, plan: ShardPlan) -> None:
        self._plan, self._removed, self._drains = plan, set(plan.removed), False
        self._code = 0
        made: Future[FeederProcess] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(made,), name="async-loader-shard", daemon=True
        )
        self._thread.start()
        try:
            self._feeder = made.result()
        except Exception as error:
            if ray_library.was_restarted():
                _log.error("%s cannot start, and is started again: %s", plan.name, error)
                os._exit(1)
            raise
        self._address = self._feeder.address

    def _run(self, made: Future[FeederProcess]) -> None:
        keep_freed()
        try:
            feeder = FeederProcess(self._plan.feeder(), count=True)
        except BaseException as error:
            made.set_exception(error)
            return
        made.set_result(feeder)
        try:
            self._code = feeder.run()
        except Exception:
            _log.exception("%s has failed, and is started again", self._plan.name)
            os._exit(1)
        if not self._drains:  # a client has ended it: Ray starts it again
            os._exit(0)

    def describe(self) -> dict[str, Any]:
        """Return what the shard is: plain values, without keys."""
        return {
            "name": self._plan.name,
            "number": self._plan.number,
            "address": self._address,
            "host": own_host(),
            "node": ray_library.node_id(),
            "pid": os.getpid(),
            "state": "draining" if self._drains else "serving",
            "removed": sorted(self._removed),
        }

    def status(self) -> dict[str, Any]:
        """Return what the shard is, with the ``status`` of its feeder."""
        return {**self.describe(), "feeder": self._feeder.ask_status(_STATUS_S)}

    def remember(self, removed: list[int]) -> None:
        """Keep numbers of shards that are no part of the cluster any more, for its clients."""
        self._removed |= set(removed)

    def drain(self, timeout_s: float) -> dict[str, Any]:
        """End the feeder, when what it holds is delivered or saved; return its last status.

        Raises
        ------
        Timeout, Broken
        """
        before = self.status()
        self._drains = True
        self._feeder.stop()
        if not join(self._thread, timeout_s):
            raise Timeout(f"{self._plan.name} has not ended after {timeout_s:g} s")
        if self._code:
            raise Broken(f"{self._plan.name} could not save its tables: see its log")
        return before


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file of this user, which no other user can read at any time."""
    for folder in (path.parent.parent, path.parent):
        if folder.name in ("keys", "clients"):
            addresses.private_folder(folder)
    path.touch(0o600)
    path.write_bytes(content)
