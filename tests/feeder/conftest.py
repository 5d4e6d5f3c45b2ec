"""Keys for a server and two clients, and a context that ends with its test."""

from __future__ import annotations

import pytest
import zmq

from async_loader.feeder.curve_keys import make_keys


@pytest.fixture
def context():
    with zmq.Context() as one:
        yield one
        one.destroy(0)


@pytest.fixture
def folder(tmp_path):
    make_keys(tmp_path / "keys", ["alice", "bob"])
    return tmp_path / "keys"
