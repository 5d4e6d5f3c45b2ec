"""Random schemas, and the same steps in a table here, in a feeder's and in a saved one: the same
bytes. ``python tests/table/schema_programs.py FIRST COUNT SEED`` runs as many as are wanted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from async_loader import Field, Fifo, ReplayBuffer, Schema, Sequences, tree
from async_loader.errors import AsyncLoaderError
from async_loader.feeder import connect
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from async_loader.schema import tops_of

_DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
_SHAPES = [(), (), (), (1,), (3,), (2, 2), (0,), (2, 0), (0, 3), (300,), (40, 30)]
_NAMES = ["a", "b", "obs", "next_b", "é"]
_CODEC_BYTES = 256
_AT_ONCE = 50
"""Tables of one feeder."""


class Program:
    """A schema, and calls that follow from ``[seed, number]``."""

    def __init__(self, seed: int, number: int) -> None:
        self.rng = np.random.default_rng([seed, number])
        self.over_tcp = number // _AT_ONCE % 4 == 3
        self.saves_elsewhere = number % 4 == 0 and not self.over_tcp
        rng = self.rng
        names = list(rng.permutation(_NAMES)[: rng.integers(1, 5)])
        self.fields: dict[str, Any] = {str(name): self._fields(str(name)) for name in names}
        for end in ("terminated", "truncated", "done"):
            if rng.random() < 0.4:
                self.fields[end] = Field((1,) if rng.random() < 0.2 else (), "bool")
        self.schema = Schema.of(self.fields)
        self.linked = [field for field in self.schema.fields if field.next is not None]
        self.capacity = int(rng.integers(6, 30))

    @property
    def settings(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "sampler": Fifo(), "seed": 0}

    def _fields(self, top: str) -> Any:
        if self.rng.random() < 0.7:
            return self._field(top)
        inner = [self._field(top) for _ in range(self.rng.integers(1, 4))]
        return {str(i): one for i, one in enumerate(inner)}

    def _field(self, top: str) -> Field:
        rng = self.rng
        shape, dtype = _SHAPES[rng.integers(len(_SHAPES))], _DTYPES[rng.integers(len(_DTYPES))]
        more: dict[str, Any] = {}
        if rng.random() < 0.2:
            more = {
                "stack": int(rng.integers(2, 4)),
                "padding": str(rng.choice(["repeat", "zero"])),
            }
        if rng.random() < 0.2:
            more["next"] = f"after {top}"
        if np.dtype(dtype).itemsize * int(np.prod(shape)) >= _CODEC_BYTES and rng.random() < 0.5:
            more["codec"] = "lz4"
        return Field(shape, dtype, **more)

    def plain(self) -> Any:
        """The schema without codecs."""
        plain = [dataclasses.replace(field, codec=None) for field in self.schema.fields]
        return Schema(self.schema.structure, tuple(plain))

    def columns(self, rows: int) -> list[Any]:
        """Any bytes, for each field; an end of an episode now and then."""
        made = []
        for field in self.schema.fields:
            values = np.frombuffer(self.rng.bytes(rows * field.nbytes), np.uint8)
            if field.dtype == np.bool_:
                values = values < (40 if field.name in ("terminated", "truncated", "done") else 128)
            made.append(values.view(field.dtype).reshape(rows, *field.shape).copy())
            if field.dtype == np.float16:  # Python makes one NaN of all
                made[-1][np.isnan(made[-1])] = np.nan
            if self.rng.random() < 0.2:  # not contiguous, as of a larger array
                made[-1] = np.repeat(made[-1], 2, 0)[::2]
        return made

    def calls(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for _ in range(self.rng.integers(3, 10)):
            kind = str(
                self.rng.choice(["append", "append", "extend", "end_episode", "update", "delete"])
            )
            rows = int(self.rng.integers(1, 8))
            columns = self.columns(rows)
            if kind in ("append", "extend"):
                yield kind, {"columns": columns, "final": self.columns(rows)}
            else:
                ids = self.rng.integers(0, 20, rows)
                yield kind, {"ids": ids, "columns": columns, "final": self.columns(1)}

    def final(self, columns: list[Any]) -> Any:
        """What ``final_obs`` is told: the fields with ``next=``, nested as steps are."""
        whole = self.schema.rebuild(columns)
        tops = {
            top for f, top in zip(self.schema.fields, tops_of(self.schema), strict=True) if f.next
        }
        return whole[tops.pop()] if len(tops) == 1 else {top: whole[top] for top in tops}

    def run(self, table: Any, calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
        """Make the calls; return the names of the errors that they raised."""
        said = []
        with table.writer("one") as writer:
            for kind, given in calls:
                try:
                    self._call(table, writer, kind, **given)
                except AsyncLoaderError as error:
                    said.append(type(error).__name__)
                writer.flush()
        return said

    def _call(self, table: Any, writer: Any, kind: str, columns: Any, final: Any, ids: Any = None) -> None:  # fmt: skip # noqa: E501
        ended = False
        for field, column in zip(self.schema.fields, columns, strict=True):
            if field.name in ("terminated", "truncated", "done"):
                ended = ended | column.reshape(len(column)).astype(bool)
        if kind == "append":
            for row in range(len(columns[0])):
                more = {}
                if self.linked and np.any(ended) and ended[row]:
                    more["final_obs"] = self.final([one[row] for one in final])
                step = [one[row] if one.ndim > 1 else one[row].item() for one in columns]
                writer.append(self.schema.rebuild(step), **more)
        elif kind == "extend":
            more = {"final_obs": self.final(final)} if self.linked and np.any(ended) else {}
            writer.extend(self.schema.rebuild(columns), **more)
        elif kind == "end_episode":
            more = {"final_obs": self.final([one[0] for one in final])} if self.linked else {}
            writer.end_episode(**more)
        elif kind == "update":
            fields = zip(self.schema.fields, columns, strict=True)
            plain = {f.name: one for f, one in fields if "." not in f.name and not f.codec}
            table.update(ids, **plain)
        else:
            table.delete(ids)


def shown(table: Any) -> list[tuple[str, Any, Any, bytes]]:
    """Every byte that a table gives of its steps: by id, as sequences, drawn."""
    ids = np.arange(60)
    batches = [table.get(ids), table.get(ids, view=Sequences(2, boundary="pad"))]
    if len(table):
        batches.append(table.sample(len(table)))
    found = []
    for batch in batches:
        structure = tree.structure_of(batch)
        for name, leaf in zip(tree.names(structure), tree.leaves(batch, structure), strict=True):
            found.append((name, leaf.dtype, leaf.shape, leaf.tobytes()))
    return found


@contextlib.contextmanager
def feeder(programs: dict[int, Program]) -> Iterator[Any]:
    """A client of a feeder with a table for each program: on this host's memory, or over tcp."""
    tables = {
        f"t{number}": {**one.settings, "schema": one.fields} for number, one in programs.items()
    }
    if not next(iter(programs.values())).over_tcp:
        with connect("embedded", tables=tables, timeout_s=60) as client:
            yield client
        return
    settings = replace(ServerSettings.from_plain(tables), bind="tcp://127.0.0.1:*", drain_s=0.1)
    serving = FeederProcess(settings)
    thread = threading.Thread(target=serving.run)
    thread.start()
    try:
        with connect(serving.address, timeout_s=60) as client:
            yield client
    finally:
        serving.stop()
        thread.join()


