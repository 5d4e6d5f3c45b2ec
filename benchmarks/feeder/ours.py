"""Our feeder as users have it: a server in a process of its own, writers, and learners.

Measures nothing.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.feeder.processes import Child, child
from benchmarks.feeder.workloads import Work
from benchmarks.replay.workloads import BATCH, FRAME, STACK

PRELOAD = (
    "async_loader.feeder.server",
    "async_loader.feeder.client.connect",
    "async_loader.replay.base.compiled",
)
TABLE = "replay"
STEPS = 100
"""Number of steps that an actor appends before it checks the clock."""

LIMIT_S = 60.0

Take = Callable[[], Any]


def table(work: Work) -> Any:
    """Return the empty table of a server."""
    from async_loader import Field, ReplayBuffer

    stored = work.stored
    fields: dict[str, Any] = dict(stored.fields)
    if work.linked:
        del fields["next_obs"]
        atari = work.kind == "atari"
        fields["obs"] = (
            Field(FRAME, "uint8", stack=STACK, next="next_obs")
            if atari
            else Field(*fields["obs"], next="next_obs")
        )
    return ReplayBuffer(stored.rows, fields, seed=0)


@contextmanager
def serving(work: Work, transport: str) -> Iterator[tuple[Child, str]]:
    """Run a server process and give its address; ``transport`` is tcp or ipc."""
    with TemporaryDirectory() as folder, child(PRELOAD, _serve, work, transport, folder) as server:
        yield server, server.hear()


def _serve(pipe: Any, work: Work, transport: str, folder: str) -> None:
    made = server(work, transport, folder)
    threading.Thread(target=_stop_when_told, args=(pipe, made), daemon=True).start()
    pipe.send(address_of(made))
    made.run()


def address_of(server: Any) -> str:
    """Return where clients connect to."""
    from async_loader.feeder.wire import Plane

    return str(server.endpoints[Plane.CONTROL])


def server(work: Work, transport: str, folder: str) -> Any:
    """Return a server of an empty table in this process; ``transport`` is tcp or ipc."""
    from async_loader.feeder.server import Server
    from async_loader.feeder.settings import ServiceSettings
    from async_loader.feeder.wire import Plane

    if transport == "tcp":
        endpoints = dict.fromkeys(Plane, "tcp://127.0.0.1:*")
    else:
        address = f"ipc://{Path(folder) / 'feeder'}"
        endpoints = {
            Plane.CONTROL: address,
            Plane.INSERT: f"{address}.insert",
            Plane.PULL: f"{address}.pull",
        }
    memory = f"{Path(folder) / 'feeder'}.memory" if transport != "tcp" else None
    return Server({TABLE: table(work)}, endpoints, ServiceSettings(drain_s=0.1), memory=memory)


def _stop_when_told(pipe: Any, server: Any) -> None:
    pipe.poll(None)
    server.stop()


@contextmanager
def writing(
    address: str, work: Work, batched: bool
) -> Iterator[tuple[Callable[[], int], Callable[[], None]]]:
    """Give an actor's ``write()`` and ``flush()``: steps one at a time, or in blocks of a batch."""
    from async_loader.feeder import connect

    with connect(address) as client:
        writer = client.table(TABLE).writer()
        write = (
            partial(_extend, writer, work.blocks())
            if batched
            else partial(_append, writer, cycle(_as_environments_say(work)))
        )
        yield write, lambda: writer.flush(LIMIT_S)


def crossed(address: str) -> int:
    """Return the bytes that have gone through the server's sockets so far, in both directions."""
    from async_loader.feeder import connect

    with connect(address) as client:
        counters = client.status()["counters"]
    return sum(count for name, count in counters.items() if name.startswith("bytes_"))


def _as_environments_say(work: Work) -> list[dict[str, Any]]:
    """Convert rewards, flags and discrete actions to Python numbers."""
    return [
        {name: value if value.ndim else value.item() for name, value in step.items()}
        for step in work.steps()
    ]


def _append(writer: Any, steps: Iterator[Any]) -> int:
    for _ in range(STEPS):
        writer.append(next(steps))
    return STEPS


def _extend(writer: Any, blocks: Iterator[Any]) -> int:
    block = next(blocks)
    writer.extend(block)
    return len(block["reward"])


def fill(address: str, work: Work) -> None:
    """Fill the table by a writer whose process has ended when this returns."""
    with child(PRELOAD, _fill, address, work) as writer:
        writer.hear()


def _fill(pipe: Any, address: str, work: Work) -> None:
    from async_loader.feeder import connect

    with connect(address) as client:
        writer = client.table(TABLE).writer()
        for chunk in work.chunks():
            writer.extend(chunk)
        writer.flush(LIMIT_S)
    pipe.send("filled")


@contextmanager
def taking(
    address: str, loader: bool = False, batch: int = BATCH, **options: Any
) -> Iterator[Take]:
    """Return a function for a learner's next batch, from the source itself or through a loader.

    ``options`` are the source's.
    """
    from async_loader import AsyncDataLoader
    from async_loader.feeder import connect
    from async_loader.lifecycle import Patience

    with connect(address) as client:
        source = client.table(TABLE).source(**options)
        if loader:
            with AsyncDataLoader(source, batch, "cpu") as batches:
                yield batches.__next__
        else:
            patience = Patience()
            yield lambda: source.plan(batch, patience).batch
