"""`cluster up` where no Ray runs: it starts one, and `cluster down` ends it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray")

CONFIG = """
shards: 1
restarts: 0
feeder: {tables: {t: {capacity: 1000}}}
"""


@pytest.fixture
def folder():
    """A folder with a short name: a shard's sockets lie in it, and their paths have a limit."""
    with tempfile.TemporaryDirectory(prefix="al-") as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.timeout(300)  # Ray starts and ends
def test_a_local_ray_is_started_with_the_users_token_and_ended(folder):
    """A token that Ray has made in an earlier run is asked for by every Ray of this user."""
    for name in ("home/.ray", "run"):
        (folder / name).mkdir(parents=True, mode=0o700)
    (folder / "home" / ".ray" / "auth_token").write_text(secrets.token_hex(32))
    config = folder / "cluster.yaml"
    config.write_text(CONFIG)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "run")}

    def cluster(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "async_loader", "cluster", *arguments, "--config", str(config)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    try:
        cluster("up")
        shards = json.loads(cluster("status", "--json"))["shards"]
        found = shards.values() if isinstance(shards, dict) else shards
        assert [one["state"] for one in found] == ["serving"]
    finally:
        assert "Ray has ended" in cluster("down")
