"""A server that has not loaded its kernels yet is there all the same, and forgets nothing that it is asked meanwhile."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import zmq
from server_rig import SCHEMA, Peer

from async_loader import ReplayBuffer
from async_loader.feeder.server import Server, warming
from async_loader.feeder.server.ports import Plane
from async_loader.feeder.wire import Ack, Hello, OpenWriter, Ping, Pong, Status, Welcome, Writer, spec_of


@pytest.fixture
def kernels(monkeypatch):
    """Loaded when this is set."""
    loaded = threading.Event()
    monkeypatch.setattr(warming, "is_warm", lambda: False)
    monkeypatch.setattr(warming, "is_kept", lambda: True)
    monkeypatch.setattr(warming, "warm", lambda: loaded.wait(30))
    yield loaded
    loaded.set()


@pytest.fixture
def served(kernels):
    server = Server({"t": ReplayBuffer(100, SCHEMA, seed=0)}, dict.fromkeys(Plane, "tcp://127.0.0.1:0"), drain_s=1.0)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    kernels.set()
    server.stop()
    thread.join(60)
    assert not thread.is_alive()
    server.__dict__.clear()


def test_it_answers_at_once_and_does_the_rest_when_it_can(kernels, served):
    with zmq.Context() as context, Peer(context, served.endpoints) as peer:
        hello = Hello(client=peer.client, pid=1, host="h", oldest=1, newest=1)
        welcome = peer.ask(Plane.CONTROL, hello, session=0)
        assert isinstance(welcome.body, Welcome)
        peer.session = welcome.session
        peer.send(Plane.CONTROL, OpenWriter(table="t", producer=b"p" * 16, epoch=0, schema=spec_of(SCHEMA)), 1)
        peer.send(Plane.CONTROL, OpenWriter(table="none", producer=b"p" * 16, epoch=0, schema=None), 2)
        peer.insert(0, range(5))
        assert isinstance(peer.ask(Plane.CONTROL, Ping()).body, Pong), "before the writer"
        assert peer.ask(Plane.CONTROL, Status()).body.status["tables"]["t"]["rows_in"] == 0
        kernels.set()
        assert isinstance(peer.receive(Plane.CONTROL).body, Writer)
        assert "no table 'none'" in peer.receive(Plane.CONTROL).body.text
        ack = peer.receive(Plane.INSERT).body
        assert (type(ack), ack.applied) == (Ack, 1)
    assert len(np.atleast_1d(served._hall.tables["t"].buffer.sample(3)["x"])) == 3


def test_kernels_that_cannot_be_loaded_end_it(monkeypatch):
    def broken() -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(warming, "is_warm", lambda: False)
    monkeypatch.setattr(warming, "is_kept", lambda: True)
    monkeypatch.setattr(warming, "warm", broken)
    server = Server({"t": ReplayBuffer(100, SCHEMA)}, dict.fromkeys(Plane, "tcp://127.0.0.1:0"))
    with pytest.raises(OSError, match="no compiler"):
        server.run()
