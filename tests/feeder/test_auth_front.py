"""From settings to bound sockets: nobody can reach a server whose lock was not tried."""

from __future__ import annotations

import pytest
import zmq

from async_loader.errors import AddressInUse, Broken, ConfigError, InsecureBindError
from async_loader.feeder.auth import Gatekeeper, apply_client_keys, user_of
from async_loader.feeder.front import Front
from async_loader.feeder.settings import SecuritySettings, ServerSettings, TableSettings

PATIENCE_MS = 20_000


def settings(bind, keys=None, **security):
    return ServerSettings(
        bind=bind,
        tables={"replay": TableSettings(capacity=10)},
        security=SecuritySettings(keys=None if keys is None else str(keys), **security),
    )


def heard(front, server, client):
    """What a client's first message is heard as."""
    client.linger = 0
    client.connect(server.last_endpoint)
    client.send(b"hello")
    poller = zmq.Poller()
    poller.register(server, zmq.POLLIN)
    if front.gatekeeper is not None:
        poller.register(front.gatekeeper.poll_socket, zmq.POLLIN)
    while server not in (ready := dict(poller.poll(PATIENCE_MS))):
        assert ready
        front.gatekeeper.handle()
    return user_of(server.recv_multipart(copy=False)[-1])


def test_with_keys_a_client_is_known_by_its_name(context, folder):
    with context.socket(zmq.ROUTER) as server, context.socket(zmq.DEALER) as client:
        with Front(context, settings("tcp://127.0.0.1:*", folder)) as front:
            front.bind(server, "pull")
            apply_client_keys(client, folder / "alice.secret")
            assert heard(front, server, client) == "alice"
            server.close()


def test_without_keys_nobody_has_a_name(context, tmp_path):
    with context.socket(zmq.ROUTER) as server, context.socket(zmq.DEALER) as client:
        with Front(context, settings(f"ipc://{tmp_path}/x")) as front:
            assert front.bind(server, "control") == f"ipc://{tmp_path}/x"
            assert front.gatekeeper is None
            assert heard(front, server, client) is None
            server.close()
        front.close()
    assert list(tmp_path.iterdir()) == []


def test_beyond_this_machine_it_takes_keys_or_leave(context, folder):
    with pytest.raises(InsecureBindError):
        Front(context, settings("tcp://*:*"))
    Front(context, settings("tcp://*:*", allow_insecure=True)).close()
    with Front(context, settings("tcp://*:*", folder)) as front:
        assert not front.claim.insecure


@pytest.mark.parametrize("bind", ["ipc://{}/x", "tcp://127.0.0.1:*"])
def test_a_lock_that_does_not_hold_is_found_before_anything_is_claimed(context, folder, tmp_path, monkeypatch, bind):
    monkeypatch.setattr(Gatekeeper, "_name", lambda self, request: "anyone")
    with pytest.raises(Broken, match="got in"):
        Front(context, settings(bind.format(tmp_path), folder))
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}
    monkeypatch.undo()
    Front(context, settings("tcp://127.0.0.1:*", folder)).close()  # the context has no authenticator left


def test_what_fails_later_undoes_what_came_before(context, folder, tmp_path):
    with Front(context, settings(f"ipc://{tmp_path}/x")):
        with pytest.raises(AddressInUse):
            Front(context, settings(f"ipc://{tmp_path}/x", folder))
    Front(context, settings(f"ipc://{tmp_path}/x", folder)).close()
    with pytest.raises(ConfigError, match=r"server\.secret cannot be read"):
        Front(context, settings(f"ipc://{tmp_path}/x", tmp_path / "none"))
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}
