"""The contents of one save, as the text of its manifest.json."""

from __future__ import annotations

import collections
import json
import sys
import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import CorruptCheckpoint
from async_loader.replay.stream_names import lasting_json
from async_loader.schema import Field, Schema

_KINDS: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}


def names_json(names: Iterable[Hashable]) -> list[Any]:
    """Convert the names of streams to JSON.

    Raises
    ------
    ConfigError
        For one that JSON does not hold: streams are found again by their names.
    """
    return [lasting_json(name) for name in names]


def name_of(saved: object) -> Hashable:
    """Convert one name of `names_json` back."""
    return tuple(name_of(one) for one in saved) if isinstance(saved, list) else saved


def schema_json(schema: Schema) -> dict[str, Any]:
    """Convert a schema to JSON."""
    fields = [
        [f.name, list(f.shape), f.dtype.str, f.stack, f.next, f.padding, f.codec]
        for f in schema.fields
    ]
    return {"structure": _node(schema.structure), "fields": fields}


def _node(node: tree.Structure) -> Any:
    if node is None:
        return None
    kind = node.kind.__name__
    known = kind if node.kind in (dict, list, tuple) else f"namedtuple {kind}"
    return [known, names_json(node.keys), [_node(child) for child in node.children]]


def schema_of(saved: dict[str, Any]) -> Schema:
    """Convert a schema of `schema_json` back. A namedtuple becomes one of
    the same name and fields.
    """
    fields = [
        Field(
            tuple(shape),
            np.dtype(dtype),
            stack=stack,
            next=after,
            padding=padding,
            codec=codec,
            name=name,
        )
        for name, shape, dtype, stack, after, padding, codec in saved["fields"]
    ]
    return Schema(_node_of(saved["structure"]), tuple(fields))


def _node_of(saved: Sequence[Any] | None) -> tree.Structure:
    if saved is None:
        return None
    known, keys, children = saved
    names = tuple(name_of(key) for key in keys)
    below = tuple(_node_of(child) for child in children)
    if known in _KINDS:
        return tree.Node(_KINDS[known], names, below)
    return tree.Node(
        collections.namedtuple(known.removeprefix("namedtuple "), map(str, names)), names, below
    )


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
