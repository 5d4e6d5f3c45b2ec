"""serve, status, drain and keys, as a user types them; with a server and a client that are
fakes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from async_loader import feeder
from async_loader.cli import app
from async_loader.feeder import reach
from async_loader.feeder.curve_keys import load_server_keys

CONFIGS = Path(__file__).parents[2] / "configs"
WIDE = {"COLUMNS": "200"}


def status_of(**changes):
    table = {
        "size": 1000,
        "capacity": 5000,
        "inserted": 1000,
        "sampled": 4096,
        "deleted": 0,
        "inserts_per_s": 12.5,
        "samples_per_s": 50.0,
        "samples_per_insert": 4.096,
        "policies": {"policy": {"newest": 11, "oldest": 9, "lag": 3}},
        "waiting": ["reader 3 waits for 24 rows"],
        "writers": 1,
        "readers": 2,
        "full": False,
        "stale": {},
        "queued_rows": 0,
        "readers_wait": 0.0,
        "writers_wait": 0.0,
    }
    session = {
        "id": 7, "pid": 4321, "host": "node7", "user": "alice", "name": "",
        "user_agent": "async_loader/0.1", "role": "actor", "state": "connected", "lag": None,
        "rows_per_s": 30.0, "batches_per_s": 0.0, "age_s": 3700.0, "silent_s": 0.5,
        "connected": True, "writers": 1, "readers": 0, "rows_in": 1000,
        "batches_out": 0, "in_flight_bytes": 0,
    }  # fmt: skip
    status = {
        "incarnation": "ab",
        "uptime_s": 75.0,
        "address": "tcp://127.0.0.1:5555",
        "pid": 99,
        "version": 1,
        "draining": False,
        "tables": {"replay": table},
        "sessions": [session],
        "sessions_open": 1,
        "sessions_ended": {"left": 2, "died": 1, "lost": 0},
        "weights": {"policy": 12},
        "weights_age_s": {"policy": 2.0},
        "weights_waiting": {"policy": 3, "critic": 1},
        "counters": {"received": 3},
    }
    return {**status, **changes}


class FakeServer:
    """Serves no client, and ends when it is told to."""

    address = "tcp://127.0.0.1:5555"
    made: list = []  # noqa: RUF012
    result: object = 0

    def __init__(self, settings):
        self.settings = settings
        self.made.append(self)

    def ask_status(self, timeout_s):
        return self.status()

    def close(self):
        pass

    def run(self, ready):
        ready()
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    def status(self):
        return status_of(
            tables={name: status_of()["tables"]["replay"] for name in self.settings.tables}
        )


class FakeClient:
    """Has statuses to give; raises those that are exceptions."""

    address = "tcp://127.0.0.1:5555"

    def __init__(self, *statuses):
        self.statuses, self.asked, self.drained, self.closed = list(statuses), [], 0, 0

    def connect(self, address, **options):
        self.asked.append((address, options))
        return contextlib.nullcontext(self)

    def status(self):
        found = self.statuses.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    def drain(self):
        self.drained += 1


@pytest.fixture
def server(monkeypatch):
    kind = type("Fake", (FakeServer,), {"made": []})
    module = types.ModuleType("async_loader.feeder.serving")
    module.FeederProcess = kind
    monkeypatch.setitem(sys.modules, "async_loader.feeder.serving", module)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # pytest's log is the log
    return kind


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(reach, "absent", lambda *_: "")

    def use(*statuses):
        fake = FakeClient(*statuses)
        monkeypatch.setattr(feeder, "connect", fake.connect, raising=False)
        return fake

    return use


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments), env=WIDE)


# -- serve -----------------------------------------------------------------------------------------


def test_serve_hands_the_server_its_settings(server):
    assert (
        invoke(
            "serve",
            "--table",
            "replay:1000",
            "--table",
            "eval:1MiB",
            "--bind",
            "tcp://127.0.0.1:5555",
        ).exit_code
        == 0
    )
    (one,) = server.made
    assert {name: t["capacity"] for name, t in one.settings.tables.items()} == {
        "replay": 1000,
        "eval": "1MiB",
    }
    assert one.settings.bind == "tcp://127.0.0.1:5555"
    assert not one.settings.security.allow_insecure


def test_serve_takes_a_file_and_goes_before_it(server):
    assert (
        invoke(
            "serve",
            "--config",
            str(CONFIGS / "queue.yaml"),
            "--table",
            "more:7",
            "--allow-insecure",
        ).exit_code
        == 0
    )
    settings = server.made[0].settings
    assert list(settings.tables) == ["rollouts", "more"]
    assert settings.security.allow_insecure


# -- status and drain ------------------------------------------------------------------------------


def test_status_shows_tables_clients_and_waiting_readers(client):
    status = status_of(uptime_s=77.0)
    status["tables"]["replay"].update(inserts_per_s=100.0, samples_per_s=2.5)
    status["sessions"][0].update(name="learner 1")
    fake = client(status)
    result = invoke("status", "tcp://127.0.0.1:5555")
    assert result.exit_code == 0, result.output
    for said in (
        "process 99, up 1 min 17 s",
        "replay",
        "1,000 / 5,000",
        "100",
        "2.5",
        "4.1",
        "replay waits: reader 3 waits for 24 rows",
        "1 client, and before: 1 died, 2 left",
        "learner 1 alice at node7:4321  connected",
        "30",
        "1 h 1 min",
        "weights policy: version 12, published 2.0 s ago, 3 wait for a newer one",
        "replay gets steps of policy 9: 3 behind",
        "weights critic: 1 wait for the first",
    ):
        assert said in result.output
    ((address, options),) = fake.asked
    assert address == "tcp://127.0.0.1:5555"
    assert options["on_disconnect"] == "raise"
    assert options["keys"] is None


def test_what_clients_call_themselves_cannot_command_a_terminal(client):
    evil = "\x1b[2J\x1b]0;owned\x07[red]:boom:\nx"
    status = status_of()
    status["sessions"][0].update(name=evil, host=evil)
    status["tables"]["replay"]["waiting"] = [evil]
    status["tables"][evil] = status["tables"]["replay"]
    evil_one = {
        **status,
        "address": evil,
        "pid": evil,
        "weights": {evil: 1},
        "weights_age_s": {evil: 1.0},
        "weights_waiting": {evil: 1, evil * 2: 1},
    }
    status["tables"]["replay"]["policies"] = {evil: {"oldest": 1, "lag": 3}}
    client(evil_one)
    result = CliRunner().invoke(app, ["status", "x"], env={"COLUMNS": "400"}, color=True)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "\x07" not in result.output
    assert "[red]:boom:" in result.output


def test_drain_drains(client):
    fake = client()
    assert invoke("drain", "tcp://127.0.0.1:5555").exit_code == 0
    assert fake.drained == 1


@pytest.mark.parametrize("command", ["status", "drain"])
def test_without_an_address_it_is_that_of_connect(client, command):
    fake = client(status_of())
    assert invoke(command).exit_code == 0
    ((address, _),) = fake.asked
    assert address is None


# -- keys ------------------------------------------------------------------------------------------


def test_keys_are_made_and_not_overwritten(tmp_path):
    folder = tmp_path / "keys"
    result = invoke("keys", str(folder), "alice", "bob")
    assert result.exit_code == 0, result.output
    assert f"{folder / 'alice.secret'} (take this one to the client)" in result.stdout
    assert sorted(load_server_keys(folder).clients.values()) == ["alice", "bob"]
    again = invoke("keys", str(folder), "alice")
    assert again.exit_code == 2
    assert "not overwritten" in again.stderr


# -- as processes ----------------------------------------------------------------------------------