def compare(program: Program, remote: Any, folder: Path) -> None:
    """Raise AssertionError for the first byte that differs."""
    calls = list(program.calls())
    with ReplayBuffer(schema=program.fields, **program.settings) as local:
        said = program.run(local, calls)
        assert program.run(remote, calls) == said
        whole = shown(local)
        with ReplayBuffer(schema=program.plain(), **program.settings) as plain:
            assert program.run(plain, calls) == said
            assert shown(plain) == whole
        assert shown(remote) == whole
        local.save(folder / "local")
    with ReplayBuffer.from_checkpoint(folder / "local") as again:
        assert shown(again) == whole
    if program.saves_elsewhere:
        remote.save(folder / "remote")
        with ReplayBuffer.from_checkpoint(folder / "remote") as again:
            assert shown(again) == whole


def run(first: int, count: int, seed: int) -> None:
    for start in range(first, first + count, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, first + count))
        programs = {number: Program(seed, number) for number in numbers}
        with feeder(programs) as client:
            for number, program in programs.items():
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        compare(program, client.table(f"t{number}"), Path(folder))
                    except BaseException as error:
                        error.add_note(f"program {number} of seed {seed}: {program.schema!r}")
                        raise


if __name__ == "__main__":
    run(*map(int, sys.argv[1:4]))
