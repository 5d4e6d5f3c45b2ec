"""A client and a feeder of the version before serve each other, or name both versions.

The other version is that of a commit, taken from git into a folder of its own.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

from async_loader.errors import Unsupported
from async_loader.feeder import connect
from async_loader.feeder.server import control_handler
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.wire import NEWEST, OLDEST

ROOT = Path(__file__).parents[2]
BEFORE = "1b7241b"
"""The last commit before clusters: version 4 of the wire."""
PATIENCE_S = 240.0

CLIENT = """
import sys, numpy as np
from async_loader.feeder import connect
from async_loader.feeder.wire import NEWEST
with connect(sys.argv[1], timeout_s=240) as client:
    with client.table("replay").writer(schema={"x": np.int64}) as writer:
        for x in range(300):
            writer.append(x=x)
    table = client.table("replay")
    source = table.source(timeout_s=240)
    from async_loader.lifecycle import Deadline, Patience
    batch = source.plan(64, Patience(deadline=Deadline(240))).batch
    assert set(batch["x"].tolist()) <= set(range(300))
    print(table.update_priorities(batch["index"], np.ones(64)).applied, len(table), NEWEST)
    source.close()
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the commit before, as a folder for PYTHONPATH."""
    command = ["git", "-C", str(ROOT), "archive", BEFORE, "async_loader"]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this clone does not have commit {BEFORE}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_client_of_the_version_before_writes_and_learns(before):
    tables = {"replay": {"capacity": 1000, "sampler": "prioritized"}}
    with connect("embedded", tables=tables, timeout_s=PATIENCE_S) as own:
        client = run(before, "-c", CLIENT, own.address)
        said, _ = client.communicate(timeout=PATIENCE_S)
        assert client.returncode == 0
        applied, size, newest = map(int, said.split())
        assert (applied, size) == (64, 300)
        assert newest < NEWEST
        values = own.table("replay").sample(300)["x"]
        assert set(values.tolist()) <= set(range(300))


@pytest.mark.soak  # it compiles the kernels of the version before
def test_a_feeder_of_the_version_before_serves_a_client_of_this_one(before, tmp_path):
    address = f"ipc://{tmp_path}/f"
    feeder = run(before, "-m", "async_loader", "serve", "--table", "replay:1000", "--bind", address)
    try:
        with connect(address, timeout_s=2 * PATIENCE_S) as client:
            with client.table("replay").writer(schema={"x": np.int64}) as writer:
                for x in range(300):
                    writer.append(x=x)
            assert client.status()["version"] < NEWEST
            assert len(client.table("replay")) == 300
            assert client.table("replay").sample(32)["x"].shape == (32,)
    finally:
        feeder.terminate()
        feeder.communicate(timeout=PATIENCE_S)


def test_versions_that_share_none_are_both_named_to_the_client(monkeypatch, tmp_path):
    """A feeder of a version to come, which does not speak those of today any more."""
    monkeypatch.setattr(control_handler, "OLDEST", NEWEST + 1)
    monkeypatch.setattr(control_handler, "NEWEST", NEWEST + 2)
    server = FeederProcess(ServerSettings.of(["t:10"], bind=f"ipc://{tmp_path}/f"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        ours, theirs = f"{NEWEST + 1} to {NEWEST + 2}", f"{OLDEST} to {NEWEST}"
        with pytest.raises(Unsupported, match=f"versions {ours} .* {theirs} there: update"):
            connect(f"ipc://{tmp_path}/f", timeout_s=PATIENCE_S)
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        server.__dict__.clear()
