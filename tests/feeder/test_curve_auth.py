"""Who gets in: known keys, and no others; also when a lock was undone."""

from __future__ import annotations

import contextlib
import os
import stat

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from async_loader.errors import ConfigError
from async_loader.feeder.curve_keys import (
    ClientKeys,
    ServerKeys,
    apply_client_keys,
    curve_of,
    load_client_keys,
    load_server_keys,
    make_keys,
)
from async_loader.feeder.server.sockets import ServerSockets
from async_loader.feeder.wire import Limits, Plane
from async_loader.lifecycle import Deadline

IN, REFUSED = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_HANDSHAKE_FAILED_AUTH
OUT = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)
PATIENCE_S = 20.0


@pytest.fixture
def mechanism(folder):
    return curve_of(load_server_keys(folder))


@pytest.fixture(params=["tcp", "ipc"])
def where(request, tmp_path):
    return {
        plane: "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/{plane.value}"
        for plane in Plane
    }


@pytest.fixture
def ports(where, mechanism):
    with contextlib.closing(ServerSockets(where, Limits(), mechanism=mechanism)) as one:
        yield one


def stranger_keys(server_public: str) -> ClientKeys:
    public, secret = zmq.curve_keypair()
    return ClientKeys(
        name="alice", public=public.decode(), secret=secret.decode(), server=server_public
    )


def knock(context, ports, keys) -> int:
    """The first thing that happens to a connection with these keys; no message of it may come."""
    with context.socket(zmq.DEALER) as client:
        client.linger, client.reconnect_ivl = 0, -1
        apply_client_keys(client, keys)
        monitor = client.get_monitor_socket(IN | REFUSED | OUT)
        client.connect(ports.endpoints[Plane.CONTROL])
        with contextlib.suppress(zmq.Again):  # it may be out again
            client.send(b"let me in", zmq.NOBLOCK)
        deadline = Deadline(PATIENCE_S)
        try:
            while not deadline.expired:
                ports.wait(0.01)
                if monitor.poll(0):
                    return int(parse_monitor_message(monitor.recv_multipart())["event"])
            return -1
        finally:
            client.disable_monitor()
            monitor.close()


def heard(ports) -> list:
    return [(route.user, frames) for route, frames in ports.receive(Plane.CONTROL, 100)]


# -- connections -----------------------------------------------------------------------------------


def test_a_client_with_anothers_public_key_is_refused(context, ports, folder):
    alice = load_client_keys(folder / "alice.secret")
    stolen = ClientKeys(
        name="alice",
        public=alice.public,
        secret=stranger_keys(alice.server).secret,
        server=alice.server,
    )
    assert knock(context, ports, stolen) not in (IN, -1)
    assert heard(ports) == []


# -- files -----------------------------------------------------------------------------------------


def test_keys_are_this_users_alone(folder):
    before = os.umask(0)
    try:
        make_keys(folder, ["carol"])
    finally:
        os.umask(before)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        "server.secret",
        "alice.secret",
        "bob.secret",
        "carol.secret",
        "alice.key",
        "bob.key",
        "carol.key",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "clients")} == {0o700}
    assert sorted(load_server_keys(folder).clients.values()) == ["alice", "bob", "carol"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_secret_that_others_can_get_at_is_refused(folder, mode):
    for path in (
        folder / "server.secret",
        folder / "alice.secret",
        folder / "clients" / "alice.key",
    ):
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"mode {mode:o}, others can get at it: chmod 600"):
            load_client_keys(path) if path.name == "alice.secret" else load_server_keys(folder)
        path.chmod(0o600)
    load_server_keys(folder)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[" * 2000, '{"name": "alice"}', "\0", "x" * 5000, '{"public": "a", "secret": "b"}'],
)
def test_what_is_no_key_file_is_refused(folder, text):
    for path in (folder / "server.secret", folder / "alice.secret"):
        path.write_text(text)
    with pytest.raises(ConfigError, match="not a key file"):
        load_client_keys(folder / "alice.secret")
    with pytest.raises(ConfigError, match="not a key file"):
        load_server_keys(folder)


def test_a_folder_is_no_key_file(folder):
    with pytest.raises(ConfigError, match=r"is not a file: give NAME\.secret"):
        load_client_keys(folder)


def test_no_secret_is_in_a_repr(folder):
    server, alice = load_server_keys(folder), load_client_keys(folder / "alice.secret")
    assert isinstance(server, ServerKeys)
    assert server.secret not in repr(server)
    assert alice.secret not in f"{alice} {alice!r}"


def test_a_key_that_cannot_be_written_leaves_no_half_of_it(tmp_path, monkeypatch):
    folder = tmp_path / "keys"
    real = os.fdopen

    def full(fd, mode):
        if mode == "wb":
            other = os.open("/dev/full", os.O_WRONLY)
            os.dup2(other, fd)
            os.close(other)
        return real(fd, mode)

    monkeypatch.setattr("async_loader.feeder.curve_keys.os.fdopen", full)
    with pytest.raises(OSError, match="No space left") as said:
        make_keys(folder)
    assert said.value.filename == str(folder / "server.secret")
    monkeypatch.undo()
    assert make_keys(folder) == [folder / "server.secret"]


def test_a_client_with_keys_is_refused_by_a_server_without(context, where, folder):
    with contextlib.closing(ServerSockets(where, Limits())) as ports:
        assert knock(context, ports, folder / "alice.secret") not in (IN, -1)
        assert heard(ports) == []
