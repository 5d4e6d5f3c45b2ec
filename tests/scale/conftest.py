"""A thread of pyzmq that is started once, before what is left is counted."""

from __future__ import annotations

import numpy as np
import pytest
import zmq


@pytest.fixture(scope="session", autouse=True)
def _begin_to_collect():
    """See tests/feeder/client/conftest.py."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://collect")
        two.connect("inproc://collect")
        one.send(np.zeros(1 << 20, np.uint8), copy=False)
        two.recv()
