"""Large weights on the feeder's host: all clients map one copy."""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from async_loader.errors import Broken, Malformed, Timeout
from async_loader.feeder import connect
from async_loader.feeder.client import weights
from async_loader.feeder.memory_offer import SHARED_FROM, WeightsRequest, map_weights

PATIENCE_S = 240.0
FLOATS = SHARED_FROM // 2


def values(version):
    """Weights of twice the size from which on they are shared."""
    return {"w": np.arange(FLOATS, dtype=np.float32) + version, "b": np.full(3, version)}


def mapped_kb(what):
    """What smaps says of private mappings of memory files that are that large, summed up in kB."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ", line):
            low, high = int(found[1], 16), int(found[2], 16)
            counts = "memfd:" in line and high - low >= 4 * FLOATS and found[3].endswith("p")
        elif counts and line.startswith(f"{what}:"):
            total += int(line.split()[1])
    return total


@pytest.fixture
def feeder():
    with connect("embedded", tables={"t": 10}, timeout_s=PATIENCE_S) as own:
        yield own


@pytest.fixture
def mappings(monkeypatch):
    """Notes each mapping that is made."""
    made = []

    def noted(*args):
        made.append(map_weights(*args))
        return made[-1]

    monkeypatch.setattr(weights, "map_weights", noted)
    yield made
    made.clear()


def test_all_clients_map_one_copy_and_write_to_pages_of_their_own(feeder, mappings):
    feeder.publish("policy", values(1), 1)
    with connect(feeder.address) as other:
        first, second = (one.latest("policy") for one in (feeder, other))
        assert len(mappings) == 2
        for one in (first, second):
            assert one.version == 1
            for name, given in values(1).items():
                np.testing.assert_array_equal(one.tensors[name], given)
        assert mapped_kb("Private_Dirty") == 0
        assert mapped_kb("Rss") >= 2 * 4 * FLOATS // 1024
        first.tensors["w"][:] = -1
        np.testing.assert_array_equal(second.tensors["w"], values(1)["w"])
        np.testing.assert_array_equal(feeder.latest("policy").tensors["w"], values(1)["w"])


def test_weights_stay_as_they_are_when_others_follow(feeder, mappings):
    feeder.publish("policy", values(2), 2)
    old = feeder.latest("policy", as_torch=True)
    feeder.publish("policy", values(3), 3)
    new = feeder.latest("policy", newer_than=old, as_torch=True)
    assert (old.version, new.version, len(mappings)) == (2, 3, 2)
    assert torch.equal(old.tensors["w"], torch.from_numpy(values(2)["w"]))
    assert torch.equal(new.tensors["w"], torch.from_numpy(values(3)["w"]))
    assert feeder.latest("policy", newer_than=new) is None


def test_memory_goes_with_the_last_array(feeder):
    feeder.publish("policy", values(4), 4)
    found = feeder.latest("policy")
    one = found.tensors["w"]
    del found
    gc.collect()
    assert mapped_kb("Size") >= 4 * FLOATS // 1024
    assert one[5] == values(4)["w"][5]
    del one
    gc.collect()
    assert mapped_kb("Size") == 0


@pytest.mark.parametrize(
    ("answer", "fault"), [(None, Timeout), (b"", Broken), (b"\0", Broken), (b"\1no", Malformed)]
)
def test_a_server_that_answers_something_else_is_an_error_in_time(tmp_path, answer, fault):
    path = str(tmp_path / "m")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(1)
        request = WeightsRequest(1, "policy", 1, bytes(16))
        if answer is None:
            with pytest.raises(Timeout, match=r"for 0\.2 s"):
                map_weights(path, request, SHARED_FROM, 0.2)
            return
        pid = os.fork()
        if not pid:
            caller, _ = listener.accept()
            caller.recv(4096)
            if answer:
                caller.send(answer)
            os._exit(0)
        try:
            with pytest.raises(fault):
                map_weights(path, request, SHARED_FROM, PATIENCE_S)
        finally:
            os.waitpid(pid, 0)


ACTORS, LARGE = 32, 100_000_000
ACTOR = """
import os, sys, numpy as np
from async_loader.feeder import connect
with connect(sys.argv[1], timeout_s=240) as client:
    tensors = client.latest("policy", timeout_s=240).tensors
    total = float(tensors["w"].sum())  # every page is read
    print(total, flush=True)
    sys.stdin.readline()
    smaps = open("/proc/self/smaps_rollup").read().splitlines()
    print(next(int(line.split()[1]) for line in smaps if line.startswith("Pss_Shmem")), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.soak  # 32 processes
def test_100_mb_for_32_actors_of_a_host_are_one_copy(feeder):
    """Each process counts its share of the pages that it has with others."""
    feeder.publish("policy", {"w": np.ones(LARGE // 4, np.float32)}, 1)
    command = [sys.executable, "-c", ACTOR, feeder.address]
    actors = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(ACTORS)
    ]
    try:
        for one in actors:
            assert float(one.stdout.readline()) == LARGE // 4
        for one in actors:
            one.stdin.write("all have them\n")
            one.stdin.flush()
        shares = [int(one.stdout.readline()) for one in actors]
        assert sum(shares) < 1.1 * LARGE / 1024, "kB of the pages that all of them map"
    finally:
        for one in actors:
            one.communicate("\n", timeout=PATIENCE_S)
