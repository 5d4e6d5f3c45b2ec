"""One server at an address: the lock, the files, and who it is that is in the way."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from async_loader.errors import AddressInUse, ConfigError, InsecureBindError
from async_loader.feeder.addresses import parse
from async_loader.feeder.serving import AddressLock

PLANES = ("control", "insert", "pull")
HOLDER = """
import sys
from contextlib import closing
from async_loader.feeder.addresses import parse
from async_loader.feeder.serving import AddressLock
with closing(AddressLock(parse(sys.argv[1]))) as claim:
    bound = [claim.bind(plane) for plane in ("control", "insert", "pull")]
    print(bound[0][1], flush=True)
    sys.stdin.read()
    for one, _ in bound:
        one.close()
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


def bind_all(claim: AddressLock) -> tuple[list[socket.socket], dict[str, str]]:
    """The sockets, and the endpoint of each plane."""
    bound = [claim.bind(plane) for plane in PLANES]
    return [one for one, _ in bound], dict(zip(PLANES, (where for _, where in bound), strict=True))


@pytest.fixture(autouse=True)
def no_lock_stays_open():
    yield
    assert not [
        fd for fd in Path("/proc/self/fd").iterdir() if ".lock" in os.path.basename(_leads_to(fd))
    ]


def _leads_to(fd: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(fd)
    return ""


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
        with closing(AddressLock(parse(f"ipc://{tmp_path}/x"))) as claim:
            sockets, endpoints = bind_all(claim)
            assert {path.name for path in tmp_path.iterdir()} == {
                "x",
                "x.insert",
                "x.pull",
                "x.lock",
            }
            assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
            assert (tmp_path / "x.lock").read_text() == f"{os.getpid()}\n"
            assert endpoints == {
                "control": f"ipc://{tmp_path}/x",
                **{p: f"ipc://{tmp_path}/x.{p}" for p in PLANES[1:]},
            }
            talk(sockets[1], endpoints["insert"])
            for one in sockets:
                one.close()
        assert list(tmp_path.iterdir()) == []
        claim.close()
    finally:
        assert os.umask(before) == 0o002


def test_a_second_server_is_refused_with_the_pid_of_the_first(tmp_path):
    with holder(f"ipc://{tmp_path}/x") as (process, endpoint):
        with pytest.raises(AddressInUse, match=f"in use by process {process.pid}") as caught:
            AddressLock(parse(endpoint))
        assert caught.value.pid == process.pid
        with socket.socket(socket.AF_UNIX) as client:  # and the first goes on
            client.connect(str(tmp_path / "x"))
    with closing(AddressLock(parse(endpoint))):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_killed_server_are_cleaned(tmp_path):
    with holder(f"ipc://{tmp_path}/x") as (process, endpoint):
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    (tmp_path / "x.memory").touch()
    (tmp_path / "x.memory").unlink()
    with socket.socket(socket.AF_UNIX) as memory:
        memory.bind(str(tmp_path / "x.memory"))
    assert len(list(tmp_path.iterdir())) == 5
    with closing(AddressLock(parse(endpoint))) as claim:
        assert {path.name for path in tmp_path.iterdir()} == {"x.lock"}
        sockets, _ = bind_all(claim)
        talk(sockets[0], endpoint)
        for one in sockets:
            one.close()
    assert list(tmp_path.iterdir()) == []


def test_a_tcp_port_in_use_is_refused():
    with holder("tcp://127.0.0.1:*") as (_, endpoint):
        address = parse(endpoint)
        with closing(AddressLock(address)) as claim:
            with pytest.raises(AddressInUse, match="in use by another process: end that one"):
                claim.bind("control")


@pytest.mark.parametrize("plane", ["control", "insert", "pull"])
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_an_address_that_cannot_be_bound_is_named_as_it_was_given(tmp_path, scheme, plane):
    named = f"ipc://{tmp_path}/x"
    (tmp_path / ("x" if plane == "control" else f"x.{plane}")).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if scheme == "tcp":
            named = f"tcp://127.0.0.1:{taken.getsockname()[1] - PLANES.index(plane)}"
        with pytest.raises((AddressInUse, ConfigError), match=f"^{named} "):
            with closing(AddressLock(parse(named))) as claim:
                claim.bind(plane)


def test_an_insecure_bind_is_refused_or_logged_at_each_start(caplog):
    with pytest.raises(InsecureBindError):
        AddressLock(parse("tcp://*:5555"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            AddressLock(parse("tcp://*:5555"), allow_insecure=True).close()
    assert [record.getMessage()[:31] for record in caplog.records] == [
        "tcp://*:5555 is bound without k"
    ] * 2
    AddressLock(parse("tcp://*:5555"), encrypted=True).close()
    assert len(caplog.records) == 2
