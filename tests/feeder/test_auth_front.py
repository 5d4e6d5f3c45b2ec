"""From settings to bound sockets: nobody can reach a server whose lock was not tried."""

from __future__ import annotations

import pytest
import zmq

from async_loader.errors import AddressInUse, Broken, ConfigError, InsecureBindError
from async_loader.feeder.curve_auth import CurveAuthenticator, apply_client_keys
from async_loader.feeder.front import Front
from async_loader.feeder.server.sockets import Plane, ServerSockets
from async_loader.feeder.settings import SecuritySettings, ServerSettings, TableSettings
from async_loader.feeder.wire import Limits
from async_loader.lifecycle import Deadline

PATIENCE_S = 20.0


def settings(bind, keys=None, **security):
    return ServerSettings(
        bind=bind,
        tables={"replay": TableSettings(capacity=10)},
        security=SecuritySettings(keys=None if keys is None else str(keys), **security),
    )


def heard(ports, client):
    """The user of a client's first message."""
    client.linger = 0
    client.connect(ports.endpoints[Plane.CONTROL])
    client.send(b"hello")
    deadline = Deadline(PATIENCE_S)
    while not deadline.expired:
        ports.wait(0.1)
        for route, frames in ports.receive(Plane.CONTROL, 1):
            assert frames == [b"hello"]
            return route.user
    raise AssertionError("no message came")


def test_with_keys_a_client_is_known_by_its_name(context, folder):
    with context.socket(zmq.DEALER) as client, Front(settings("tcp://127.0.0.1:*", folder)) as front:
        ports = ServerSockets({}, Limits(), front.bind, front.authenticator.mechanism)
        apply_client_keys(client, folder / "alice.secret")
        assert heard(ports, client) == "alice"
        ports.close()


def test_without_keys_a_client_has_no_name(context, tmp_path):
    with context.socket(zmq.DEALER) as client, Front(settings(f"ipc://{tmp_path}/x")) as front:
        ports = ServerSockets({}, Limits(), front.bind)
        assert ports.endpoints[Plane.CONTROL] == f"ipc://{tmp_path}/x"
        assert front.authenticator is None
        assert heard(ports, client) is None
        ports.close()
    front.close()
    assert list(tmp_path.iterdir()) == []


def test_beyond_this_machine_it_takes_keys_or_leave(folder):
    with pytest.raises(InsecureBindError):
        Front(settings("tcp://*:*"))
    Front(settings("tcp://*:*", allow_insecure=True)).close()
    with Front(settings("tcp://*:*", folder)) as front:
        assert not front.claim.insecure


@pytest.mark.parametrize("bind", ["ipc://{}/x", "tcp://127.0.0.1:*"])
def test_a_lock_that_does_not_hold_is_found_before_anything_is_claimed(folder, tmp_path, monkeypatch, bind):
    monkeypatch.setattr(CurveAuthenticator, "_admit", lambda self, public: "anyone")
    with pytest.raises(Broken, match="got in"):
        Front(settings(bind.format(tmp_path), folder))
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}
    monkeypatch.undo()
    Front(settings("tcp://127.0.0.1:*", folder)).close()


def test_what_fails_later_undoes_what_came_before(folder, tmp_path):
    with Front(settings(f"ipc://{tmp_path}/x")):
        with pytest.raises(AddressInUse):
            Front(settings(f"ipc://{tmp_path}/x", folder))
    Front(settings(f"ipc://{tmp_path}/x", folder)).close()
    with pytest.raises(ConfigError, match=r"server\.secret cannot be read"):
        Front(settings(f"ipc://{tmp_path}/x", tmp_path / "none"))
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}
