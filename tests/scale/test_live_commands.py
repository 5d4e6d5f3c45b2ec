"""``cluster dashboard`` and ``cluster top``, with shards in threads: what a viewer gets."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import urllib.request

import numpy as np
import pytest
from cluster_rig import PATIENCE_S, ThreadShard, add, filled, until
from rich.console import Console
from typer.testing import CliRunner

from async_loader import connect
from async_loader.cli import app
from async_loader.errors import ConfigError
from async_loader.lifecycle import Deadline
from async_loader.observe import Dashboard
from async_loader.scale import Cluster, commands

COUNTS = ("size", "inserted", "sampled", "deleted", "writers", "readers")


@contextlib.contextmanager
def two_shards(folder):
    """Two shards with 100 and 50 rows, and the list of them, whose entries may be replaced."""
    shards = [ThreadShard(folder / str(i), filled(i, 100 - 50 * i)) for i in range(2)]
    try:
        yield shards
    finally:
        for one in shards:
            one.close()


def addresses(shards):
    return [one.address for one in shards]


def frames(url):
    """Yield what the event stream of a page says."""
    with urllib.request.urlopen(f"{url}events", timeout=PATIENCE_S) as events:
        for line in events:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def frame_in_which(url, holds):
    """Return the first frame in which this holds."""
    deadline = Deadline(PATIENCE_S)
    for frame in frames(url):
        if "error" not in frame and holds(frame):
            return frame
        assert not deadline.expired, frame
    raise AssertionError("the stream has ended")


def states(frame):
    return [row["state"] for row in frame["shards"]]


def check_equal(frame, status):
    """Check the counts of a frame, in all and by shard, against a `ClusterStatus`."""
    found = {name: one["status"]["tables"]["t"] for name, one in status["shards"].items()}
    (table,) = frame["tables"]
    for key in COUNTS:
        assert table[key] == sum(one[key] for one in found.values()), key
    for row in frame["shards"]:
        shard = status["shards"][row["name"]]
        assert (row["address"], row["state"]) == (shard["address"], "serving")
        assert row["items"] == found[row["name"]]["size"]
        assert (row["actors"], row["learners"], row["nbytes"]) == tuple(
            found[row["name"]][key] for key in ("writers", "readers", "nbytes")
        )


@pytest.mark.slow
def test_the_page_has_the_values_of_the_status_and_goes_on_while_a_shard_is_away(tmp_path):
    with two_shards(tmp_path) as shards, contextlib.ExitStack() as stack:
        client = stack.enter_context(Cluster.static(addresses(shards), name="learner"))
        writer = stack.enter_context(
            contextlib.closing(client.shard("shard-1").table("t").writer())
        )
        writer.extend(x=np.arange(10), shard=np.ones(10, np.int64))
        writer.flush()
        watcher = stack.enter_context(commands.watched(addresses(shards), None, None, None))
        page = stack.enter_context(Dashboard(lambda: commands.status_of(watcher), port=0))
        frame = frame_in_which(page.url, lambda one: states(one) == ["serving", "serving"])
        check_equal(frame, client.status())
        assert frame["tables"][0]["size"] == 160
        by_name = {one["name"]: one for one in frame["clients"]}
        assert sorted(by_name) == ["async-loader", "learner"], "each once, though in both shards"
        assert by_name["learner"]["shards"] == ["shard-1"]
        assert frame["clients_open"] == 2

        shards[0].die()
        frame = frame_in_which(page.url, lambda one: states(one) == ["silent", "serving"])
        assert frame["tables"][0]["size"] == 60
        assert frame["headlines"][0]["text"].startswith("shard-0 (silent, ipc://")

        shards[0] = ThreadShard(tmp_path / "0", filled(0, 7))
        frame = frame_in_which(page.url, lambda one: states(one) == ["serving", "serving"])
        until(lambda: client.status()["shards"]["shard-0"]["status"] is not None)
        check_equal(frame, client.status())
        with urllib.request.urlopen(f"{page.url}points.json", timeout=PATIENCE_S) as answer:
            sizes = [one["tables"]["t"]["size"] for one in json.load(answer)]
        assert [one for one in (160, 60, 67) if one in sizes] == [160, 60, 67]


def test_a_shard_that_does_not_answer_costs_the_others_nothing(tmp_path):
    with two_shards(tmp_path) as shards, Cluster.static(addresses(shards)) as client:
        until(lambda: all(one["status"] for one in client.status()["shards"].values()))
        held, ended = threading.Event(), threading.Event()
        server = shards[0].server
        serve_tables = server._serve_tables

        def stopped():
            held.set()
            ended.wait(PATIENCE_S)
            serve_tables()

        server._serve_tables = stopped
        server._ring()
        assert held.wait(PATIENCE_S)
        try:
            status = client.status(timeout_s=0.5)["shards"]
            assert status["shard-0"]["status"] is None
            assert status["shard-1"]["status"]["tables"]["t"]["size"] == 50
        finally:
            server._serve_tables = serve_tables
            ended.set()


def test_top_shows_both_shards(tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), width=80, height=24)
    with two_shards(tmp_path) as shards:

        def redraw(status, console):
            from async_loader.observe.top import top_view

            found = status()
            add(shards[1].table, 1, 5, first=50)
            console.print(*top_view(status(), found, 24))

        monkeypatch.setattr(commands, "redraw", redraw)
        commands.top(addresses(shards), None, None, None, console)
    text = console.file.getvalue()
    for said in (
        "cluster, 2 of 2 shards answer",
        "shard-0  serving",
        "155 / 8,192",
        "async-loader",
    ):
        assert said in text, text


def test_the_command_serves_the_page_until_it_is_interrupted(tmp_path, monkeypatch, capsys):
    pages = []

    def interrupted(fds, left_s):
        raise KeyboardInterrupt

    class Noted(Dashboard):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            pages.append(self)
            frame_in_which(self.url, lambda one: len(one["shards"]) == 2)

    monkeypatch.setattr(commands, "readable", interrupted)
    monkeypatch.setattr(commands, "Dashboard", Noted)
    with two_shards(tmp_path) as shards:
        arguments = ["cluster", "dashboard", *addresses(shards), "--port", "0"]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert result.output == f"dashboard: {pages[0].url}\n"


@pytest.mark.parametrize("command", ["dashboard", "top"])
def test_addresses_or_a_file_are_needed_and_not_both(command, tmp_path):
    for arguments in ([], ["tcp://node1:5555", "--config", "cluster.yaml"]):
        result = CliRunner().invoke(app, ["cluster", command, *arguments])
        assert result.exit_code == 2
        assert "give --config FILE for a cluster on Ray, or the address" in result.stderr


def test_of_a_file_the_cluster_is_found_with_the_operators_keys(tmp_path, monkeypatch):
    asked = []

    def found(address, **options):
        asked.append((address, options))
        raise ConfigError("there is no Ray")

    config = tmp_path / "cluster.yaml"
    config.write_text(
        "name: pong\nnetwork: {listen: node, keys: cluster-keys}\nfeeder: {tables: {t: 100}}\n"
    )
    monkeypatch.setattr(commands.Cluster, "connect", found)
    for keys in ([], ["--keys", "mine.secret"]):
        arguments = ["cluster", "top", "--config", str(config), "--ray", "node1:6379", *keys]
        assert CliRunner().invoke(app, arguments).exit_code == 2
    assert [(address, one["cluster"], one["keys"]) for address, one in asked] == [
        ("node1:6379", "pong", str(tmp_path / "cluster-keys" / "operator")),
        ("node1:6379", "pong", "mine.secret"),
    ]


def test_a_client_that_writes_is_behind_by_the_versions_that_it_lacks(tmp_path):
    step = {"x": np.int64, "shard": np.int64, "policy_version": np.int64}
    from async_loader import ReplayBuffer

    shard = ThreadShard(tmp_path, ReplayBuffer(100, schema=step))
    try:
        with connect(shard.address) as client:
            client.publish("policy", {"w": np.zeros(1, np.float32)}, version=5)
            with client.table("t").writer() as writer:
                writer.append(x=0, shard=0, policy_version=3)
                writer.flush()
                (session,) = client.status()["sessions"]
                assert session["lag"] == 2
    finally:
        shard.close()
