"""A scripted feeder for each test, and clients that end with it."""

from __future__ import annotations

import pytest
from client_rig import FakeFeeder

from async_loader.feeder import connect


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
    client.close(5)
