"""One save: the text of its manifest.json, and its blocks, which are checked as they are read."""

from __future__ import annotations

import collections
import inspect
import json
import os
import re
import sys
import zlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError, CorruptCheckpoint
from async_loader.replay import samplers
from async_loader.replay.arguments import positive
from async_loader.replay.array_types import Bytes
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.stream_names import lasting_json
from async_loader.replay.views import Sequences, Transitions
from async_loader.schema import Field, Schema
from async_loader.validation import path_of

_KINDS: dict[str, type] = {"dict": dict, "list": list, "tuple": tuple}
_KNOWN: dict[str, Any] = {name: getattr(samplers, name) for name in samplers.__all__}
_KNOWN |= {"Transitions": Transitions, "Sequences": Sequences}


def settings_json(value: object) -> dict[str, Any]:
    """Convert the class of a sampler or a view and its settings to JSON; what cannot be converted,
    to its text.
    """
    try:
        return {"value": _encoded(value)}
    except ConfigError as error:
        return {"text": repr(value), "why": str(error)}


def settings_of(saved: dict[str, Any], role: str) -> Any:
    """Make what `settings_json` has converted.

    Raises
    ------
    ConfigError
        If the class is not one of the package, or has functions: then one has to be passed.
    """
    if "text" in saved:
        raise ConfigError(
            f"the checkpoint was saved with the {role} {saved['text']}, and {saved['why']}: pass "
            f"{role}=..., made as it was then"
        )
    return _decoded(saved["value"])


def _encoded(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encoded(one) for one in value]
    kind = type(value)
    if _KNOWN.get(kind.__name__) is not kind:
        raise ConfigError(f"{kind.__qualname__} is no class that a checkpoint can name")
    names = inspect.signature(kind).parameters
    return {"$class": kind.__name__, **{name: _encoded(getattr(value, name)) for name in names}}


def _decoded(value: object) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind = value["$class"]
    if kind not in _KNOWN:
        raise ConfigError(
            f"the checkpoint names the class {kind!r}, and this version has none of that name"
        )
    return _KNOWN[kind](**{k: _decoded(one) for k, one in value.items() if k != "$class"})


def limiter_json(limiter: RateLimiter | None) -> Any:
    """Convert a limiter's three numbers to JSON."""
    if limiter is None:
        return None
    return [limiter.min_size_to_sample, limiter.samples_per_insert, limiter.error_buffer]


def limiter_of(saved: Sequence[Any] | None) -> RateLimiter | None:
    """Make the limiter of `limiter_json`."""
    if saved is None:
        return None
    least, ratio, buffer = saved  # which were checked when it was made
    limiter = object.__new__(RateLimiter)
    limiter._set(least, ratio, tuple(buffer) if isinstance(buffer, list) else buffer)
    return limiter


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


FORMAT = 5
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


_SAVE = re.compile(r"save-(\d{8,})")


def folder_name(number: int) -> str:
    """Return the name of a save's folder."""
    return f"save-{number:08}"


def saves(root: Path) -> list[int]:
    """Return the numbers of the saves in order."""
    names = os.listdir(root) if root.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := _SAVE.fullmatch(name)))


class Checkpoint:
    """One save, whose data file is open until `close`: what is dropped then does not matter.

    Raises
    ------
    CorruptCheckpoint
        Names the file and what is wrong with it.
    FileNotFoundError
    """

    def __init__(self, root: Path, number: int) -> None:
        self.manifest = Manifest.read(root / folder_name(number) / MANIFEST)
        self._path = root / folder_name(number) / DATA
        if (size := os.path.getsize(self._path)) != self.manifest.nbytes:
            raise CorruptCheckpoint(
                f"{self._path}: has {size:,} bytes, and its manifest says {self.manifest.nbytes:,}"
            )
        self._file = open(self._path, "rb")  # noqa: SIM115 (closed by `close`)

    @classmethod
    def find(cls, path: str | os.PathLike[str], number: int | None) -> Checkpoint:
        """Open the newest save in a folder, or save ``number``.

        Raises
        ------
        ConfigError
            If there is no checkpoint.
        CorruptCheckpoint
            Names the file, and what is wrong with it.
        """
        root = Path(path_of("path", path)).absolute()
        if number is not None:
            number = positive("number", number)
        there = saves(root)
        if not there:
            below = sorted({*root.glob("*"), *root.glob("*/*")})  # tables and saves of a feeder
            names = [str(one.relative_to(root)) for one in below if saves(one)][:8]
            remedy = f": there are some in {', '.join(names)}" if names else ""
            if root.is_file():
                raise ConfigError(f"{root} is a file: name the folder that a table was saved into")
            raise ConfigError(f"{root}: there is no checkpoint in this folder{remedy}")
        wanted = there[-1] if number is None else number
        if wanted not in there:
            raise ConfigError(
                f"{root}: there is no save {wanted} in this folder, only "
                f"{', '.join(map(str, there))}"
            )
        try:
            return cls(root, wanted)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(
                f"{error.filename}: is missing; if others save to this folder, load again"
            ) from None

    def close(self) -> None:
        """Close the file. May be called again."""
        self._file.close()

    def blocks(self, *kinds: str) -> Iterator[tuple[dict[str, Any], Bytes]]:
        """Yield what the manifest says about the blocks of some kinds, and their bytes, checked."""
        start = 0
        for block in self.manifest.blocks:
            if block.kind in kinds:
                self._file.seek(start)
                raw = self._file.read(block.nbytes)
                if len(raw) != block.nbytes or zlib.crc32(raw) != block.crc32:
                    raise CorruptCheckpoint(
                        f"{self._path}: bytes {start:,} to {start + block.nbytes:,} do not have "
                        "the checksum that the manifest states: the file was changed after it was "
                        "written, or the disk is failing"
                    )
                yield block.about, np.frombuffer(raw, np.uint8)
            start += block.nbytes
