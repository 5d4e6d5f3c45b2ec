"""A client in another language (`foreign_client`) is understood, and understands."""

from __future__ import annotations

import ast
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import foreign_client
import numpy as np
import pytest
import zmq
from foreign_client import Client, pack, unpack
from wire_rig import SMALL, examples, three_steps

from async_loader import Schema
from async_loader.feeder import wire

PATIENCE_S = 20


class Server:
    """A ROUTER that answers with whatever a test tells it to."""

    def __init__(self, router: zmq.Socket[bytes], client: Client) -> None:
        self.router = router
        self.client = client

    def take(self) -> wire.Message:
        assert self.router.poll(PATIENCE_S * 1000)
        self.to, *frames = self.router.recv_multipart(copy=False)
        try:
            return wire.decode(frames)
        except wire.Malformed as error:
            self.answer(wire.refuse(error))
            raise

    def answer(self, message: wire.Message) -> None:
        self.router.send_multipart([self.to, *wire.encode(message)])


@pytest.fixture
def server() -> Iterator[Server]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client = Client("127.0.0.1", port, PATIENCE_S)
        try:
            yield Server(router, client)
        finally:
            client.close()


def test_the_foreign_client_has_nothing_but_the_standard_library():
    tree = ast.parse(Path(foreign_client.__file__).read_text())
    found = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    found |= {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    assert found <= set(sys.stdlib_module_names)


def test_it_says_hello_opens_a_writer_inserts_rows_and_is_acknowledged(server):
    client = server.client
    hello = {"client": bytes(range(16)), "pid": 4711, "host": "elsewhere"}
    client.send(foreign_client.HELLO, [pack(hello)])
    said = server.take()
    assert (said.body.pid, said.body.host) == (4711, "elsewhere")
    server.answer(
        wire.Message(examples()["WELCOME"].body, session=2**63 + 5, sequence=said.sequence)
    )
    welcome = client.receive()
    assert (welcome.type, welcome.sequence) == (foreign_client.WELCOME, 0)
    assert unpack(welcome.frames[0])["tables"] == ["replay"]

    fields = [
        ["obs", 11, [2], 1, "next_obs", 0],
        ["action", 8, [], 1, None, 0],
        ["reward", 11, [], 1, None, 0],
    ]
    schema = [[0, ["obs", "action", "reward"], [None, None, None]], fields]
    wanted = {"table": "replay", "producer": b"p" * 16, "epoch": 1, "schema": schema}
    client.send(foreign_client.OPEN_WRITER, [pack(wanted)], session=welcome.session, sequence=1)
    opened = server.take()
    assert wire.schema_of(opened.body.schema) == SMALL
    layout = wire.RowLayout.of(wire.schema_of(opened.body.schema))
    writer = wire.Writer(
        schema=opened.body.schema,
        applied=0,
        window_bytes=1,
        window_rows=1,
        resumed=False,
    )
    server.answer(wire.Message(writer, opened.session, opened.sequence, 7, layout.schema_id))
    answer = client.receive()
    assert (answer.type, answer.session, answer.sequence) == (
        foreign_client.WRITER,
        welcome.session,
        1,
    )
    assert unpack(answer.frames[0])["applied"] == 0

    nan = float("nan")
    rows = [(0, 0, nan, 7, 0.5, 1, 0.25), (0, 2, 2, -8, 1.5, 2, 1), (0, 4, nan, 0, 2.5, 3, 0)]
    body = b"".join(struct.pack("<IIdqfff4x", *row) for row in rows)
    client.send(
        foreign_client.INSERT,
        [body],
        session=answer.session,
        number=answer.number,
        schema=answer.schema,
        rows=3,
    )
    inserted = server.take()
    assert (inserted.session, inserted.number, inserted.sequence) == (welcome.session, 7, 0)
    wire.check_id(inserted.schema, layout.schema_id)
    steps, expected = wire.read_insert(inserted.body, layout), three_steps()
    for got, want in zip(steps.columns, expected.columns, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(steps.flags, expected.flags)
    np.testing.assert_array_equal(steps.priorities, expected.priorities)

    server.answer(inserted.reply(wire.Ack(1, 1 << 20, 1000)))
    ack = client.receive()
    assert (ack.type, ack.number) == (foreign_client.ACK, 7)
    assert unpack(ack.frames[0]) == [1, 1 << 20, 1000]


def test_it_can_read_why_it_is_refused(server):
    server.client.send(foreign_client.HELLO, [b""], sequence=5, version=9)
    with pytest.raises(wire.Malformed, match="version 9"):
        server.take()
    error = server.client.receive()
    said = unpack(error.frames[0])
    assert (error.type, error.sequence, said["code"], said["expected"]) == (
        foreign_client.ERROR,
        5,
        1,
        wire.VERSION,
    )
    assert "update the older side" in said["text"]
    assert said["retryable"] is False


def test_it_opens_a_reader_and_finds_the_arrays_of_two_batches_in_one_message(server):
    client = server.client
    wanted = {"table": "replay", "batch_size": 2, "together": 8}
    client.send(foreign_client.OPEN_READER, [pack(wanted)], session=81, sequence=1)
    opened = server.take()
    assert (opened.body.batch_size, opened.body.together, opened.body.prefetch) == (2, 8, 4)
    schema = Schema.of({"done": "?", "index": "i8"})
    reader = wire.Reader(schema=wire.spec_of(schema), leased=False, transport="tcp")
    server.answer(wire.Message(reader, opened.session, opened.sequence, 7, wire.schema_id(schema)))
    answer = client.receive()
    _, fields = unpack(answer.frames[0])["schema"]
    assert [(field[0], field[1], field[2]) for field in fields] == [
        ("done", 1, []),
        ("index", 8, []),
    ]

    client.send(foreign_client.PULL, [pack([4, []])], session=81, number=answer.number)
    pulled = server.take()
    assert (
        pulled.number,
        pulled.body.granted,
        len(pulled.body.returned),
    ) == (7, 4, 0)
    server.answer(wire.Message(examples()["BATCH of two"].body, 81, 5, 7, answer.schema))
    came = client.receive()
    assert (came.type, came.sequence, came.rows, len(came.frames)) == (
        foreign_client.BATCH,
        5,
        4,
        1,
    )
    block = 64 + 64
    found = [
        (
            struct.unpack_from("<2?", came.frames[0], at),
            struct.unpack_from("<2q", came.frames[0], at + 64),
        )
        for at in (0, block)
    ]
    assert found == [((False, True), (5, 6)), ((True, False), (7, 8))]
    assert len(came.frames[0]) == came.rows // 2 * block
