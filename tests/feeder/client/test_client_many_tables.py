"""The status of a feeder of very many tables."""

from __future__ import annotations

import msgspec
import pytest
from thread_rig import Feeder

from async_loader import ReplayBuffer
from async_loader.errors import Malformed
from async_loader.feeder import connect, wire
from async_loader.feeder.wire.codes import CONTROL_BYTES

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


def test_a_status_goes_there_and_back_and_a_wrong_one_is_refused():
    head, packed = wire.encode(wire.Message(wire.StatusReply({"a": [1, None]})))
    assert wire.decode([head, packed]).body.status == {"a": [1, None]}
    twice = b"\x82\xa1a\x01\xa1a\x02"
    for wrong in (b"\xc1" * len(packed), b"\x01" * len(packed), twice):
        with pytest.raises(Malformed):
            wire.decode([head, wrong])
