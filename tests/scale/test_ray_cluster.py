"""A cluster on a real Ray of several nodes on this machine: processes are killed under load."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

ray = pytest.importorskip("ray", reason="needs the extra ray: pip install 'async_loader[ray]'")

from ray.cluster_utils import Cluster as RayCluster  # noqa: E402

from async_loader import Uniform  # noqa: E402
from async_loader.cli import app  # noqa: E402
from async_loader.errors import Broken, ConfigError, Timeout  # noqa: E402
from async_loader.lifecycle import Deadline, Patience  # noqa: E402
from async_loader.scale import Cluster, ray_library  # noqa: E402
from async_loader.scale.cluster import RayShards  # noqa: E402
from async_loader.scale.cluster_settings import ClusterSettings  # noqa: E402
from async_loader.scale.operations import Operator  # noqa: E402

PATIENCE_S = 120.0
TRIES = 4
ON_THEIR_WAY = 4 * 256
"""Rows that were in a table when its process was killed, and were sent again as its
acknowledgement did not arrive: of each writer one message.
"""
NAME = "test"
SCHEMA = {"x": np.int64}
_SMALL = {"object_store_memory": 80 << 20}
_FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 4,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:the feeder lost"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.timeout(600),
]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Ray's processes come and go while its cluster runs: see the end of `machine`."""
    yield
    deadline = time.monotonic() + 30.0
    while left := [t.name for t in threading.enumerate() if t.name.startswith("async-loader")]:
        assert time.monotonic() < deadline, left
        threading.Event().wait(0.05)


def processes(text: str) -> list[int]:
    """Processes with this text in their command lines."""
    found = []
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if one.name.isdigit() and text.encode() in (one / "cmdline").read_bytes():
                found.append(int(one.name))
    return found


class Machine:
    """Ray's nodes, and the settings of the cluster on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.numbers = 0  # that loads have written so far
        self.ray = RayCluster()
        self.start_node(num_cpus=1, include_dashboard=False, _system_config=_FAST)
        for _ in range(2):
            self.add_node()

    def add_node(self) -> Any:
        return self.start_node(num_cpus=2)

    def start_node(self, **options: Any) -> Any:
        """Ray gives a node 30 s to start, which is not always enough on a shared machine."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(Exception):  # Ray raises a bare one
                return self.ray.add_node(**_SMALL, **options)
        return self.ray.add_node(**_SMALL, **options)

    def plain(self, shards: int = 2) -> dict[str, Any]:
        sampler = {"kind": "uniform", "replacement": False}
        return {
            "name": NAME,
            "shards": shards,
            "folder": str(self.folder / "c"),
            "network": {"listen": "loopback", "keys": str(self.folder / "keys")},
            "start_s": PATIENCE_S,
            "feeder": {
                "tables": {"t": {"capacity": 500_000, "sampler": sampler}},
                "checkpoint": {"path": str(self.folder / "saves"), "every_s": 0.3},
                "drain_s": 2.0,
            },
        }

    def operator(self, shards: int = 2) -> Operator:
        return Operator(ClusterSettings.from_plain(self.plain(shards)), print)

    @property
    def learner_keys(self) -> Path:
        return self.folder / "keys" / "learner.secret"

    def node_of(self, shard: dict[str, Any]) -> Any:
        return next(one for one in self.ray.list_all_nodes() if one.node_id == shard["node"])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("r")
    found = Machine(folder)
    os.environ["RAY_ADDRESS"] = found.ray.address
    try:
        ray_library.join()
        found.operator().up()
        yield found
    finally:
        with contextlib.suppress(ConfigError):
            found.operator().down(30.0)
        ray.shutdown()
        found.ray.shutdown()
        del os.environ["RAY_ADDRESS"]
    left = processes(str(folder))
    assert not left, f"left behind: {left}"


