"""Hostile connections to every socket of a feeder, beside honest clients. Has no opinion:
`Fuzz.wrong` says what was found.

A server over tcp and one over ipc, with its socket for shared memory, are processes of their own.
An input is one connection: what it sends is random, damaged, cut off, endless, or well-formed and
hostile, as routing ids that others have, heartbeats behind messages that are stopped, and lengths
that cannot be. Honest clients write and read all the time; at the end every row that a server
acknowledged has to be there, in the server that was there at the beginning.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from zmtp_rig import COMMAND, LONG, MORE, frame, framed, greeting, opening, ping

from async_loader import AsyncDataLoader
from async_loader.feeder import connect
from async_loader.feeder.wire import Hello, Message, Ping, Pull, encode

MIB = 1 << 20
PATIENCE_S = 60.0
EVERY = 10_000
"""Inputs between two looks at the servers' memory."""
HONEST_S = 0.02
"""Between two rows of an honest client."""
CAPACITY = 1 << 17
CONTROL, INSERT, PULL, MEMORY = "control", "insert", "pull", "memory"
CHILD = """
import os, sys
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
one = FeederProcess(ServerSettings(bind=sys.argv[1],
        tables={"replay": {"capacity": int(sys.argv[2])}}))
print(one.address, flush=True)
one.run()
"""


