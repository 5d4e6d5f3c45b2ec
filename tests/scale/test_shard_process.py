"""A shard's process without Ray: started, killed, taken over, restored."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader.errors import AsyncLoaderError
from async_loader.feeder import addresses, connect
from async_loader.feeder.settings import ServerSettings
from async_loader.lifecycle import readable
from async_loader.scale import shard_main, shard_process
from async_loader.scale.cluster_keys import keys_for
from async_loader.scale.shard_losses import ShardLosses
from async_loader.scale.shard_plan import ShardPlan, encoded
from async_loader.scale.shard_process import About, ShardProcess
from async_loader.scale.shard_supervisor import ShardSupervisor

PATIENCE_S = 240.0


def plan(folder: Path, every_s: float | None = None, **more: Any) -> ShardPlan:
    plain: dict[str, Any] = {"tables": {"t": {"capacity": 1000}}, "drain_s": 1.0}
    settings = ServerSettings.from_plain(plain["tables"])
    path = folder / "c.yaml"
    if every_s is not None:
        path.write_text(f"tables: {{t: 1000}}\ncheckpoint: {{path: saves, every_s: {every_s}}}\n")
        settings = ServerSettings.load(path)
    values = {"listen": "ipc", "allow_insecure": False, **more}
    return ShardPlan(
        cluster="c",
        number=0,
        folder=str(folder / "f"),
        feeder=encoded(settings),
        start_s=PATIENCE_S,
        **values,
    )


def write(address: str, count: int, keys: Path | None = None) -> None:
    with connect(address, timeout_s=PATIENCE_S, keys=keys) as client:
        writer = client.table("t").writer(schema={"x": np.int64})
        for x in range(count):
            writer.append(x=x)
        writer.close()


def begin_at_quiet_ports(plan: ShardPlan) -> None:
    """Have a shard listen where the system gives no port to other programs by itself."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    texts = (f"tcp://127.0.0.1:{port}" for port in range(lowest - 3, 1024, -3))
    quiet = next(text for text in texts if shard_process._free(addresses.parse(text)))
    (plan.place() / "address").write_text(quiet)


@pytest.fixture
def started() -> Iterator[Callable[[ShardPlan], ShardProcess]]:
    made: list[ShardProcess] = []

    def start(plan: ShardPlan) -> ShardProcess:
        made.append(ShardProcess(plan, "127.0.0.1"))
        return made[-1]

    yield start
    for one in made:
        one.stop(PATIENCE_S)
        one.close()


def test_a_process_that_lost_its_owner_is_taken_over_and_serves_on(tmp_path, started):
    first = started(plan(tmp_path))
    write(first.about.address, 10)
    second = started(plan(tmp_path))
    assert second.about == first.about
    with connect(second.about.address) as client:
        assert client.status()["tables"]["t"]["size"] == 10


@pytest.mark.slow
def test_rows_of_a_killed_process_without_checkpoints_are_counted(tmp_path, started):
    first = started(plan(tmp_path))
    write(first.about.address, 10)
    os.kill(first.about.pid, signal.SIGKILL)
    assert readable([first.fileno()], PATIENCE_S)
    second = started(plan(tmp_path))
    assert second.about.incarnation > first.about.incarnation
    assert second.about.address == first.about.address
    assert second.about.restored == {"t": {"rows": 0, "lost": 10, "save": None}}


@pytest.mark.slow
def test_a_shard_on_tcp_comes_back_at_its_address_with_its_keys(tmp_path, started):
    secrets = keys_for(tmp_path / "keys", "shard-0", ["actor", "operator"])
    one = plan(tmp_path, 60.0, listen="loopback", secrets=secrets)
    begin_at_quiet_ports(one)
    first = started(one)
    first.keep_address()
    write(first.about.address, 10, tmp_path / "keys/actor/shard-0.secret")
    first.stop(PATIENCE_S)  # saves at the end
    second = started(one)
    assert second.about.address == first.about.address
    assert second.about.restored == {"t": {"rows": 10, "lost": 0, "save": 1}}


def test_a_process_without_an_owner_ends(tmp_path, monkeypatch):
    ended = threading.Event()

    class Server:
        def stop(self) -> None:
            ended.set()

    monkeypatch.setattr(shard_main, "ORPHAN_S", 0.05)
    shard_main.Owners(tmp_path, {}, Server())
    assert ended.wait(PATIENCE_S)


def test_a_loss_that_no_owner_has_heard_of_is_named_by_the_next_process(tmp_path):
    def about(incarnation: int, lost: int) -> About:
        return About(incarnation, 1, "a", {"t": {"rows": 0, "lost": lost, "save": None}})

    losses = ShardLosses(tmp_path)
    losses.note(about(1, 0))
    losses.note(about(2, 7))
    losses.note(about(2, 7))  # taken over
    losses = ShardLosses(tmp_path)  # of the next owner
    losses.note(about(4, 12))  # 3 was killed before it was asked, and 4 lost nothing or some more
    assert losses.total == {"t": 12}
    assert [(one["rows"], one["incarnation"]) for one in losses.entries] == [(7, 2), (5, 4)]
    losses.note(about(5, 3))  # its folder was made anew
    assert losses.total == {"t": 15}


@pytest.mark.slow
def test_a_supervisor_starts_a_killed_process_again_and_names_what_is_lost(tmp_path):
    news = threading.Event()
    supervisor = ShardSupervisor(plan(tmp_path), "127.0.0.1", news.set)

    def wait(until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not until(said := supervisor.describe()):
            assert news.wait(PATIENCE_S), said
            news.clear()
        return said

    try:
        first = wait(lambda said: said["state"] == "serving")
        write(first["address"], 7)
        os.kill(first["pid"], signal.SIGKILL)
        second = wait(
            lambda said: said["state"] == "serving" and said["incarnation"] > first["incarnation"]
        )
        assert (second["lost_rows"], second["starts"]) == ({"t": 7}, 2)
        supervisor.restart(plan(tmp_path), PATIENCE_S)
        third = wait(
            lambda said: said["state"] == "serving" and said["incarnation"] > second["incarnation"]
        )
        assert third["starts"] == 3
    finally:
        supervisor.drain(PATIENCE_S)
    assert supervisor.describe()["pid"] is None
    with pytest.raises(AsyncLoaderError, match="it is not started again"):
        supervisor.restart(plan(tmp_path), 1.0)
