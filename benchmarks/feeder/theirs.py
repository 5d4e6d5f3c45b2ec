"""Reverb's server, writers and learners, by its own recipes. Measures nothing.

Imported in Reverb's environment and in ours; what needs Reverb imports it itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

from benchmarks.feeder.processes import Child, child
from benchmarks.feeder.workloads import Work
from benchmarks.replay.workloads import BATCH, STACK

PRELOAD = ("reverb", "tensorflow")
TABLE = "replay"
STEPS = 100
PENDING = 50
"""An actor waits after every STEPS until at most this number is unconfirmed:
the best of several pairs that were tried.
"""


def _signature(work: Work) -> dict[str, Any]:
    import tensorflow as tf

    return {
        name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in work.stored.fields.items()
    }


@contextmanager
def serving(work: Work) -> Iterator[tuple[Child, str]]:
    """Run a server process and give its address."""
    with child(PRELOAD, _serve, work) as server:
        yield server, server.hear()


def _serve(pipe: Any, work: Work) -> None:
    import reverb

    table = reverb.Table(
        TABLE,
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        work.rows,
        reverb.rate_limiters.MinSize(1),
        signature=_signature(work),
    )
    server = reverb.Server([table])
    pipe.send(f"localhost:{server.port}")
    pipe.poll(None)
    server.stop()


@contextmanager
def writing(address: str, work: Work) -> Iterator[tuple[Callable[[], int], Callable[[], None]]]:
    """Give an actor's ``write()`` and ``flush()``."""
    import reverb

    keep = STACK + 1 if work.linked else 1
    with reverb.Client(address).trajectory_writer(num_keep_alive_refs=keep) as writer:
        items = _linked(writer, work) if work.linked else _whole(writer, work)

        def write() -> int:
            for _ in range(STEPS):
                next(items)
            writer.flush(PENDING)
            return STEPS

        yield write, writer.flush


def _whole(writer: Any, work: Work) -> Iterator[None]:
    """Write each step as an item of its own."""
    for step in cycle(work.steps()):
        writer.append(step)
        writer.create_item(TABLE, 1.0, {name: writer.history[name][-1] for name in step})
        yield


def _linked(writer: Any, work: Work) -> Iterator[None]:
    """Each frame travels once: an item is two windows on the newest five of its episode,
    so the first four make none.
    """
    while True:
        for number, step in enumerate(work.steps()):
            writer.append(step)
            if number < STACK:
                continue
            seen = writer.history
            rest = {name: seen[name][-2] for name in step if name != "obs"}
            item = {**rest, "obs": seen["obs"][-STACK - 1 : -1], "next_obs": seen["obs"][-STACK:]}
            writer.create_item(TABLE, 1.0, item)
            yield
        writer.end_episode()


def fill(address: str, work: Work) -> None:
    """Fill the table by a writer whose process has ended when this returns."""
    with child(PRELOAD, _fill, address, work) as writer:
        writer.hear()


def _fill(pipe: Any, address: str, work: Work) -> None:
    with writing(address, work) as (write, flush):
        done = 0
        while done < work.rows:
            done += write()
        flush()
    pipe.send("filled")


def taking(address: str, workers: int) -> Callable[[], Any]:
    """Return a function for a learner's next batch."""
    import reverb

    dataset = reverb.TrajectoryDataset.from_table_signature(
        address, TABLE, max_in_flight_samples_per_worker=2 * BATCH, num_workers_per_iterator=workers
    )
    batches = dataset.map(lambda sample: sample.data).batch(BATCH).prefetch(4)
    return batches.as_numpy_iterator().__next__
