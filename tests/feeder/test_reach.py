"""Where no feeder can be is said at once, with the address that was named."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import msgspec
import pytest

from async_loader.errors import ConfigError, Timeout
from async_loader.feeder import commands, connect
from async_loader.feeder.commands import asking
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from tests.waiting_rig import until

PATIENCE_S = 60.0


def unknown(code):
    def getaddrinfo(*_):
        raise socket.gaierror(code, "Name or service not known")

    return getaddrinfo


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("inproc://x", r"'inproc://x': it begins with tcp:// or ipc://"),
        ("udp://127.0.0.1:5555", "it begins with tcp:// or ipc://"),
        ("tcp://no-such-host.invalid:5555", r"no-such-host.invalid' cannot be resolved"),
    ],
)
@pytest.mark.parametrize("ask", [connect, lambda address, **_: asking(address, None).__enter__()])
def test_where_no_feeder_can_ever_be_is_said_at_once(address, words, ask, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", unknown(socket.EAI_NONAME))
    begun = time.monotonic()
    with pytest.raises(ConfigError, match=words):
        ask(address, timeout_s=PATIENCE_S)
    assert time.monotonic() - begun < PATIENCE_S


def test_a_missing_socket_is_told_at_once_and_waited_for(tmp_path, caplog):
    found, address = [], f"ipc://{tmp_path}/feeder"
    with pytest.raises(Timeout, match="takes no connection there"):
        connect(address, timeout_s=0.05)
    caplog.clear()
    thread = threading.Thread(target=lambda: found.append(connect(address, timeout_s=PATIENCE_S)))
    thread.start()
    until(lambda: f"{tmp_path}/feeder takes no connection there" in caplog.text)
    settings = msgspec.structs.replace(ServerSettings.from_plain({"t": 10}), bind=address)
    with contextlib.closing(FeederProcess(settings)) as server:
        serving = threading.Thread(target=server.run)
        serving.start()
        thread.join()
        found[0].close()
        server.stop()
        serving.join()


@pytest.mark.parametrize("where", ["missing", "left behind", "refused"])
def test_a_command_does_not_wait_for_a_feeder_that_is_not_there(tmp_path, where, monkeypatch):
    monkeypatch.setattr(commands, "_ASK_S", PATIENCE_S)
    address = f"ipc://{tmp_path}/feeder"
    if where == "left behind":
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(f"{tmp_path}/feeder")
    elif where == "refused":
        with socket.create_server(("127.0.0.1", 0)) as one:
            address = f"tcp://127.0.0.1:{one.getsockname()[1]}"
    begun = time.monotonic()
    with pytest.raises(Timeout, match=f"{address} .*does it run there"), asking(address, None):
        pass
    assert time.monotonic() - begun < PATIENCE_S
