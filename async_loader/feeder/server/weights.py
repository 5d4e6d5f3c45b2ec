"""The newest weights of every name: received in parts, sent in parts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from async_loader.errors import Malformed
from async_loader.feeder.wire import ErrorCode, Latest, Publish, TensorSpec, Weights
from async_loader.feeder.wire.calls import Buffer

MOST_NAMES = 256
"""The newest weights of each name are kept as long as the server runs."""


@dataclass(slots=True, eq=False)
class Version:
    """One version of the weights of a name, complete or not."""

    version: int
    specs: tuple[TensorSpec, ...]
    blob: bytearray
    run: bytes
    filled: int = 0

    @property
    def whole(self) -> bool:
        return self.filled == len(self.blob)


class WeightStore:
    """Collects parts of versions from learners, and keeps the newest complete version.

    Versions count within a run. A client that publishes under a name for the first time begins a
    run, which ends the one before: a restarted training script counts from any version, and one
    that goes on beside it is told.

    Parameters
    ----------
    most_bytes : int
        Of one version; of all incomplete ones, and of those that clients read, four times as many.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._newest: dict[str, Version] = {}
        self._making: dict[tuple[Hashable, str], Version] = {}
        # What a client has begun to read stays until it has all of it, though another is newer.
        self._reading: dict[tuple[Hashable, str], Version] = {}
        self._over: dict[str, set[bytes]] = {}  # ended runs of each name
        self.stale = 0

    def versions(self) -> dict[str, int]:
        """Return the newest version of each name."""
        return {name: one.version for name, one in self._newest.items()}

    def newest(self, name: str) -> tuple[int, bytes] | None:
        """Return version and run of the newest weights of a name."""
        newest = self._newest.get(name)
        return None if newest is None else (newest.version, newest.run)

    def newest_version(self, name: str) -> int | None:
        """Return the version of the newest weights of a name."""
        newest = self.newest(name)
        return None if newest is None else newest[0]

    def _is_stale(self, run: bytes, part: Publish) -> bool:
        newest = self._newest.get(part.name)
        if newest is None:
            return False
        return (
            part.version <= newest.version
            if newest.run == run
            else run in self._over.get(part.name, ())
        )

    def publish(self, who: Hashable, run: bytes, part: Publish, data: Buffer) -> bool | None:
        """Take a part; return whether it was the last one: its version is the newest now. ``None``:
        it was ignored, as another is newer.

        Parameters
        ----------
        who : hashable
            The publisher: versions of different publishers are not mixed.
        run : bytes
            In which its versions count.

        Raises
        ------
        Malformed
            If the part does not continue the one before, or is too large.
        """
        key = (who, part.name)
        if self._is_stale(run, part):
            self.stale += not part.offset
            self._making.pop(key, None)
            return None
        if part.offset == 0:
            self._begin(key, run, part)
        making = self._making.get(key)
        if making is None or making.version != part.version or making.filled != part.offset:
            there = 0 if making is None or making.version != part.version else making.filled
            text = (
                f"weights {part.name!r} go on at byte {part.offset}, {there} have come: begin "
                "again at 0"
            )
            raise Malformed(text, ErrorCode.GAP, 0)
        view = memoryview(data).cast("B")
        making.blob[part.offset : part.offset + len(view)] = view
        making.filled += len(view)
        if not making.whole:
            return False
        del self._making[key]
        newest = self._newest.get(part.name)
        if newest is not None and newest.run != run:
            self._over.setdefault(part.name, set()).add(newest.run)
        self._newest[part.name] = making
        return True

    def _begin(self, key: tuple[Hashable, str], run: bytes, part: Publish) -> None:
        self._making.pop(key, None)
        names = self._newest.keys() | {name for _, name in self._making}
        if part.name not in names and len(names) >= MOST_NAMES:
            text = (
                f"{len(names)} names of weights are in use here, which is the limit: publish "
                f"{part.name!r} under one of them, or start the feeder again"
            )
            raise Malformed(text, ErrorCode.CONFIG)
        making = sum(len(one.blob) for one in self._making.values())
        if part.total_bytes > self._most or making + part.total_bytes > 4 * self._most:
            text = (
                f"weights {part.name!r} have {part.total_bytes} bytes, this server takes "
                f"{self._most}"
            )
            raise Malformed(
                f"{text} ({making} are in the making): raise weight_bytes", ErrorCode.TOO_LARGE
            )
        blob = bytearray(part.total_bytes)
        self._making[key] = Version(part.version, part.specs, blob, run)

    def gone(self, who: Hashable) -> None:
        """Drop the incomplete versions of a client that is gone."""
        for known in (self._making, self._reading):
            for key in [key for key in known if key[0] == who]:
                del known[key]

    def answer(self, who: Hashable, wanted: Latest, most: int) -> tuple[Weights, Any] | None:
        """Return the answer and its data frame; ``None`` while there is nothing newer."""
        newest = self._newest.get(wanted.name)
        if newest is None:
            return None
        same = wanted.run in (None, newest.run)
        if wanted.newer_than is not None and same and newest.version <= wanted.newer_than:
            return None
        key = who, wanted.name
        asked = [
            one
            for one in (self._reading.pop(key, newest), newest)
            if (one.version, one.run) == (wanted.version, wanted.run or one.run)
            and wanted.offset < len(one.blob)
        ]
        one, offset = (asked[0], wanted.offset) if asked else (newest, 0)
        data = memoryview(one.blob)[offset : offset + min(wanted.most, most)]
        if offset + len(data) < len(one.blob):
            self._reading[key] = one
            self._forget_some()
        body = Weights(
            name=wanted.name,
            version=one.version,
            total_bytes=len(one.blob),
            offset=offset,
            specs=() if offset else one.specs,
            run=one.run,
        )
        return body, data if len(data) else None

    def _forget_some(self) -> None:
        """Keep no more than `most_bytes` allow: a client begins again with the newest."""
        while sum(len(one.blob) for one in set(self._reading.values())) > 4 * self._most:
            del self._reading[next(iter(self._reading))]

    def nothing(self, wanted: Latest) -> Weights:
        """Return the answer that says that there is nothing newer."""
        newest = self._newest.get(wanted.name)
        if newest is None:
            return Weights(name=wanted.name, version=None)
        return Weights(name=wanted.name, version=newest.version, run=newest.run)
