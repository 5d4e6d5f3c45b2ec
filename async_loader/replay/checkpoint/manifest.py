"""The contents of one save, as the text of its manifest.json."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from async_loader.errors import CorruptCheckpoint

FORMAT = 3
_HEAD, _TAIL = '{"crc32":"%08x","manifest":', "}\n"
_HEAD_BYTES = len(_HEAD % 0)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a data file.

    Attributes
    ----------
    kind : "rows" | "column" | "ring"
        Rows; what the table alone knows about each row; or compressed values.
    nbytes, crc32 : int
    about : dict
        For rows: ``count`` rows from ``start`` on, or listed at the beginning where ``start`` is
        null. For a column: its ``name``. For a ring: the position at which it ``start``s.
    """

    kind: str
    nbytes: int
    crc32: int
    about: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of one save.

    Attributes
    ----------
    number : int
        Counts up within a folder.
    kind : "full" | "incremental"
    token : str
        No other save has it.
    chain : list of [int, int]
        Saves that this one rests on, the full one first: number, and checksum of the manifest.
    nbytes : int
        Of the data file.
    settings : dict
        What the table was made with.
    table : dict | None
        Its schema, counters and streams; ``None`` if there was no step yet.
    samplers : dict
        States by role; of the views of sequences as a list.
    blocks : list of Block
        Of the data file, in order. A later block replaces earlier ones.
    """

    number: int
    kind: str
    token: str
    chain: list[list[int]]
    nbytes: int
    settings: dict[str, Any]
    table: dict[str, Any] | None
    samplers: dict[str, Any]
    blocks: list[Block]

    def text(self) -> str:
        """Return the text of manifest.json."""
        body = self._body()
        return _HEAD % zlib.crc32(body.encode()) + body + _TAIL

    def _body(self) -> str:
        body = {
            "format": FORMAT,
            "byteorder": sys.byteorder,
            **{name: getattr(self, name) for name in self.__slots__},
        }
        body["blocks"] = [list(asdict(block).values()) for block in self.blocks]
        return json.dumps(body, separators=(",", ":"))

    @property
    def crc32(self) -> int:
        """Return the checksum of the text."""
        return zlib.crc32(self._body().encode())

    @classmethod
    def of(cls, raw: bytes, file: object) -> Manifest:
        """Parse the bytes of manifest.json.

        Raises
        ------
        CorruptCheckpoint
            Names ``file`` and says what is wrong with it.
        """
        body = raw[_HEAD_BYTES : -len(_TAIL)]
        if raw != (_HEAD % zlib.crc32(body)).encode() + body + _TAIL.encode():
            raise CorruptCheckpoint(
                f"{file}: its text does not have the checksum that it states: it was changed or "
                "cut off"
            )
        try:
            read = json.loads(body)
            version, order = read.pop("format"), read.pop("byteorder")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CorruptCheckpoint(
                f"{file}: this is no manifest of a checkpoint: {error!r}"
            ) from error
        if version != FORMAT:
            raise CorruptCheckpoint(
                f"{file}: is of format {version}, and this version reads {FORMAT}: load it with "
                "the version that wrote it"
            )
        if order != sys.byteorder:
            raise CorruptCheckpoint(
                f"{file}: was written on a {order}-endian machine, and this one is "
                f"{sys.byteorder}-endian"
            )
        try:
            read["blocks"] = [Block(*block) for block in read["blocks"]]
            return cls(**read)
        except (KeyError, TypeError) as error:
            raise CorruptCheckpoint(
                f"{file}: this is no manifest of a checkpoint: {error!r}"
            ) from error
