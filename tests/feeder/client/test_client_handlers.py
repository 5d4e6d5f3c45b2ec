"""Calls of signal handlers, at every point of a call of the same client: they work, or say at once
that they cannot.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from client_rig import FakeFeeder, step
from storm_rig import count_points, ends_within, interrupt, some_points

from async_loader.errors import AsyncLoaderError, Closed, WouldDeadlock
from async_loader.feeder import connect
from async_loader.feeder.wire import Type
from async_loader.lifecycle import Deadline, Patience

LIMIT_S = 10.0
"""Of one call with its handler; what does not wait for ever takes milliseconds."""
MOST = 10
CALLS = {
    "append": lambda it: it.writer.append(step(1)),
    "append many": lambda it: [it.writer.append(step(i)) for i in range(5)],
    "extend": lambda it: it.writer.extend(obs=np.zeros((9, 2), np.float32), reward=np.zeros(9)),
    "flush": lambda it: it.writer.flush(),
    "plan": lambda it: it.source.plan(4, Patience(deadline=Deadline(math.inf))),
    "status": lambda it: it.client.status(),
    "writer": lambda it: it.client.table("replay").writer(),
}
HANDLERS = {
    "close the client": lambda it: it.client.close(math.inf),
    "close the writer": lambda it: it.writer.close(math.inf),
    "close the source": lambda it: it.source.close(math.inf),
    "append": lambda it: it.writer.append(step(7)),
    "flush": lambda it: it.writer.flush(math.inf),
    "plan": lambda it: it.source.plan(4, Patience(deadline=Deadline(math.inf))),
    "status": lambda it: it.client.status(timeout_s=math.inf),
    "stats": lambda it: (it.client.stats(), it.writer.steps),
}


class Objects:
    """A client, with a writer that has written and a source that has planned."""

    def __init__(self, address: str) -> None:
        self.client = connect(address, timeout_s=math.inf)
        self.writer = self.client.table("replay").writer(batch_rows=4)
        self.writer.append(step(0))
        self.source = self.client.table("replay").source(prefetch=0, transport="tcp")
        self.source.plan(4, Patience(deadline=Deadline(LIMIT_S)))

    def close(self) -> None:
        try:
            self.client.close(LIMIT_S)
        except Closed:  # the handler has closed it
            assert self.client.closed


@pytest.fixture
def feeder(address):
    # No heartbeat within a test: it would wake up the connection's thread where a call failed to.
    with FakeFeeder(address, heartbeat_s=300.0, silence_s=900.0) as feeder:
        feeder.hooks[Type.PULL] = draw
        yield feeder


def draw(feeder, plane, route, message) -> bool:
    """Send all batches that a reader has asked for."""
    feeder.on_pull(plane, route, message)
    for sequence in range(message.body.received, message.body.granted):
        feeder.batch(message.number, sequence)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_calls_the_client_inside_a_call_of_it_works_or_fails_at_once(
    feeder, call, handler
):
    made = Objects(feeder.address)
    CALLS[call](made)  # what is imported is so from here on
    total = count_points(lambda: CALLS[call](made))
    made.close()
    refused = 0
    points = some_points(total, MOST, seed=1)
    for at in points:
        objects = Objects(feeder.address)
        failed: list[AsyncLoaderError] = []

        def handle(objects=objects, failed=failed) -> None:
            try:
                HANDLERS[handler](objects)
            except AsyncLoaderError as refusal:
                failed.append(refusal)

        with ends_within(LIMIT_S):
            struck = interrupt(lambda objects=objects: CALLS[call](objects), at, handle)
        for error in failed:
            assert isinstance(error, WouldDeadlock), struck
            assert "make the call after it" in str(error)
        refused += bool(failed)
        if handler.startswith("close") and not failed:
            assert struck.raised is None or isinstance(struck.raised, Closed), struck
        else:
            assert struck.raised is None, struck
        with ends_within(2 * LIMIT_S):
            objects.close()
    assert refused < len(points) or handler == call  # which may hold its lock nearly always
