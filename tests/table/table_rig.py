"""Makers of tables and of writers, for tests that hold for each. One more is one line more in
`TABLES` or `WRITERS`.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from msgspec.structs import replace

from async_loader import ReplayBuffer
from async_loader.feeder import connect
from async_loader.feeder.curve_keys import make_keys
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import CheckpointSettings, SecuritySettings, ServerSettings
from async_loader.lifecycle import Deadline
from async_loader.table import Table, Writer

SCHEMA = {"x": "int64", "reward": "float32"}

MakeTable = Callable[..., contextlib.AbstractContextManager[Table]]
"""Called with what ReplayBuffer takes: (capacity, schema, **settings)."""


@contextlib.contextmanager
def embedded(capacity: Any = None, schema: Any = None, **settings: Any) -> Iterator[Table]:
    """A table of a feeder that this process has started."""
    with connect("embedded", tables={"one": _settings(capacity, schema, settings)}) as client:
        yield client.table("one")


@contextlib.contextmanager
def served(capacity: Any = None, schema: Any = None, **settings: Any) -> Iterator[Table]:
    """A table of a feeder that is reached over tcp, with keys."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_keys(folder / "keys", ["actor"])
        made = ServerSettings.from_plain({"one": _settings(capacity, schema, settings)})
        made = replace(
            made,
            bind="tcp://127.0.0.1:*",
            drain_s=0.1,
            checkpoint=CheckpointSettings(path=str(folder / "saves")),
            security=SecuritySettings(keys=str(folder / "keys")),
        )
        serving = FeederProcess(made)
        thread = threading.Thread(target=serving.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(serving.stop)
        client = connect(serving.address, keys=folder / "keys" / "actor.secret")
        yield stack.enter_context(client).table("one")


def _settings(capacity: Any, schema: Any, settings: dict[str, Any]) -> dict[str, Any]:
    given = {**settings, "capacity": capacity, "schema": schema}
    return {name: value for name, value in given.items() if value is not None}


TABLES: dict[str, MakeTable] = {"local": ReplayBuffer, "embedded": embedded, "served": served}


@dataclass
class Writers:
    """How writers of one kind are made.

    Attributes
    ----------
    table : MakeTable
    open : callable
        (stack, table, stream) -> a Writer, which the stack closes.
    gives_ids : bool
        Whether ``append`` returns an id; elsewhere ``None``.
    folder : callable
        A path, as the table is told it.
    """

    table: MakeTable
    open: Callable[[contextlib.ExitStack, Any, Hashable | None], Writer]
    gives_ids: bool = True
    folder: Callable[[Path], PurePath] = Path


def relative(path: Path) -> PurePath:
    """As a feeder is told it, within its folder for checkpoints."""
    return PurePath(str(path).lstrip("/"))


def open_here(stack: contextlib.ExitStack, table: Table, stream: Hashable | None) -> Writer:
    return stack.enter_context(table.writer(stream))


WRITERS: dict[str, Writers] = {
    "local": Writers(ReplayBuffer, open_here),
    "embedded": Writers(embedded, open_here, gives_ids=False),
    "served": Writers(served, open_here, gives_ids=False),
}


@dataclass
class Making:
    """What a test makes its tables with; the test's end closes them.

    Attributes
    ----------
    kind : Writers
    """

    kind: Writers
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def table(self, capacity: int = 100, schema: Any = SCHEMA, **settings: Any) -> Table:
        return self.stack.enter_context(self.kind.table(capacity, schema, **settings))

    def writer(self, table: Table, stream: Hashable | None = None) -> Writer:
        return self.kind.open(self.stack, table, stream)


def until(attempt: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Ask again and again; each of the questions takes time of its own."""
    deadline = Deadline(timeout_s)
    while not attempt():
        assert not deadline.expired


def each(
    values: dict[str, Any], wanted: Callable[[Any], bool] = lambda one: True
) -> dict[str, Any]:
    """Arguments of `pytest.fixture`: one parameter for each maker."""
    there = {name: value for name, value in values.items() if wanted(value)}
    return {"params": list(there.values()), "ids": list(there)}


@contextlib.contextmanager
def making(kind: Writers) -> Iterator[Making]:
    made = Making(kind)
    with made.stack:
        yield made
