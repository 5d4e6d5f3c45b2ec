"""What a notice before the end of a node costs: real signals to real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from async_loader import ReplayBuffer
from async_loader.errors import ConfigError
from async_loader.feeder import connect
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "preemption.md"
LEARNER = """
import os, signal, sys
from async_loader.feeder import connect
taken = []
signal.signal(signal.SIGTERM, lambda *_: taken.append(1))
address = "ipc://" + os.path.abspath("f")
with connect(address) as client, client.table("replay").writer(schema={"x": "int64"}) as writer:
    x = 0
    while not taken:
        writer.append(x=x)
        x += 1
        if x == 1000:
            writer.flush()
            os.write(int(os.environ["READY"]), b"x")
    writer.flush()
    print("acknowledged", x, flush=True)
"""
SETTINGS = """
bind: ipc://FOLDER/f
tables:
  replay:
    capacity: 5000000
    schema: {x: int64}
    sampler: {kind: uniform, replacement: false}
checkpoint: {path: saves, every_s: 3600}
drain_s: 20
"""


@pytest.fixture
def folder(monkeypatch):
    with tempfile.TemporaryDirectory() as name:  # addresses of sockets are short
        yield filled(Path(name), monkeypatch)


def filled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "feeder.yaml").write_text(SETTINGS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "learner.py").write_text(LEARNER)
    (tmp_path / "bin").mkdir()
    commands = {
        "python": f'exec {sys.executable} "$@"',
        "async-loader": f'exec {sys.executable} -m async_loader "$@"',
        "scontrol": 'echo "$@" > requeued',
    }
    for name, line in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def test_the_batch_script_of_the_guide_loses_no_row_at_the_notice_and_asks_for_another_turn(folder):
    script = next(
        one for one in re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.S) if "#SBATCH" in one
    )
    (folder / "job.sh").write_text(script)
    ready, told = os.pipe()
    job = subprocess.Popen(
        ["bash", "job.sh"],
        env={**os.environ, "SLURM_JOB_ID": "17", "READY": str(told)},
        pass_fds=[told],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(told)
    with job:
        assert os.read(ready, 1) == b"x"
        job.send_signal(signal.SIGTERM)
        said = job.communicate(timeout=60)[0]
    os.close(ready)
    rows = int(re.fullmatch(r"acknowledged (\d+)\n", said)[1])
    assert (job.returncode, (folder / "requeued").read_text()) == (0, "requeue 17\n")
    with ReplayBuffer.from_checkpoint("saves/replay/newest") as table:
        assert len(table) == rows
        assert np.array_equal(np.sort(table.sample(rows)["x"]), np.arange(rows))


def test_a_second_feeder_of_one_checkpoint_folder_is_refused(folder):
    settings = ServerSettings.of(["replay:1000"], bind=f"ipc://{folder}/g", checkpoint="saves")
    first = FeederProcess(settings)
    try:
        address = f"ipc://{folder}/h"
        second = subprocess.run(
            ["async-loader", "serve", "--table", "t:9", "--bind", address, "--checkpoint", "saves"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = " ".join(second.stderr.split())
        assert second.returncode, said
        assert "is in use by another process" in said
        assert "or with --checkpoint" in said
        with pytest.raises(ConfigError, match="in use by another process"):
            FeederProcess(settings)
    finally:
        first.close()


def test_a_client_that_has_drained_its_feeder_closes_at_once_with_an_open_writer():
    with connect("embedded", tables={"t": 100}, timeout_s=30.0) as own:
        client = connect(own.address, timeout_s=30.0)
        writer = client.table("t").writer()
        writer.append(x=1)
        writer.flush()
        client.drain()
        began = time.monotonic()
        writer.close()
        client.close()
        assert time.monotonic() - began < 5.0
