"""The files for systemd, Slurm and Kubernetes: what they name exists, and the Slurm script runs."""

from __future__ import annotations

import configparser
import contextlib
import os
import random
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from async_loader.cli import app
from async_loader.feeder.settings import ServerSettings
from async_loader.scale.cluster_settings import ClusterSettings

CONFIGS = Path(__file__).parent.parent / "configs"
SCRIPT = CONFIGS / "slurm" / "shards.sbatch"


def parse(words: list[str]) -> dict[str, Any]:
    """Return the options of a command line of ours; an error if it has an option that is not."""
    command: Any = typer.main.get_command(app)
    program, *rest = words
    assert Path(program).name == "async-loader"
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command.make_context(command.name, rest).params


def test_the_unit_starts_a_feeder_with_descriptors_for_all_its_sessions():
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((CONFIGS / "systemd" / "async-loader.service").read_text())
    service = unit["Service"]
    assert parse(shlex.split(service["ExecStart"]))["config"] is not None
    settings = ServerSettings.load(CONFIGS / "feeder.yaml")
    assert int(service["LimitNOFILE"]) >= 3 * settings.limits.sessions + 512
    assert service["RestartPreventExitStatus"] == "2"


def test_the_job_of_kubernetes_has_a_worker_with_enough_memory_for_each_shard(tmp_path: Path):
    settings_of, job = yaml.safe_load_all((CONFIGS / "kuberay" / "replay.yaml").read_text())
    path = tmp_path / "cluster.yaml"
    path.write_text(settings_of["data"]["cluster.yaml"])
    cluster = ClusterSettings.load(path)
    assert (job["kind"], cluster.network.listen) == ("RayJob", "node")
    first = job["spec"]["entrypoint"].split(" && ")[0]
    assert str(parse(shlex.split(first))["config"]) == "/config/cluster.yaml"
    (workers,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == cluster.shards
    pods = [job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"], workers["template"]]
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    (container,) = workers["template"]["spec"]["containers"]
    gib = int(container["resources"]["limits"]["memory"].removesuffix("Gi"))
    held = yaml.safe_load(path.read_text())["feeder"]["tables"]["replay"]["capacity"]
    assert gib >= int(held.removesuffix("GiB")) + 4
    assert float(container["resources"]["requests"]["cpu"]) >= cluster.placement.cpus


def run_script(tmp_path: Path, *program: str, **environment: str) -> Any:
    """Run the script of Slurm with commands that do here what Slurm's do on all nodes."""
    commands = tmp_path / "bin"
    commands.mkdir()
    stand_ins = {
        "scontrol": 'echo localhost\n[ "$3" = "node[1]" ]\n',
        # the command is what follows the options
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n',
        "async-loader": f'exec {shlex.quote(sys.executable)} -m async_loader "$@"\n',
    }
    for name, text in stand_ins.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}")
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "SLURM_JOB_NODELIST": "node[1]", **environment}
    return subprocess.run(
        ["bash", str(SCRIPT), *program], cwd=tmp_path, env=given, timeout=110,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def free_ports(count: int) -> int:
    """Return the first of free ports in a row, below those that connections are given."""
    for first in random.sample(range(20_000, 32_000, count), 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no free ports")


LEARNER = """
import os
import random
import numpy as np
from async_loader.scale import Cluster

addresses = os.environ["ASYNC_LOADER_SHARDS"].split(",")
with Cluster.static(addresses, keys="keys/learner.secret", timeout_s=100) as client:
    table = client.table("replay")
    with table.writer() as writer:
        for i in range(10):
            writer.append(x=np.float32(i))
    assert sorted(set(table.sample(200)["x"].tolist())) == list(range(10))
print(len(addresses), "shard, used")
raise SystemExit(5)
"""


@pytest.mark.slow
def test_the_script_of_slurm_starts_the_shards_runs_the_program_and_ends_the_shards(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "async_loader", "keys", "keys", "learner"],
        cwd=tmp_path, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (tmp_path / "feeder.yaml").write_text("tables: {replay: 100}\nsecurity: {keys: keys}\n")
    (tmp_path / "learner.py").write_text(LEARNER)
    port = free_ports(3)
    ran = run_script(tmp_path, sys.executable, "learner.py", PORT=str(port))
    assert "1 shard, used" in ran.stdout, ran.stderr
    assert ran.returncode == 5, ran.stderr  # the program's
    with socket.socket() as again:  # the shard has ended
        assert again.connect_ex(("127.0.0.1", port)) != 0