class Load:
    """An actor that writes numbers, each once, and a learner, until they are told to end.

    No two loads write the same number: a table that was cleared before its next save is restored
    with the rows that an earlier load has written.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine, self.first = machine, machine.numbers
        self.client = Cluster.connect(cluster=NAME, keys=machine.learner_keys, timeout_s=PATIENCE_S)
        self.end = threading.Event()
        self.written = 0
        self.drawn_at = time.monotonic()
        self.longest_s = 0.0
        self.batches = 0
        self.failed: list[BaseException] = []
        self.threads = [threading.Thread(target=one) for one in (self.write, self.learn)]

    def guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self.failed.append(error)

    def write(self) -> None:
        def work() -> None:
            writers = [self.client.table("t").writer(schema=SCHEMA) for _ in range(4)]
            while not self.end.is_set():
                for writer in writers:
                    writer.append(x=self.first + self.written, timeout_s=PATIENCE_S)
                    self.written += 1
                self.end.wait(0.002)
            for writer in writers:
                writer.flush(PATIENCE_S)
                writer.close(PATIENCE_S)

        self.guarded(work)

    def learn(self) -> None:
        def work() -> None:
            source = self.client.table("t").source(sampler=Uniform(), timeout_s=PATIENCE_S)
            try:
                while not self.end.is_set():
                    source.plan(32, Patience(deadline=Deadline(PATIENCE_S)))
                    now = time.monotonic()
                    self.longest_s = max(self.longest_s, now - self.drawn_at)
                    self.drawn_at, self.batches = now, self.batches + 1
                    self.end.wait(0.01)
            finally:
                source.close()

        self.guarded(work)

    def wait_for_batches(self, more: int) -> None:
        goal, deadline = self.batches + more, time.monotonic() + PATIENCE_S
        while self.batches < goal:
            assert not self.failed, self.failed
            assert time.monotonic() < deadline, "the learner does not go on"
            threading.Event().wait(0.02)

    def __enter__(self) -> Load:
        for one in self.threads:
            one.start()
        self.wait_for_batches(5)
        return self

    def __exit__(self, *error: object) -> None:
        self.end.set()
        for one in self.threads:
            one.join(PATIENCE_S)
        self.machine.numbers = self.first + self.written
        if error[0] is None:
            assert not self.failed, self.failed
        else:
            self.client.close()


def rows(load: Load) -> Counter[int]:
    """All rows of the cluster that a load has written, from its shards, one by one."""
    found: Counter[int] = Counter()
    for name in load.client.shards:
        table = load.client.shard(name).table("t")
        if size := table.stats().size:  # drawn without replacement: each row once
            drawn = table.sample(size, timeout_s=PATIENCE_S)["x"]
            found.update(drawn[drawn >= load.first].tolist())
    return found


def wait_serving(machine: Machine, shards: int = 2) -> list[dict[str, Any]]:
    """The shards' status, when all of them serve."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(Timeout, Broken):
            found = machine.operator(shards).status()["shards"]
            if len(found) == shards and all(
                one["state"] == "serving" and one["feeder"] for one in found
            ):
                return found
        assert time.monotonic() < deadline, found
        threading.Event().wait(0.2)


def lost(machine: Machine) -> int:
    return sum(one["lost_rows"].get("t", 0) for one in wait_serving(machine))


def clear(machine: Machine) -> None:
    """Empty all tables, and wait until they are saved so: what a test counts is its own."""
    before = saves(machine)
    with Cluster.connect(cluster=NAME, keys=machine.learner_keys, timeout_s=PATIENCE_S) as client:
        for name in client.shards:  # each changes, so that each is saved
            with client.shard(name).table("t").writer(schema=SCHEMA) as writer:
                writer.append(x=-1, timeout_s=PATIENCE_S)
        client.table("t").clear()
    deadline = time.monotonic() + PATIENCE_S
    while any(now <= then for then, now in zip(before, saves(machine), strict=True)):
        assert time.monotonic() < deadline, "the cleared tables are not saved"
        threading.Event().wait(0.1)


def saves(machine: Machine) -> list[int]:
    """The number of each shard's newest save."""
    return [one["feeder"]["checkpoints"]["t"]["number"] or 0 for one in wait_serving(machine)]


# -- what it is ------------------------------------------------------------------------------------


def test_shards_are_on_nodes_of_their_own_and_serve(machine):
    shards = wait_serving(machine)
    assert [one["name"] for one in shards] == ["shard-0", "shard-1"]
    assert len({one["node"] for one in shards}) == 2
    found = numbers_found()
    assert [*found] == [0, 1]
    assert [*found.values()] == [one["address"] for one in shards]


def numbers_found() -> dict[int, str]:
    return {one.number: one.address for one in RayShards(cluster=NAME).find()[0]}


def test_no_secret_is_in_status_answers_or_logs(machine):
    secrets = {
        json.loads(path.read_text())["secret"].encode()
        for path in (machine.folder / "keys").rglob("*.secret")
    }
    assert len(secrets) == 4  # the shards', and three roles
    status = CliRunner().invoke(app, ["cluster", "status", "--json", "--config", config(machine)])
    assert status.exit_code == 0, status.output
    texts = [status.output.encode()]
    logs = [*Path(machine.ray.head_node.get_logs_dir_path()).rglob("*")]
    texts += [path.read_bytes() for path in logs if path.is_file()]
    assert len(texts) > 3
    assert not [one for one in secrets if any(one in text for text in texts)]
    for path in (machine.folder / "c").rglob("*.secret"):
        assert path.stat().st_mode & 0o077 == 0


