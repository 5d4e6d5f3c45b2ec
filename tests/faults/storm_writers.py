"""What a storm of Ctrl-C strikes beside loaders: writers over an embedded feeder, and of a table
in another process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from storm_play import Storm

LONGEST_S = 60.0
AT_ONCE = 40
"""Steps in a row while one signal is on its way."""
_APART = 1 << 40
"""Between the numbers of one writer and the next."""
_BATCH = 8


@contextlib.contextmanager
def others() -> Iterator[tuple[Any, Any]]:
    """A client of an embedded feeder with a queue, and an end of a pipe to a process that owns a
    table.
    """
    from async_loader.feeder import connect

    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    owner = fork.Process(target=_own, args=(theirs, ours))
    owner.start()
    theirs.close()
    queue = {"capacity": 20_000, "sampler": "fifo", "max_times_sampled": 1}
    try:
        with connect("embedded", tables={"queue": queue}, timeout_s=LONGEST_S) as client:
            yield client, ours
    finally:
        ours.close()
        owner.join(LONGEST_S)
        owner.kill()
        owner.join()
        owner.close()


def _own(pipe: Any, other_end: Any) -> None:
    """In a process of its own: a table, handles for its writers, and answers to what is in it."""
    from async_loader import ReplayBuffer
    from async_loader.schema import Field
    from async_loader.testing.debug import debug_state

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    other_end.close()  # else its end would never come
    with ReplayBuffer(20_000, {"x": Field((), np.dtype(np.int64), next="after")}, seed=0) as buffer:
        table = debug_state(buffer).state.table
        with contextlib.suppress(EOFError):
            while True:
                asked = pipe.recv()
                if asked is None:
                    pipe.send(buffer.writer_handle())
                    continue
                with debug_state(buffer).state.lock:
                    debug_state(buffer).state.own()
                    heads = table.storage.heads()
                    rows = table.find(np.sort(heads[heads[:, 0] > 0, 0] - 1))
                    x = table.storage.cell(0)[rows[rows >= 0]]
                pipe.send(x[x >= asked].tolist())


def _strike_writer(
    storm: Storm, writer: Any, first: int, times: int, longest_s: float, numbers: Any
) -> int:
    """Strike `append` and `flush`; how many steps the writer has added. ``numbers`` gives those
    that are in the table.
    """

    def write() -> None:
        for _ in range(AT_ONCE):
            writer.append(x=np.int64(first + writer.steps))
        writer.flush(LONGEST_S)

    write()
    for _ in range(times):
        before = writer.steps
        ended, _ = storm.strike(write, longest_s)
        added = writer.steps - before
        assert added == AT_ONCE if ended else 0 <= added <= AT_ONCE, f"{added} of {AT_ONCE} steps"
        writer.flush(LONGEST_S)
        found = numbers()
        assert found == writer.steps, (
            f"the writer has added {writer.steps} steps, and {found} are in"
        )
    return int(writer.steps)


def strike_feeder(storm: Storm, client: Any, times: int) -> None:
    """What the writer says is in, is in; what is in is delivered once, in order, and counted as
    drawn.
    """
    from async_loader import AsyncDataLoader

    table, chance = client.table("queue"), storm.chance
    before = client.status()["tables"]["queue"]
    first, taken = _APART * (1 + storm.seen["writers of a feeder"]), []

    def here() -> dict[str, int]:
        now = client.status()["tables"]["queue"]
        return {
            name: now[name] - before[name]
            for name in ("inserted", "sampled", "duplicates", "redelivered")
        }

    with table.writer(
        batch_rows=chance.choice((1, 7, 256)), linger_ms=chance.choice((0.0, 5.0))
    ) as writer:
        _strike_writer(storm, writer, first, times // 2, 1e-3, lambda: here()["inserted"])
        while writer.steps % _BATCH:
            writer.append(x=np.int64(first + writer.steps))
        writer.flush(LONGEST_S)
        source, steps = table.source(), writer.steps
        with AsyncDataLoader(source, _BATCH, timeout_s=LONGEST_S) as loader:

            def one() -> None:
                for batch in loader:
                    taken.append(batch)
                    return

            for _ in range(min(times - times // 2, steps // _BATCH)):
                storm.strike(one)
            while len(taken) < steps // _BATCH:
                one()
        source.close()
    numbers = [n for batch in taken for n in batch["x"].tolist()]
    assert numbers == list(range(first, first + steps)), f"lost, doubled or out of order: {numbers}"
    assert here() == {"inserted": steps, "sampled": steps, "duplicates": 0, "redelivered": 0}, (
        here()
    )
    storm.seen["writers of a feeder"] += 1
    storm.seen["steps over a feeder"] += steps


def strike_process(storm: Storm, owner: Any, times: int) -> None:
    """What the writer says is in, is in the table of another process, once and in order."""
    first = _APART * (1 + storm.seen["writers of a process"])

    def stored() -> list[int]:
        owner.send(first)
        assert owner.poll(LONGEST_S)
        return list(owner.recv())

    owner.send(None)
    assert owner.poll(LONGEST_S)
    with owner.recv().open() as writer:
        steps = _strike_writer(storm, writer, first, times, 5e-4, lambda: len(stored()))
        assert stored() == list(range(first, first + steps)), "lost, doubled or out of order"
    storm.seen["writers of a process"] += 1
    storm.seen["steps to a process"] += steps
