"""One server at an address: the files, and who it is that is in the way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from async_loader.errors import AddressInUse, ConfigError, InsecureBindError
from async_loader.feeder.addresses import parse
from async_loader.feeder.server.acceptor import close
from async_loader.feeder.serving import bind, claim

PLANES = ("control", "insert", "pull")
HOLDER = """
import sys
from async_loader.feeder.addresses import parse
from async_loader.feeder.server.acceptor import close
from async_loader.feeder.serving import bind, claim
address = parse(sys.argv[1])
claim(address)
bound = [bind(address, plane) for plane in ("control", "insert", "pull")]
print(bound[0][1], flush=True)
sys.stdin.read()
for one, _ in bound:
    close(one)
"""


@contextlib.contextmanager
def holder(address: str):
    """Another process that holds an address, and what it was bound to."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@contextlib.contextmanager
def bound_all(text: str):
    """The sockets, and the endpoint of each plane."""
    address = parse(text)
    claim(address)
    with contextlib.ExitStack() as stack:
        sockets, endpoints = [], {}
        for plane in PLANES:
            one, endpoints[plane] = bind(address, plane)
            stack.callback(close, one)
            sockets.append(one)
        yield sockets, endpoints


def talk(server: socket.socket, endpoint: str) -> None:
    """Whether a connection to the endpoint comes to this socket."""
    address = parse(endpoint)
    family, where = (
        (socket.AF_INET, (address.host, address.port))
        if address.port
        else (socket.AF_UNIX, address.path)
    )
    with socket.socket(family) as client:
        client.connect(where)
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5, socket.MSG_WAITALL) == b"hello"


def test_ipc_files_are_this_users_alone_and_gone_at_the_end(tmp_path):
    before = os.umask(0o002)
    try:
        with bound_all(f"ipc://{tmp_path}/x") as (sockets, endpoints):
            assert {path.name for path in tmp_path.iterdir()} == {"x", "x.insert", "x.pull"}
            assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
            assert endpoints == {
                "control": f"ipc://{tmp_path}/x",
                **{p: f"ipc://{tmp_path}/x.{p}" for p in PLANES[1:]},
            }
            talk(sockets[1], endpoints["insert"])
        assert list(tmp_path.iterdir()) == []
    finally:
        assert os.umask(before) == 0o002


def test_a_second_server_is_refused_with_the_pid_of_the_first(tmp_path):
    with holder(f"ipc://{tmp_path}/x") as (process, endpoint):
        with pytest.raises(AddressInUse, match=f"in use by process {process.pid}") as caught:
            claim(parse(endpoint))
        assert caught.value.pid == process.pid
        with socket.socket(socket.AF_UNIX) as client:  # and the first goes on
            client.connect(str(tmp_path / "x"))
    with bound_all(endpoint):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_killed_server_are_cleaned(tmp_path):
    with holder(f"ipc://{tmp_path}/x") as (process, endpoint):
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    with socket.socket(socket.AF_UNIX) as memory:
        memory.bind(str(tmp_path / "x.memory"))
    assert len(list(tmp_path.iterdir())) == 4
    with bound_all(endpoint) as (sockets, _):
        assert not (tmp_path / "x.memory").exists()
        talk(sockets[0], endpoint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("plane", ["control", "insert", "pull"])
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_an_address_that_cannot_be_bound_is_named_as_it_was_given(tmp_path, scheme, plane):
    named = f"ipc://{tmp_path}/x"
    (tmp_path / ("x" if plane == "control" else f"x.{plane}")).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if scheme == "tcp":
            named = f"tcp://127.0.0.1:{taken.getsockname()[1] - PLANES.index(plane)}"
        with pytest.raises((AddressInUse, ConfigError), match=f"^{named} "), bound_all(named):
            pass


def test_an_insecure_bind_is_refused_or_logged_at_each_start(caplog):
    with pytest.raises(InsecureBindError):
        claim(parse("tcp://*:5555"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            claim(parse("tcp://*:5555"), allow_insecure=True)
    assert [record.getMessage()[:31] for record in caplog.records] == [
        "tcp://*:5555 is bound without k"
    ] * 2
    claim(parse("tcp://*:5555"), encrypted=True)
    assert len(caplog.records) == 2
