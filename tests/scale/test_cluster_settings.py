"""Settings of a cluster: what a file says, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from async_loader.cli import app
from async_loader.errors import ConfigError
from async_loader.scale.cluster_settings import ClusterSettings
from async_loader.scale.operations import Operator

CONFIGS = Path(__file__).parents[2] / "configs"
FEEDER = {"tables": {"replay": 1000}}


def test_the_file_that_comes_with_the_package_is_read_with_its_defaults():
    found = ClusterSettings.load(CONFIGS / "cluster.yaml")
    plain = ClusterSettings(feeder=found.feeder, shards=2)
    assert found == plain
    assert found.feeder.tables["replay"]["capacity"] == 500_000
    assert found.feeder.checkpoint.every_s == 60
    assert found.feeder.checkpoint.path == str(CONFIGS / "cluster-saves")


@pytest.mark.parametrize(
    ("plain", "text"),
    [
        ({}, "it needs 'feeder'"),
        ({"feeder": FEEDER, "shard": 2}, "shard: there is no such setting: .*'shards'"),
        ({"feeder": FEEDER, "shards": 0}, "shards: .*>= 1"),
        ({"feeder": {**FEEDER, "bind": "ipc:///x"}}, r"feeder\.bind=.*network\.listen"),
        ({"feeder": {**FEEDER, "checkpoint": {"every_s": 5}}}, "feeder.checkpoint.*without a path"),
        ({"feeder": FEEDER, "network": {"listen": "tcp"}}, r"network\.listen"),
        ({"feeder": FEEDER, "network": {"roles": ["a/b", "operator"]}}, "'a/b' will not do"),
        ({"feeder": FEEDER, "placement": {"cpus": -1}}, r"placement\.cpus"),
    ],
)
def test_an_error_names_the_file_and_the_field(tmp_path, plain, text):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match=text) as caught:
        ClusterSettings.load(path)
    assert str(path) in str(caught.value)


def test_keys_do_not_show_in_what_is_printed_of_a_plan(tmp_path):
    network = {"listen": "loopback", "keys": str(tmp_path / "keys")}
    settings = ClusterSettings.from_plain({"feeder": FEEDER, "network": network})
    plan = Operator(settings).plan(3)
    assert set(plan.secrets) == {
        "server.secret", "clients/actor.key", "clients/learner.key", "clients/operator.key",
    }  # fmt: skip
    secret = json.loads(plan.secrets["server.secret"])["secret"]
    assert secret not in repr(plan)
    assert Operator(settings).plan(3) == plan  # made once
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "keys/learner.secret").stat().st_mode & 0o777 == 0o600


def test_a_ray_that_is_not_there_is_said_at_once(monkeypatch, tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    arguments = ["cluster", "status", "--config", str(CONFIGS / "cluster.yaml")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "none runs on this machine" in result.stderr
    result = CliRunner().invoke(app, [*arguments, "--ray", "127.0.0.1:9"])
    assert result.exit_code == 2
    assert "no Ray cluster at 127.0.0.1:9" in result.stderr
