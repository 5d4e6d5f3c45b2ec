"""Sessions that come and go leave a feeder's process with the memory and descriptors it had."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from async_loader.feeder import connect
from async_loader.lifecycle import Deadline, Patience
from tests.waiting_rig import until

WARM_UP, SESSIONS = 60, 120
MOST_KIB = 4096
"""34 KiB for each session. Sessions of the last seconds are there: they end by silence."""


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
