"""From settings to bound sockets: no peer can reach a server whose lock was not tried."""

from __future__ import annotations

import pytest
import zmq

from async_loader.errors import AddressInUse, ConfigError, InsecureBindError
from async_loader.feeder.curve_keys import apply_client_keys
from async_loader.feeder.server.sockets import ServerSockets
from async_loader.feeder.serving import lock_address
from async_loader.feeder.settings import SecuritySettings, ServerSettings
from async_loader.feeder.wire import Limits, Plane
from async_loader.lifecycle import Deadline

PATIENCE_S = 20.0


def settings(bind, keys=None, **security):
    return ServerSettings(
        bind=bind,
        tables={"replay": {"capacity": 10}},
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
    lock, authenticator = lock_address(settings("tcp://127.0.0.1:*", folder))
    with context.socket(zmq.DEALER) as client, lock:
        ports = ServerSockets({}, Limits(), lock.bind, authenticator.mechanism)
        apply_client_keys(client, folder / "alice.secret")
        assert heard(ports, client) == "alice"
        ports.close()


def test_without_keys_a_client_has_no_name(context, tmp_path):
    lock, authenticator = lock_address(settings(f"ipc://{tmp_path}/x"))
    assert authenticator is None
    with context.socket(zmq.DEALER) as client, lock:
        ports = ServerSockets({}, Limits(), lock.bind)
        assert ports.endpoints[Plane.CONTROL] == f"ipc://{tmp_path}/x"
        assert heard(ports, client) is None
        ports.close()
    lock.close()
    assert list(tmp_path.iterdir()) == []


def test_beyond_this_machine_it_takes_keys_or_leave(folder):
    with pytest.raises(InsecureBindError):
        lock_address(settings("tcp://*:*"))
    lock_address(settings("tcp://*:*", allow_insecure=True))[0].close()
    with lock_address(settings("tcp://*:*", folder))[0] as lock:
        assert not lock.insecure


def test_a_later_failure_undoes_the_earlier_steps(folder, tmp_path):
    with lock_address(settings(f"ipc://{tmp_path}/x"))[0]:
        with pytest.raises(AddressInUse):
            lock_address(settings(f"ipc://{tmp_path}/x", folder))
    lock_address(settings(f"ipc://{tmp_path}/x", folder))[0].close()
    with pytest.raises(ConfigError, match=r"server\.secret cannot be read"):
        lock_address(settings(f"ipc://{tmp_path}/x", tmp_path / "none"))
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}
