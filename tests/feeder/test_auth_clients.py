"""A real server with keys and real clients: who is served, and what the others are told."""

from __future__ import annotations

import contextlib
import threading
import weakref

import numpy as np
import pytest

from async_loader import AsyncDataLoader
from async_loader.errors import ConfigError, Timeout
from async_loader.feeder import connect
from async_loader.feeder.curve_keys import make_keys
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import SecuritySettings, ServerSettings

PATIENCE_S = 60.0


@contextlib.contextmanager
def serving(tmp_path, keys=None):
    security = SecuritySettings(keys=None if keys is None else str(keys))
    tables = {name: {"capacity": 1000} for name in ("replay", "other")}
    one = FeederProcess(
        ServerSettings(bind=f"ipc://{tmp_path}/s", tables=tables, security=security)
    )
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        # pytest would keep it, and its tables, until after the test was looked at
        yield weakref.proxy(one)
    finally:
        one.stop()
        thread.join()


@pytest.fixture
def server(tmp_path, folder):
    with serving(tmp_path, folder) as one:
        yield one


def test_a_known_key_is_served_on_all_planes_under_its_name(server, folder):
    with connect(server.address, keys=folder / "alice.secret", timeout_s=PATIENCE_S) as client:
        with client.table("replay").writer() as writer:
            for i in range(40):
                writer.append(x=np.int64(i), policy_version=np.int64(3))
        batch = client.table("replay").source(timeout_s=PATIENCE_S)
        with AsyncDataLoader(batch, batch_size=8) as loader:
            assert set(next(loader)["x"].tolist()) <= set(range(40))
        client.publish("policy", {"w": np.arange(5)}, version=4)
        assert client.latest("policy").version == 4
        status = client.status()
    assert [session["user"] for session in status["sessions"]] == ["alice"]
    assert (status["tables"]["replay"]["inserted"], status["weights"]) == (40, {"policy": 4})


def test_a_client_without_keys_is_told_at_once_that_it_needs_some(server):
    with pytest.raises(
        ConfigError, match=r"takes connections with known keys only: give keys= \(--keys\)"
    ):
        connect(server.address, timeout_s=PATIENCE_S)


def test_a_key_that_the_server_does_not_know_is_refused_at_once(server, folder):
    make_keys(folder, ["carol"])  # after the server has started
    with pytest.raises(ConfigError, match="does not know this client's key"):
        connect(server.address, keys=folder / "carol.secret", timeout_s=PATIENCE_S)


@pytest.mark.slow
def test_keys_for_another_server_are_refused_within_the_deadline(server, tmp_path):
    make_keys(tmp_path / "elsewhere", ["alice"])
    # it is not for good, so that no caller is told before; and handshakes take their time
    for timeout_s in (1.0, 5.0, 30.0):
        with pytest.raises(Timeout) as refused:
            connect(
                server.address, keys=tmp_path / "elsewhere" / "alice.secret", timeout_s=timeout_s
            )
        if "never heard of" not in str(refused.value):
            break
    assert "are the keys for another feeder" in str(refused.value)
