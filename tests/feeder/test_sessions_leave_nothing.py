"""A client that leaves frees its place, memory and descriptors at once, whatever it had open."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from async_loader.errors import Timeout
from async_loader.feeder import connect
from async_loader.feeder.client.client import Client
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import LimitSettings, ServerSettings
from async_loader.lifecycle import Deadline, Patience
from tests.waiting_rig import until

WARM_UP, SESSIONS = 60, 120
MOST_KIB = 4096
"""34 KiB for each session."""


def come_and_go(address: str) -> None:
    with connect(address, timeout_s=60.0) as client:
        with client.table("replay").writer() as writer:
            for k in range(4):
                writer.append(obs=np.full(3, k, np.float32), reward=float(k), terminated=k == 3)
        source = client.table("replay").source()
        source.plan(8, Patience(deadline=Deadline(60.0)))
        source.close()


def kib_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
def test_sessions_that_come_and_go_leave_the_feeder_as_large_as_it_was() -> None:
    with connect("embedded", tables={"replay": 1000}, timeout_s=60.0) as host:
        assert host._embedded is not None
        pid = host._embedded.pid
        for _ in range(WARM_UP):
            come_and_go(host.address)
        host.status()
        before, descriptors = kib_of(pid), os.listdir(f"/proc/{pid}/fd")
        for _ in range(SESSIONS):
            come_and_go(host.address)
        # ZeroMQ closes a socket after its peer
        until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= len(descriptors) + 2)
        assert kib_of(pid) - before < MOST_KIB


PLACES = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeederProcess]:
    tables = {"t": 1000, "queue": {"queue": 100}}
    limits = LimitSettings(sessions=PLACES)
    settings = msgspec.structs.replace(
        ServerSettings.from_plain(tables), bind=f"ipc://{tmp_path}/feeder", limits=limits
    )
    made = FeederProcess(settings)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    made.stop()
    thread.join()
    made.__dict__.clear()


def writes(client: Client) -> None:
    client.table("t").writer().append(x=1)


def reads(client: Client) -> None:
    client.table("t").source().plan(8, Patience(deadline=Deadline(60.0)))


def leases(client: Client) -> None:
    with client.table("queue").writer() as writer:
        for i in range(8):
            writer.append(x=i)
    client.table("queue").source().plan(8, Patience(deadline=Deadline(60.0)))


KINDS: dict[str, Callable[[Client], Any]] = {
    "nothing": lambda client: None,
    "writer": writes,
    "reader": reads,
    "leases": leases,
    "sample": lambda client: [client.table("t").sample(8) for _ in range(3)],
    "weights": lambda client: client.latest("w"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_client_frees_its_place_at_once(server: FeederProcess, kind: str) -> None:
    with connect(server.address) as keeper:
        with keeper.table("t").writer() as writer:
            writer.append(x=1)
        for _ in range(5):  # there is one other place
            with connect(server.address, timeout_s=60.0) as client:
                KINDS[kind](client)
        until(lambda: len(keeper.status()["sessions"]) == 1)
        assert keeper.status()["sessions_ended"] == {"left": 5, "died": 0, "lost": 0}
        if kind == "leases":
            again = keeper.table("queue").sample(40, timeout_s=60.0)["x"]
            assert sorted(again) == sorted([*range(8)] * 5)


KEPT: list[Any] = []


def dies(address: str) -> None:
    """A client of a process that ends without `close`."""
    client = connect(address, timeout_s=60.0)
    KEPT.extend([client, client.table("t").writer()])
    KEPT[-1].append(x=1)
    client.table("t").sample(1, timeout_s=60.0)


def runs(program: str) -> None:
    start = "from tests.feeder.test_sessions_leave_nothing import dies; "
    subprocess.run([sys.executable, "-c", start + program], check=True, timeout=120)


@pytest.mark.parametrize("how", ["interpreter", "multiprocessing"])
def test_a_client_of_a_process_that_ends_in_order_has_left(server: FeederProcess, how: str) -> None:
    with connect(server.address) as keeper:
        if how == "interpreter":
            runs(f"dies({server.address!r})")
        else:
            context = multiprocessing.get_context("spawn")
            process = context.Process(target=dies, args=(server.address,))
            process.start()
            process.join(120)
        until(lambda: len(keeper.status()["sessions"]) == 1)
        assert keeper.status()["sessions_ended"] == {"left": 1, "died": 0, "lost": 0}


def test_one_that_is_turned_away_hears_of_the_limit_and_gets_the_place_of_one_that_died(
    server: FeederProcess,
) -> None:
    with connect(server.address) as keeper:
        with connect(server.address):
            with pytest.raises(Timeout, match=r"2 sessions are open, .* raise its limits.sessions"):
                connect(server.address, timeout_s=0.3)
        runs(f"dies({server.address!r}); import os; os._exit(0)")
        with connect(server.address, timeout_s=60.0):
            assert keeper.status()["sessions_ended"] == {"left": 1, "died": 1, "lost": 0}
