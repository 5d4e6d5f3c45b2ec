"""The status of a feeder of very many tables: whole for clients of this version, shortened for
older ones.
"""

from __future__ import annotations

import msgspec
import pytest
from thread_rig import Feeder

from async_loader import ReplayBuffer
from async_loader.errors import Malformed
from async_loader.feeder import connect, wire
from async_loader.feeder.client.calls import Call
from async_loader.feeder.wire.bounds import CONTROL_BYTES
from async_loader.lifecycle import Deadline

TABLES = [f"table_of_robot_{i:03d}" for i in range(200)]


@pytest.fixture
def client(tmp_path):
    feeder = Feeder(tmp_path, {name: ReplayBuffer(10) for name in TABLES})
    try:
        with connect(feeder.address) as client:
            yield client
    finally:
        feeder.close()


def test_a_status_shows_all_tables(client):
    with client.table(TABLES[-1]).writer() as writer:
        writer.append(x=1.0)
    status = client.status()
    assert sorted(status["tables"]) == TABLES
    assert status["tables"][TABLES[-1]]["inserted"] == 1
    assert len(status["sessions"]) == 1
    assert len(msgspec.msgpack.encode(status)) > CONTROL_BYTES


def test_a_client_that_does_not_ask_for_all_is_sent_what_a_message_holds(client):
    reply = client._connection.call(Call(wire.Status()), Deadline(30))
    status = reply.body.status
    assert reply.data is None
    assert 40 < len(status["tables"]) < len(TABLES)
    assert len(status["tables"]) + status["tables_left_out"] == len(TABLES)
    assert status["counters"]["messages_control_in"] > 0


def test_a_whole_status_goes_there_and_back_and_a_wrong_one_is_refused():
    request = wire.decode(wire.encode(wire.Message(wire.Status(whole=True))))
    assert request.body.whole
    assert not wire.decode(wire.encode(wire.Message(wire.Status()))).body.whole
    packed = wire.pack_status({"a": [1, None]})
    reply = wire.decode(wire.encode(request.reply(wire.StatusReply(status={}), data=packed)))
    assert wire.status_in(reply.body, reply.data) == {"a": [1, None]}
    for wrong in (b"", packed[:-1], b"\x01", b"\x82\xa1a\x01\xa1a\x02"):
        with pytest.raises(Malformed):
            wire.status_in(reply.body, wrong)
    with pytest.raises(Malformed, match="STATUS_REPLY"):
        wire.encode(request.reply(wire.StatusReply(status={"a": 1}), data=packed))
