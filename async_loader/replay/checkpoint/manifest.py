"""The contents of one save, as the text of its manifest.json."""

from __future__ import annotations

import collections
import json
import sys
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from async_loader import tree
from async_loader.errors import CorruptCheckpoint
from async_loader.replay.stream_names import lasting_json
from async_loader.schema import Field, Schema

_KINDS: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}


def name_of(saved: object) -> Hashable:
    """Convert the name of a stream back from JSON, see `lasting_json`."""
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
    return [known, list(map(lasting_json, node.keys)), list(map(_node, node.children))]


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
    names = tuple(map(name_of, keys))
    kind = _KINDS.get(known) or collections.namedtuple(
        known.removeprefix("namedtuple "), map(str, names)
    )
    return tree.Node(kind, names, tuple(map(_node_of, children)))


FORMAT = 4
MANIFEST, DATA = "manifest.json", "data.bin"
_HEAD, _TAIL = '{"crc32":"%08x","manifest":', "}\n"


class Block(NamedTuple):
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
    settings: dict[str, Any]
    table: dict[str, Any] | None
    samplers: dict[str, Any]
    blocks: list[Block]

    @property
    def nbytes(self) -> int:
        """Bytes of the data file."""
        return sum(block.nbytes for block in self.blocks)

    def text(self) -> str:
        """Return the text of manifest.json."""
        values = {name: getattr(self, name) for name in self.__slots__}
        body = json.dumps({"format": FORMAT, "byteorder": sys.byteorder, **values})
        return _HEAD % zlib.crc32(body.encode()) + body + _TAIL

    @classmethod
    def read(cls, file: Path) -> Manifest:
        """Read a manifest.json.

        Raises
        ------
        CorruptCheckpoint
            Names the file and says what is wrong with it.
        FileNotFoundError
        """
        raw = file.read_bytes()
        body = raw[len(_HEAD % 0) : -len(_TAIL)]
        if raw != (_HEAD % zlib.crc32(body)).encode() + body + _TAIL.encode():
            raise CorruptCheckpoint(
                f"{file}: its text does not have the checksum that it states: it was changed or "
                "cut off"
            )
        try:
            saved = json.loads(body)
            version, order = saved.pop("format"), saved.pop("byteorder")
            if version != FORMAT:
                raise CorruptCheckpoint(
                    f"{file}: is of format {version}, and this version reads {FORMAT}: load it "
                    "with the version that wrote it"
                )
            if order != sys.byteorder:
                raise CorruptCheckpoint(
                    f"{file}: was written on a {order}-endian machine, and this one is "
                    f"{sys.byteorder}-endian"
                )
            saved["blocks"] = [Block(*block) for block in saved["blocks"]]
            return cls(**saved)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise CorruptCheckpoint(
                f"{file}: this is no manifest of a checkpoint: {error!r}"
            ) from error
