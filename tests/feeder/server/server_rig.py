"""A server and its peers in one thread: unix sockets, a clock that is moved by hand, rounds that
are made one by one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading

import numpy as np
import zmq
from zmtp_rig import Splitter, framed, opening

from async_loader import ReplayBuffer
from async_loader.feeder.server import Server
from async_loader.feeder.settings import LimitSettings, ServiceSettings
from async_loader.feeder.wire import (
    BatchForm,
    CloseReader,
    CloseWriter,
    Hello,
    Message,
    OpenReader,
    OpenWriter,
    Ping,
    Plane,
    Pull,
    Return,
    RowLayout,
    Status,
    Steps,
    decode,
    encode,
    schema_of,
    spec_of,
)
from async_loader.replay.kernel_build import warm
from async_loader.schema import Schema
from tests.insert_rows import insert

SCHEMA = Schema.of({"x": np.int64, "done": np.bool_})
NO_SLOTS = ()


warm()  # rounds that are made by hand begin with a server that has started


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def rows_of(values, schema: Schema = SCHEMA, flags=None, streams=None) -> tuple[RowLayout, Steps]:
    values = np.asarray(values, np.int64)
    layout, n = RowLayout.of(schema), len(values)
    columns = [
        np.broadcast_to(values.reshape(n, *[1] * len(f.shape)), (n, *f.shape))
        .astype(f.dtype)
        .copy()
        for f in schema.fields[:1]
    ]
    columns += [np.zeros((n, *f.shape), f.dtype) for f in schema.fields[1:]]
    flags = np.zeros(n, np.uint32) if flags is None else np.asarray(flags, np.uint32)
    streams = np.zeros(n, np.uint32) if streams is None else np.asarray(streams, np.uint32)
    return layout, Steps(streams, flags, np.full(n, np.nan), columns)


class Dealer:
    """A client's socket that speaks ZMTP by itself, in place of libzmq's, whose threads a round
    made by hand cannot wait for.
    """

    def __init__(self, endpoint: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(endpoint.removeprefix("ipc://"))
        self.sock.setblocking(False)
        self._splitter = Splitter()
        self._unsent = bytearray(opening())
        self._move()

    def send_multipart(self, frames) -> None:
        self._unsent += framed(frames)
        self._move()

    def _move(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]

    def receive_some(self) -> None:
        """What has come by now."""
        self._move()
        with contextlib.suppress(BlockingIOError):
            while data := self.sock.recv(1 << 20):
                self._splitter.feed(data)

    @property
    def unsent(self) -> bool:
        """Whether there is more to be sent than the kernel takes at once."""
        self._move()
        return bool(self._unsent)

    @property
    def halfway(self) -> bool:
        """Whether a message has come in part."""
        return self._splitter.halfway

    def poll(self, timeout_ms: int = 0) -> bool:
        if not self._splitter.messages:
            self.receive_some()
        return bool(self._splitter.messages)

    def recv_multipart(self) -> list[bytes]:
        return self._splitter.messages.popleft()

    def close(self) -> None:
        self.sock.close()


class Peer:
    """A client of raw sockets. ``turn`` lets the server do a round, where it has no thread of
    its own.
    """

    def __init__(
        self, context, endpoints, turn=None, *, client: bytes | None = None, wait_ms: int = 60_000
    ) -> None:
        self.client, self._turn, self._wait_ms = client or os.urandom(16), turn, wait_ms
        self.sockets = {}
        self._batch_sizes: dict[int, int] = {}
        for plane in Plane:
            if context is None:
                self.sockets[plane] = Dealer(endpoints[plane])
                continue
            self.sockets[plane] = context.socket(zmq.DEALER)
            self.sockets[plane].linger = 0
            self.sockets[plane].connect(endpoints[plane])
        self.session = self.sequence = 0

    def close(self) -> None:
        for one in self.sockets.values():
            one.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        plane: Plane,
        body,
        number: int = 0,
        sequence: int | None = None,
        *,
        session: int | None = None,
        **others,
    ) -> None:
        self.sequence += 1
        session = self.session if session is None else session
        message = Message(
            body, session, self.sequence if sequence is None else sequence, number, **others
        )
        self.sockets[plane].send_multipart(encode(message))
        while self._turn is not None and self.sockets[plane].unsent:
            self._turn()

    def receive(self, plane: Plane, wait: bool = True) -> Message | None:
        """The next message; ``None`` if a round brings no message."""
        if self._turn is not None:
            self._turn()
            while not self.sockets[plane].poll() and self.sockets[plane].halfway:
                self._turn()
        if self.sockets[plane].poll(self._wait_ms if wait and self._turn is None else 0):
            return decode(self.sockets[plane].recv_multipart())
        assert not wait, "no answer"
        return None

    def ask(self, plane: Plane, body, number: int = 0, sequence: int | None = None, **others):
        self.send(plane, body, number, sequence, **others)
        return self.receive(plane)

    def hello(self) -> Message:
        body = Hello(client=self.client, pid=os.getpid(), host="h")
        answer = self.ask(Plane.CONTROL, body, session=0)
        if answer.session:
            self.session = answer.session
            for plane in (Plane.INSERT, Plane.PULL):
                self.ask(plane, Ping())
        return answer

    def status(self) -> dict:
        return self.ask(Plane.CONTROL, Status()).body.status

    def open_writer(
        self,
        number: int = 1,
        producer: bytes = b"p" * 16,
        schema=SCHEMA,
        table: str = "t",
    ):
        body = OpenWriter(
            table=table,
            producer=producer,
            schema=None if schema is None else spec_of(schema),
        )
        return self.ask(Plane.CONTROL, body, number)

    def insert(
        self,
        sequence: int,
        values,
        number: int = 1,
        schema: Schema = SCHEMA,
        message_flags: int = 0,
        **others,
    ) -> None:
        layout, steps = rows_of(values, schema, **others)
        self.send(
            Plane.INSERT,
            insert(layout, steps),
            number,
            sequence,
            schema=layout.schema_id,
            flags=message_flags,
        )

    def close_writer(self, last: int, number: int = 1) -> None:
        self.send(Plane.CONTROL, CloseWriter(last=last), number)

    def open_reader(self, number: int = 1, batch_size: int = 4, table: str = "t", **others):
        self._batch_sizes[number] = batch_size
        return self.ask(
            Plane.CONTROL, OpenReader(table=table, batch_size=batch_size, **others), number
        )

    def close_reader(self, number: int = 1, arrived: int = 0, seen=(), unseen=()):
        back = (*seen, *unseen)
        return self.ask(Plane.CONTROL, CloseReader(arrived, len(seen), back), number)

    def pull(self, granted: int, number: int = 1) -> None:
        self.send(Plane.PULL, Pull(granted, NO_SLOTS), number)

    def give_back(self, leases, number: int = 1) -> None:
        self.send(Plane.PULL, Return(tuple(leases)), number)

    def values(self, message: Message, reader: Message, field: str = "x") -> list[int]:
        """A field (one number of it) of a BATCH, of all its batches."""
        schema = schema_of(reader.body.schema)
        form = BatchForm.of(schema, self._batch_sizes[message.number])
        place = [one.name for one in schema.fields].index(field)
        found = [
            form.layout.views(block.copy())[place][:rows].reshape(rows, -1)[:, 0]
            for block, rows, _ in form.blocks(message.body)
        ]
        return np.concatenate(found).tolist()

    def redelivered(self, message: Message, reader: Message) -> list[bool]:
        """What a BATCH of a queue says of each row."""
        return self.values(message, reader, "redelivered")


def served(**given) -> ServiceSettings:
    """Settings of a server; those of its limits are named like all others."""
    bounds = {
        name: given.pop(name) for name in list(given) if name in LimitSettings.__struct_fields__
    }
    return ServiceSettings(limits=LimitSettings(**bounds), **given)


class Rig:
    """A server whose rounds are made by hand."""

    def __init__(self, tables: dict[str, ReplayBuffer] | None = None, **settings) -> None:
        self.clock = Clock()
        self._folder = tempfile.TemporaryDirectory()
        self.endpoints = {plane: f"ipc://{self._folder.name}/{plane.value}" for plane in Plane}
        tables = tables or {"t": ReplayBuffer(1000, SCHEMA, seed=0)}
        memory = settings.pop("memory", None)
        self.server = Server(
            tables, self.endpoints, served(**settings), memory=memory, clock=self.clock
        )
        self.tables, self.server_state = tables, self.server._server_state
        self._peers: list[Peer] = []

    def turn(self) -> None:
        """What has been sent by now is received, and a round made; ACKs that it puts off are
        sent.
        """
        self.half_turn()
        self.server._insert_handler.tell(at_once=True)

    def half_turn(self) -> None:
        """As `turn`, and what is put off stays so."""
        for _ in range(3):  # connections are taken, read, and read on
            self.server._sockets.wait(0.0)
        self.server._round()

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.turn()

    def peer(self, greet: bool = True, **others) -> Peer:
        peer = Peer(None, self.endpoints, self.turn, **others)
        self._peers.append(peer)
        if greet:
            peer.hello()
        return peer

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        for peer in self._peers:
            peer.close()
        self._folder.cleanup()


def in_thread(server: Server):
    """What a fixture yields: the server, which runs meanwhile."""
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.stop()
    server.stop()
    thread.join(60)
    assert not thread.is_alive()
    server.__dict__.clear()  # pytest keeps the server until after it was looked at what is left
