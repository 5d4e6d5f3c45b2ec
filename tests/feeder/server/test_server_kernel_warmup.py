"""A server that has not loaded its kernels yet is there all the same, and forgets nothing that
it is asked meanwhile.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
import zmq
from server_rig import SCHEMA, Peer

from async_loader import ReplayBuffer
from async_loader.feeder.server import Server, deferred
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import (
    Ack,
    Hello,
    Latest,
    OpenWriter,
    Ping,
    Plane,
    Pong,
    Publish,
    Published,
    TensorSpec,
    Welcome,
    Writer,
    spec_of,
)
from async_loader.feeder.wire.codes import dtype_code


@pytest.fixture
def kernels(monkeypatch):
    """Loaded when this is set."""
    loaded = threading.Event()
    monkeypatch.setattr(deferred, "is_warm", lambda: False)
    monkeypatch.setattr(deferred, "is_kept", lambda: True)
    monkeypatch.setattr(deferred, "warm", lambda: loaded.wait(30))
    yield loaded
    loaded.set()


@pytest.fixture
def served(kernels):
    server = Server(
        {"t": ReplayBuffer(100, SCHEMA, seed=0)},
        dict.fromkeys(Plane, "tcp://127.0.0.1:0"),
        settings=ServiceSettings(drain_s=1.0),
    )
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    yield server
    kernels.set()
    server.stop()
    thread.join(60)
    assert not thread.is_alive()
    server.__dict__.clear()


def test_it_answers_at_once_and_does_the_rest_when_it_can(kernels, served):
    with zmq.Context() as context, Peer(context, served.endpoints) as peer:
        hello = Hello(client=peer.client, pid=1, host="h")
        welcome = peer.ask(Plane.CONTROL, hello, session=0)
        assert isinstance(welcome.body, Welcome)
        peer.session = welcome.session
        peer.send(
            Plane.CONTROL,
            OpenWriter(table="t", producer=b"p" * 16, epoch=0, schema=spec_of(SCHEMA)),
            1,
        )
        peer.send(
            Plane.CONTROL, OpenWriter(table="none", producer=b"p" * 16, epoch=0, schema=None), 2
        )
        peer.insert(0, range(5))
        assert isinstance(peer.ask(Plane.CONTROL, Ping()).body, Pong), "before the writer"
        assert peer.status()["tables"]["t"]["rows_in"] == 0
        kernels.set()
        assert isinstance(peer.receive(Plane.CONTROL).body, Writer)
        assert "no table 'none'" in peer.receive(Plane.CONTROL).body.text
        ack = peer.receive(Plane.INSERT).body
        assert (type(ack), ack.applied) == (Ack, 1)
    assert len(np.atleast_1d(served._server_state.tables["t"].buffer.sample(3)["x"])) == 3


def greeted(peer):
    welcome = peer.ask(Plane.CONTROL, Hello(client=peer.client, pid=1, host="h"), session=0)
    peer.session = welcome.session
    return peer


def test_weights_are_published_meanwhile_and_waiting_clients_are_told_in_time(kernels, served):
    with (
        zmq.Context() as context,
        Peer(context, served.endpoints) as one,
        Peer(context, served.endpoints) as other,
    ):
        greeted(one), greeted(other)
        in_vain = one.ask(Plane.CONTROL, Latest(name="pi", most=100, timeout_s=0.01))
        assert in_vain.body.version is None
        one.send(Plane.CONTROL, Latest(name="pi", most=100, timeout_s=60.0))
        specs = (TensorSpec("w", dtype_code(np.dtype("u1")), (4,)),)
        done = other.ask(
            Plane.CONTROL, Publish(name="pi", version=7, total_bytes=4, specs=specs), data=b"1234"
        )
        assert isinstance(done.body, Published), done.body
        assert one.receive(Plane.CONTROL).body.version == 7
    assert not kernels.is_set()


def test_kernels_that_cannot_be_loaded_end_it(monkeypatch):
    def broken() -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(deferred, "is_warm", lambda: False)
    monkeypatch.setattr(deferred, "is_kept", lambda: True)
    monkeypatch.setattr(deferred, "warm", broken)
    server = Server({"t": ReplayBuffer(100, SCHEMA)}, dict.fromkeys(Plane, "tcp://127.0.0.1:0"))
    with pytest.raises(OSError, match="no compiler"):
        server.run()
