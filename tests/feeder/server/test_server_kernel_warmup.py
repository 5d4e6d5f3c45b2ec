"""A server loads its kernels before its first round; who has connected by then is served after."""

from __future__ import annotations

import threading

import pytest
import zmq
from server_rig import SCHEMA, Peer

from async_loader import ReplayBuffer
from async_loader.feeder.server import Server, event_loop
from async_loader.feeder.wire import Plane, Welcome


def test_a_client_that_comes_while_kernels_are_loaded_is_answered_afterwards(monkeypatch):
    loaded = threading.Event()
    monkeypatch.setattr(event_loop, "is_warm", lambda: False)
    monkeypatch.setattr(event_loop, "warm", lambda: loaded.wait(30))
    server = Server({"t": ReplayBuffer(100, SCHEMA)}, dict.fromkeys(Plane, "tcp://127.0.0.1:0"))
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        with zmq.Context() as context, Peer(context, server.endpoints) as peer:
            threading.Timer(0.1, loaded.set).start()
            assert isinstance(peer.hello().body, Welcome)
    finally:
        loaded.set()
        server.stop()
        thread.join(60)
    assert not thread.is_alive()


def test_a_constructor_that_is_interrupted_while_it_compiles_leaves_nothing_open(
    tmp_path, monkeypatch
):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(event_loop, "is_kept", lambda: False)
    monkeypatch.setattr(event_loop, "warm", interrupted)
    endpoints = {plane: f"ipc://{tmp_path}/{plane.value}" for plane in Plane}
    with pytest.raises(KeyboardInterrupt):
        Server({"t": ReplayBuffer(100, SCHEMA)}, endpoints, memory=str(tmp_path / "memory"))
    assert list(tmp_path.iterdir()) == []


def test_kernels_that_cannot_be_loaded_end_it(monkeypatch):
    def broken() -> None:
        raise OSError("no compiler")

    monkeypatch.setattr(event_loop, "is_warm", lambda: False)
    monkeypatch.setattr(event_loop, "warm", broken)
    server = Server({"t": ReplayBuffer(100, SCHEMA)}, dict.fromkeys(Plane, "tcp://127.0.0.1:0"))
    with pytest.raises(OSError, match="no compiler"):
        server.run()