def config(machine: Machine, shards: int = 2) -> str:
    path = machine.folder / "cluster.yaml"
    path.write_text(json.dumps(machine.plain(shards)))  # JSON is YAML
    return str(path)


def test_no_call_of_ray_is_on_the_path_of_data(machine, monkeypatch):
    calls: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[name + ("" if "cluster" in threading.current_thread().name else "!")] += 1
            return function(*arguments, **options)

        return call

    with Load(machine) as load:
        load.wait_for_batches(3)
        monkeypatch.setattr(ray_library, "ask", counted("ask", ray_library.ask))
        for name in ("get", "put", "wait", "remote", "get_actor"):
            monkeypatch.setattr(ray, name, counted(name, getattr(ray, name)))
        before = load.written
        load.wait_for_batches(50)
        assert load.written > before
        monkeypatch.undo()
    load.client.close()
    assert not [name for name in calls if name.endswith("!")], calls


# -- kills under load ------------------------------------------------------------------------------


def kill_feeder(machine: Machine) -> None:
    victim = wait_serving(machine)[0]
    os.kill(victim["pid"], signal.SIGKILL)


def kill_node(machine: Machine) -> None:
    found = [(one, machine.node_of(one)) for one in reversed(wait_serving(machine))]
    # Ray does not let the node of this process end.
    victim, node = next(pair for pair in found if pair[1] is not machine.ray.head_node)
    os.kill(victim["pid"], signal.SIGKILL)
    machine.ray.remove_node(node, allow_graceful=False)
    machine.add_node()


def check_round(machine: Machine, kill: Any) -> float:
    """Kill under load; return the learner's longest pause."""
    clear(machine)
    before = lost(machine)
    with Load(machine) as load:
        kill(machine)
        load.wait_for_batches(20)
        wait_serving(machine)
        load.wait_for_batches(5)
    found = rows(load)
    gone = sum(one.rows_lost for one in load.client.stats().values())
    load.client.close()
    counted = lost(machine) - before  # and those that were on their way to be acknowledged
    twice = {x: count for x, count in found.items() if count > 1}
    assert not twice
    assert len(found) + gone == load.written, (len(found), gone, counted, load.written)
    assert gone <= counted <= gone + ON_THEIR_WAY, (gone, counted)
    return load.longest_s


@pytest.mark.parametrize("kill", [kill_feeder, kill_node])
def test_after_a_kill_rows_are_there_once_or_counted_as_lost(machine, kill):
    print(f"the learner's longest pause: {check_round(machine, kill):.2f} s")


@pytest.mark.soak
@pytest.mark.timeout(8000)
def test_kills_over_and_over(machine):
    kills = [kill_feeder, kill_node]
    rounds = int(os.environ.get("ASYNC_LOADER_SOAK_ROUNDS", "200"))
    report, pauses = os.environ.get("ASYNC_LOADER_SOAK_REPORT"), []
    for i in range(rounds):
        pauses.append(check_round(machine, kills[i % len(kills)]))
        if report:
            Path(report).write_text(json.dumps(pauses))


# -- more and fewer --------------------------------------------------------------------------------


# Outside the suite: its learner waits at times for a shard that has restarted.
@pytest.mark.soak
def test_a_rolling_restart_loses_nothing_and_learners_go_on(machine):
    clear(machine)
    before = lost(machine)
    with Load(machine) as load:
        batches = load.batches
        status = machine.operator().restart([], 30.0)
        assert load.batches > batches
        load.wait_for_batches(5)
    found = rows(load)
    load.client.close()
    assert [one["state"] for one in status["shards"]] == ["serving"] * 2
    assert lost(machine) == before
    assert max(found.values()) == 1
    assert len(found) == load.written


def test_shards_are_added_and_removed_while_learners_go_on(machine):
    clear(machine)
    with Load(machine) as load:
        machine.operator(3).up()
        assert [*numbers_found()] == [0, 1, 2]
        load.wait_for_batches(5)
        done = CliRunner().invoke(
            app, ["cluster", "drain", "shard-2", "--json", "--config", config(machine)]
        )
        assert done.exit_code == 0, done.output
        load.wait_for_batches(5)
        assert [*numbers_found()] == [0, 1]
    load.client.close()
    said = json.loads(done.output.splitlines()[-1])
    assert said["shard"] == "shard-2"
    assert Path(said["saves"]).is_dir()
    assert machine.operator().status()["removed"] == [2]
