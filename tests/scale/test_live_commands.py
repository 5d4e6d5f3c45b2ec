"""``cluster dashboard``, with shards in threads: what a viewer gets."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request

import numpy as np
import pytest
from cluster_rig import PATIENCE_S, ThreadShard, filled, until
from typer.testing import CliRunner

from async_loader.cli import app
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
    """Yield the frames that a page asks for."""
    while True:
        with urllib.request.urlopen(f"{url}frame.json", timeout=PATIENCE_S) as answer:
            yield json.load(answer)
        threading.Event().wait(0.05)


def frame_in_which(url, holds):
    """Return the first frame in which this holds."""
    deadline = Deadline(PATIENCE_S)
    for frame in frames(url):
        if holds(frame):
            return frame
        assert not deadline.expired, frame
    raise AssertionError("the stream has ended")


def states(frame):
    return [row["state"] for row in frame["shards"]]


def check_equal(frame, status):
    """Check the counts of a frame, in all and by shard, against a `ClusterStatus`."""
    found = {name: one["status"]["tables"]["t"] for name, one in status["shards"].items()}
    (table,) = frame["tables"].values()
    for key in COUNTS:
        assert table[key] == sum(one[key] for one in found.values()), key
    for row in frame["shards"]:
        shard = status["shards"][row["name"]]
        assert (row["address"], row["state"]) == (shard["address"], "serving")
        for key in ("size", "writers", "readers", "nbytes"):
            assert row["tables"]["t"][key] == found[row["name"]][key], key


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
        assert frame["tables"]["t"]["size"] == 160
        by_name = {one["name"]: one for one in frame["sessions"]}
        assert sorted(by_name) == ["learner"], "once, and without the page itself"
        assert by_name["learner"]["shards"] == {"shard-1": 1}
        assert frame["sessions_open"] == 1

        shards[0].die()
        frame = frame_in_which(page.url, lambda one: states(one) == ["silent", "serving"])
        assert frame["tables"]["t"]["size"] == 60
        assert frame["headlines"][0][1].startswith("shard-0 (silent, ipc://")

        shards[0] = ThreadShard(tmp_path / "0", filled(0, 7))
        frame = frame_in_which(page.url, lambda one: states(one) == ["serving", "serving"])
        until(lambda: client.status()["shards"]["shard-0"]["status"] is not None)
        check_equal(frame, client.status())


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
