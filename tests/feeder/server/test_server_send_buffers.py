"""What batches over a socket are sent from: many in a message, and memory that is used again
only when it may be.
"""

from __future__ import annotations

import numpy as np
import pytest
from server_rig import SCHEMA, Rig

from async_loader import ReplayBuffer, Schema
from async_loader.feeder.server.send_buffers import (
    LENT_FROM,
)
from async_loader.feeder.wire import Plane
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo

WIDE = Schema.of({"x": np.int64, "pixels": ((LENT_FROM,), np.uint8)})


def queue(schema=SCHEMA):
    return ReplayBuffer(1000, schema, sampler=Fifo(), limiter=Queue(1000), max_times_sampled=1)


def fill_one_by_one(peer, count):
    """Rows of WIDE, a message each."""
    peer.open_writer(schema=WIDE)
    for i in range(count):
        peer.insert(i, [i], schema=WIDE)
        peer.receive(Plane.INSERT)


@pytest.mark.parametrize("together", [1, 2, 8])
@pytest.mark.parametrize("received", [0, 3])
def test_large_batches_are_what_was_drawn_whatever_a_reader_says_it_received(received, together):
    with Rig({"t": queue(WIDE)}) as rig:
        peer = rig.peer()
        fill_one_by_one(peer, 6)
        reader = peer.open_reader(batch_size=1, together=together)

        def values(count):
            found = []
            while len(found) < count:
                message = peer.receive(Plane.PULL)
                assert len(message.body.frames) <= together
                found += peer.values(message, reader)
            return found

        peer.pull(3)
        first = values(3)
        peer.pull(6, received=received)
        assert first + values(3) == list(range(6))