class Served:
    """A server's process, and an honest client of it."""

    def __init__(self, bind: str) -> None:
        command = [sys.executable, "-c", CHILD, bind, str(CAPACITY)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise RuntimeError(self.process.stderr.read())
        self.about = psutil.Process(self.process.pid)
        self.client = connect(self.address, timeout_s=PATIENCE_S)
        self.incarnation = self.client.status()["incarnation"]
        self.ends = self._ends()
        self.written, self.errors = 0, []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _ends(self) -> dict[str, object]:
        """Where each plane listens, as `socket.connect` takes it."""
        if self.address.startswith("ipc://"):
            path = self.address.removeprefix("ipc://")
            return {
                CONTROL: path,
                INSERT: f"{path}.insert",
                PULL: f"{path}.pull",
                MEMORY: f"{path}.memory",
            }
        planes = self.client._connection._sockets
        found = {CONTROL: self.address}
        for plane in (INSERT, PULL):
            found[plane] = (
                planes._sockets[type(next(iter(planes._sockets)))[plane.upper()]]
                .last_endpoint.decode()
                .rstrip("\0")
            )
        return {plane: ("127.0.0.1", int(end.rpartition(":")[2])) for plane, end in found.items()}

    def begin(self) -> None:
        self._thread.start()

    def _write(self) -> None:
        """Rows, one after the other, each acknowledged; and a batch now and then."""
        try:
            table = self.client.table("replay")
            with table.writer(schema={"x": np.int64}, batch_rows=1) as writer:
                while not self._over.wait(HONEST_S):
                    writer.append(x=self.written, timeout_s=PATIENCE_S)
                    writer.flush(timeout_s=PATIENCE_S)
                    self.written += 1
                    if self.written == 1:
                        self._take(table)
        except Exception as error:
            self.errors.append(repr(error))

    def _take(self, table) -> None:
        with AsyncDataLoader(table.source(timeout_s=PATIENCE_S), 4, timeout_s=PATIENCE_S) as loader:
            next(loader)

    @property
    def rss(self) -> int:
        return self.about.memory_info().rss

    def end(self) -> list[str]:
        """What an honest client found."""
        self._over.set()
        self._thread.join(PATIENCE_S)
        wrong = list(self.errors)
        try:
            status = self.client.status(timeout_s=PATIENCE_S)
            self._take(self.client.table("replay"))
            table = status["tables"]["replay"]
            if status["incarnation"] != self.incarnation or status["pid"] != self.process.pid:
                wrong.append("another server answers")
            if not self.written <= table["inserted"] <= self.written + len(self.errors):
                wrong.append(
                    f"{self.written} rows were acknowledged, {table['inserted']} are there"
                )
            if faults := status["connections"]["faults"] + status["counters"]["faults"]:
                wrong.append(f"the server says that {faults} inputs met faults of its own")
        except Exception as error:
            wrong.append(repr(error))
        return [f"{self.address}: {one}" for one in wrong]

    def close(self) -> list[str]:
        with contextlib.suppress(Exception):
            self.client.close(timeout_s=5.0)
        self.process.terminate()
        try:
            _, errors = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            _, errors = self.process.communicate()
        if self.process.returncode or errors:
            return [f"{self.address} ended with {self.process.returncode}: {errors[-1000:]}"]
        return []


class Fuzz:
    """``count`` inputs, drawn from a seed."""

    def __init__(self, folder: str, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._servers = [Served("tcp://127.0.0.1:*"), Served(f"ipc://{folder}/s")]
        self._places = [(one, plane) for one in self._servers for plane in one.ends]
        self._makers = [
            self._noise,
            self._damaged,
            self._cut_off,
            self._identity,
            self._stopped_and_pinged,
            self._lengths,
            self._messages,
            self._heartbeats,
            self._early,
        ]
        self.inputs = 0
        self.kinds: dict[str, int] = {}
        self.rss: list[list[int]] = []
        self.wrong: list[str] = []

    def run(self, count: int) -> Fuzz:
        """Play, and look at what is left."""
        try:
            for one in self._servers:
                one.begin()
            for self.inputs in range(1, count + 1):
                self._one()
                if self.inputs % EVERY == 0:
                    self.rss.append([one.rss for one in self._servers])
                if self.inputs % 100 == 0 and any(
                    one.process.poll() is not None for one in self._servers
                ):
                    self.wrong.append(f"a server ended after {self.inputs} inputs")
                    break
            for one in self._servers:
                self.wrong += one.end()
        finally:
            for one in self._servers:
                self.wrong += one.close()
        return self

    @property
    def growth_mib(self) -> float:
        """The most that a server grew by in EVERY inputs, on average, after the first EVERY."""
        if len(self.rss) < 2:
            return 0.0
        spans = len(self.rss) - 1
        return (
            max(
                (last - first) / spans
                for first, last in zip(self.rss[0], self.rss[-1], strict=True)
            )
            / MIB
        )

    def _one(self) -> None:
        server, plane = self._random.choice(self._places)
        maker = self._offer if plane == MEMORY else self._random.choice(self._makers)
        key = f"{server.address[:3]} {plane} {maker.__name__.strip('_')}"
        self.kinds[key] = self.kinds.get(key, 0) + 1
        with contextlib.suppress(OSError):
            if plane == MEMORY:
                maker(server.ends[plane])
            else:
                self._send(server.ends[plane], maker())

    def _send(self, end, data: bytes) -> None:
        sock = socket.socket(socket.AF_UNIX if isinstance(end, str) else socket.AF_INET)
        with sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(end)
            if self._random.random() < 0.2:  # without a farewell
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            at = 0
            while at < len(data):
                step = (
                    self._random.choice((1, 10, 64, 1 << 16, 1 << 20))
                    if len(data) < 300
                    else 1 << 20
                )
                sock.sendall(data[at : at + step])
                at += step
            if self._random.random() < 0.1:
                sock.settimeout(0.005)
                sock.recv(1 << 16)

    # -- inputs ----------------------------------------------------------------------------------

    def _bytes(self, most: int) -> bytes:
        return self._random.randbytes(self._random.randrange(most + 1))

    def _noise(self) -> bytes:
        return self._random.choice((b"", greeting(), opening(), greeting(b"CURVE"))) + self._bytes(
            200
        )

    def _early(self) -> bytes:
        name = self._random.choice(
            (b"READY", b"HELLO", b"INITIATE", b"ERROR", b"PING", b"", b"\xff")
        )
        return greeting() + frame(bytes([len(name)]) + name + self._bytes(60), COMMAND)

    def _damaged(self) -> bytes:
        data = bytearray(opening(self._bytes(5)) + self._messages_of(3))
        for _ in range(self._random.randrange(1, 6)):
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return bytes(data)

    def _cut_off(self) -> bytes:
        data = opening() + self._messages_of(3) + frame(bytes(self._random.randrange(100_000)))
        return data[: self._random.randrange(len(data))]

    def _identity(self) -> bytes:
        """One that the next peer of a ROUTER of libzmq would get, or that of another."""
        start = self._random.choice((0x6B8B4567, 0x327B23C6, 0x643C9869, 0))
        number = struct.pack(">I", (start + self._random.randrange(60)) % (1 << 32))
        return opening(
            self._random.choice((b"\0" + number, b"same", b"\0", bytes(255)))
        ) + self._messages_of(1)

    def _stopped_and_pinged(self) -> bytes:
        one = framed(encode(Message(Ping(), 5)))
        return opening() + one * self._random.choice((70, 260)) + ping(b"ctx") + one * 40

    def _lengths(self) -> bytes:
        size = self._random.choice(
            (0, 255, 256, 1 << 16, 1 << 20, 1 << 26, (1 << 26) + 1, 1 << 40, (1 << 64) - 1)
        )
        flags = self._random.choice((LONG, LONG | MORE, LONG | COMMAND, LONG | 0x80))
        return opening() + bytes([flags]) + struct.pack(">Q", size) + self._bytes(1000)

    def _heartbeats(self) -> bytes:
        return opening() + b"".join(
            self._random.choice(
                (
                    ping(self._bytes(20), self._random.randrange(1 << 16)),
                    frame(b"\4PING", COMMAND),
                    ping(),
                )
            )
            for _ in range(self._random.randrange(1, 200))
        )

    def _messages(self) -> bytes:
        return opening() + self._messages_of(self._random.randrange(1, 20))

    def _messages_of(self, count: int) -> bytes:
        """Of the wire, some damaged: frames too many, headers that are wrong, bodies that are
        none.
        """
        found = b""
        for _ in range(count):
            hello = Hello(client=self._random.randbytes(16), pid=1, host="h")
            body = self._random.choice((Ping(), Pull(1, ()), hello))
            frames = [bytes(one) for one in encode(Message(body, self._random.getrandbits(63)))]
            kind = self._random.randrange(4)
            if kind == 0:
                frames.append(self._bytes(50))
            elif kind == 1:
                frames[0] = self._random.randbytes(36)
            elif kind == 2:
                frames = [b""] * self._random.randrange(1, 50)
            found += framed(frames)
        return found

    def _offer(self, path: str) -> None:
        """To the socket for shared memory."""
        record = self._random.choice((self._bytes(64), b"ALM1" + self._random.randbytes(28), b""))
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock,
            contextlib.ExitStack() as stack,
        ):
            sock.settimeout(PATIENCE_S)
            sock.connect(path)
            fds = [os.memfd_create("fuzz") for _ in range(self._random.randrange(4))]
            for fd in fds:
                stack.callback(os.close, fd)
            if self._random.random() < 0.8:
                socket.send_fds(sock, [record], fds)
            if self._random.random() < 0.1:
                sock.settimeout(0.005)
                sock.recv(512)
