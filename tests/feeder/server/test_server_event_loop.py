"""The loop through real sockets: it answers whatever others do, ends when it is told, and leaves
nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import psutil
import pytest
import zmq
from server_rig import SCHEMA, Peer, in_thread

from async_loader import ReplayBuffer
from async_loader.feeder.server import Server
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import (
    Ack,
    Batch,
    End,
    Message,
    Ping,
    Plane,
    Pong,
    Status,
    encode,
)
from tests.waiting_rig import until

CHILD = """
import os, sys
import numpy as np
from async_loader import ReplayBuffer
from async_loader.feeder.server import Server
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import Plane
from async_loader.replay.rate_limiter import MinSize
from async_loader.replay.kernel_build import warm
warm()
base = sys.argv[1]
schema = {"x": np.int64, "done": np.bool_}
endpoints = {p: f"ipc://{base}.{p.value}" for p in Plane}
server = Server({"t": ReplayBuffer(10000, schema, seed=0)}, endpoints,
        settings=ServiceSettings(drain_s=2.0))
print(os.getpid(), "torch" in sys.modules, flush=True)
server.run()
print("torch" in sys.modules, flush=True)
"""


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def served():
    """A server in a thread, on tcp."""
    server = Server(
        {"t": ReplayBuffer(10_000, SCHEMA, seed=0)},
        dict.fromkeys(Plane, "tcp://127.0.0.1:0"),
        settings=ServiceSettings(drain_s=1.0),
    )
    yield from in_thread(server)


@pytest.fixture
def child(tmp_path):
    """A server in a process: the process, and where it listens."""
    base = str(tmp_path / "s")
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, base],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = process.stdout.readline().split()
    assert len(said) == 2, process.stderr.read()
    yield process, {plane: f"ipc://{base}.{plane.value}" for plane in Plane}, said
    process.kill()
    process.communicate()


def filled(peer: Peer, rows: int = 2000) -> None:
    peer.hello()
    peer.open_writer()
    for n in range(rows // 1000):
        peer.insert(n, range(1000))
    while peer.receive(Plane.INSERT).body.applied < rows // 1000:
        continue


def test_a_server_in_a_process_serves_drains_at_sigterm_and_exits_with_0(child, context):
    process, endpoints, said = child
    assert said[1] == "False", "a server has no use for torch"
    with Peer(context, endpoints) as peer:
        filled(peer)
        peer.open_reader(batch_size=100)
        peer.pull(3)
        assert [peer.receive(Plane.PULL).body.rows for _ in range(3)] == [100] * 3
        process.send_signal(signal.SIGTERM)
        assert isinstance(peer.receive(Plane.PULL).body, End)
        assert isinstance(peer.receive(Plane.CONTROL).body, End)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "False\n", "")


def test_sigterm_ends_it_in_order_from_the_moment_at_which_it_says_that_it_is_ready(tmp_path):
    at_once = "server.run(ready=lambda: os.kill(os.getpid(), 15))"
    ended = subprocess.run(
        [sys.executable, "-c", CHILD.replace("server.run()", at_once), str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout.splitlines()[1:], ended.stderr) == (0, ["False"], "")


def test_a_server_that_is_killed_leaves_nothing(child, context):
    process, endpoints, _ = child
    with Peer(context, endpoints) as peer:
        filled(peer)
        assert not psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
    assert not [name for name in os.listdir("/dev/shm") if "async_loader" in name]


def test_a_peer_that_never_reads_affects_no_other(served, context):
    with Peer(context, served.endpoints) as good, Peer(context, served.endpoints) as deaf:
        filled(good)
        deaf.hello()
        deaf.open_reader(batch_size=1000)
        before = psutil.Process().memory_info().rss
        for i in range(3000):
            deaf.pull(64 * i)
            deaf.send(Plane.CONTROL, Status())
        good.open_reader(batch_size=100)
        for i in range(200):
            good.pull(i + 1)
            assert isinstance(good.receive(Plane.PULL).body, Batch)
        assert isinstance(good.ask(Plane.CONTROL, Ping()).body, Pong)
        assert psutil.Process().memory_info().rss - before < 200 << 20


def test_memory_stays_flat_while_clients_come_and_go(served, context):
    def visit() -> None:
        with Peer(context, served.endpoints) as peer:
            peer.hello()
            peer.open_writer(producer=os.urandom(16))
            peer.insert(0, range(100))
            assert isinstance(peer.receive(Plane.INSERT).body, Ack)
            peer.open_reader(batch_size=32)
            peer.pull(2)
            assert isinstance(peer.receive(Plane.PULL).body, Batch)

    for _ in range(20):
        visit()
    before, handles = psutil.Process().memory_info().rss, psutil.Process().num_fds()
    for _ in range(150):
        visit()
    assert psutil.Process().memory_info().rss - before < 30 << 20
    until(lambda: psutil.Process().num_fds() - handles < 50)


def garbage(good: bytes, kind: int, rng: np.random.Generator) -> list[bytes]:
    """A message that cannot be read."""
    if kind == 0:
        return [rng.bytes(36), rng.bytes(20)]
    if kind == 1:
        return [good[:20]]
    if kind == 2:
        return [good] * 3
    if kind == 3:
        return [b""]
    damaged = bytearray(good)
    damaged[int(rng.integers(0, 36))] ^= 1 << int(rng.integers(0, 8))
    return [bytes(damaged)]


def test_a_good_client_is_served_throughout_a_hundred_thousand_messages_that_are_none(
    served, context
):
    rng = np.random.default_rng(0)
    good = encode(Message(Ping(), 77))[0]
    many = [garbage(good, kind % 5, rng) for kind in range(500)]
    handles = psutil.Process().num_fds()
    with Peer(context, served.endpoints) as peer:
        filled(peer)
        peer.open_reader(batch_size=16)
        sequence = 2
        for pulled, block in enumerate(range(100), 1):
            bad = context.socket(zmq.DEALER)
            bad.linger = 0
            bad.sndhwm = 0
            bad.connect(served.endpoints[list(Plane)[block % 3]])
            for i in range(1000):
                bad.send_multipart(many[(block + i) % 500])
            with socket.create_connection(
                ("127.0.0.1", int(served.endpoints[Plane.CONTROL].rpartition(":")[2]))
            ) as raw:
                raw.sendall(rng.bytes(200))  # not even ZMTP
            peer.pull(pulled)
            assert isinstance(peer.receive(Plane.PULL).body, Batch)
            peer.insert(sequence, [1, 2, 3])
            sequence += 1
            assert peer.receive(Plane.INSERT).body.applied == sequence
            assert isinstance(peer.ask(Plane.CONTROL, Ping()).body, Pong)
            bad.poll(2000)
            bad.close()
        counters = served.counters
        assert counters["refused_malformed"] > 1000
        assert counters["faults"] == 0
        assert len(served._server_state.sessions) == 1
        status = peer.status()
        assert status["tables"]["t"]["rows_in"] == 2000 + 300
    # ZeroMQ closes its sockets in a thread of its own
    until(lambda: psutil.Process().num_fds() < handles + 100)
