"""A scripted feeder for each test, and clients that end with it."""

from __future__ import annotations

import numpy as np
import pytest
import zmq
from client_rig import FakeFeeder

from async_loader.feeder import connect


@pytest.fixture(scope="session", autouse=True)
def _begin_to_collect():
    """The first message that is sent without a copy (by a feeder in this process) makes pyzmq
    start a thread, which stays.
    """
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as two:
        one.bind("inproc://collect")
        two.connect("inproc://collect")
        one.send(np.zeros(1 << 20, np.uint8), copy=False)
        two.recv()


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/feeder"


@pytest.fixture
def feeder(address):
    with FakeFeeder(address) as feeder:
        yield feeder


@pytest.fixture
def client(feeder):
    client = connect(feeder.address, timeout_s=30)
    yield client
    client.close(30)
