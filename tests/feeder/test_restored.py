"""A feeder whose tables were loaded from a checkpoint: environments began anew, or lost what was
saved too late.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer, Transitions, Uniform
from async_loader.feeder import connect
from async_loader.feeder.server import Server
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import Plane
from async_loader.lifecycle import Deadline, Patience

SCHEMA = {
    "obs": Field((), np.int64, next="next_obs"),
    "reward": np.float32,
    "done": np.bool_,
    "terminated": np.bool_,
}
STREAMS = (0, 3)
PATIENCE_S = 60.0


@contextlib.contextmanager
def serving(folder: Path, buffer: ReplayBuffer) -> Iterator[str]:
    """A feeder in a thread, always at the same address."""
    base = f"ipc://{folder}/f"
    endpoints = {Plane.CONTROL: base, Plane.INSERT: f"{base}.insert", Plane.PULL: f"{base}.pull"}
    server = Server({"t": buffer}, endpoints, settings=ServiceSettings(drain_s=0.0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield base
    finally:
        server.stop()
        server.stop()
        thread.join(PATIENCE_S)
        server.__dict__.clear()  # pytest keeps it until after it was looked at what is left


def made() -> ReplayBuffer:
    return ReplayBuffer(1000, SCHEMA, sampler=Uniform(replacement=False), seed=0)


def write(writer: Any, first: int, last: int, **ends: Any) -> None:
    for stream in STREAMS:
        for t in range(first, last):
            writer.append(
                obs=1000 * stream + t,
                reward=0.0,
                done=False,
                terminated=False,
                stream=stream,
                **ends,
            )
    writer.flush(PATIENCE_S)


def transitions(client: Any, count: int) -> dict[int, int]:
    """What follows each observation, as a learner of the feeder has it."""
    source = client.table("t").source(view=Transitions(n_steps=1))
    batch = source.plan(count, Patience(deadline=Deadline(PATIENCE_S))).batch
    found = dict(zip(batch["obs"].tolist(), batch["next_obs"].tolist(), strict=True))
    source.close()
    return found


@pytest.mark.filterwarnings("ignore:the feeder lost")
@pytest.mark.parametrize("same_writer", [True, False])
def test_no_step_of_before_a_checkpoint_is_followed_by_one_of_after_it_was_loaded(
    tmp_path, same_writer
):
    with contextlib.ExitStack() as stack:
        with serving(tmp_path, buffer := made()) as address:
            client = stack.enter_context(connect(address))
            writer = stack.enter_context(client.table("t").writer())
            write(writer, 0, 5)
            buffer.save(tmp_path / "saved")
            write(writer, 5, 8)  # are lost with this feeder
        with serving(tmp_path, ReplayBuffer.from_checkpoint(tmp_path / "saved")) as address:
            if not same_writer:
                writer = stack.enter_context(client.table("t").writer())
            write(writer, 100, 105)
            found = transitions(client, 2 * 2 * 4)
            stack.close()
    assert found == {
        1000 * s + t: 1000 * s + t + 1 for s in STREAMS for t in (*range(4), *range(100, 104))
    }
