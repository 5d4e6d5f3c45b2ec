"""What a storm of Ctrl-C strikes beside loaders: writers over an embedded feeder."""

from __future__ import annotations

import contextlib
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
def feeder() -> Iterator[Any]:
    """A client of an embedded feeder with a queue."""
    from async_loader.feeder import connect

    queue = {"capacity": 20_000, "sampler": "fifo", "max_times_sampled": 1}
    with connect("embedded", tables={"queue": queue}, timeout_s=LONGEST_S) as client:
        yield client


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
