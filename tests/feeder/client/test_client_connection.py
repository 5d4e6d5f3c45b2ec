"""A client and its feeder: greetings, silence, forks, ends."""

from __future__ import annotations

import gc
import os
import threading
import time

import numpy as np
import pytest
import torch
from client_rig import PATIENCE_S, FakeFeeder, make_impatient, rewards, step

from async_loader.errors import Broken, Closed, Timeout, Unsupported
from async_loader.feeder import connect, wire
from async_loader.feeder.client import weights
from async_loader.feeder.wire import Type


def deaf(feeder, *_):
    return True


def test_a_version_that_is_not_spoken_is_said(feeder):
    def refuse(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.VERSION, 9)
        return True

    feeder.hooks[Type.HELLO] = refuse
    with pytest.raises(Unsupported, match="VERSION"):
        connect(feeder.address, timeout_s=30)


def test_a_feeder_that_drains_is_asked_again(feeder):
    def refuse_twice(feeder, plane, route, message):
        if feeder.seen[Type.HELLO] < 3:
            feeder.error(plane, route, message, wire.ErrorCode.DRAINING)
        return feeder.seen[Type.HELLO] < 3

    feeder.hooks[Type.HELLO] = refuse_twice
    connect(feeder.address).close()
    assert feeder.seen[Type.HELLO] == 3


def test_connecting_without_a_feeder_times_out(address, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(
        Timeout,
        match=r"did not answer HELLO .*takes no connection there.*: does it run there\? 'async-",
    ):
        connect(address, timeout_s=0.05)


def test_silence_ends_a_session_and_begins_another(address):
    with FakeFeeder(address) as feeder, connect(address) as client:
        feeder.hooks[Type.PING] = deaf
        make_impatient(client)
        feeder.until(lambda: feeder.seen[Type.HELLO] >= 2)
        feeder.hooks.clear()
        writer = client.table("replay").writer()
        writer.append(step(0))
        writer.flush()
        assert rewards(feeder) == [0]


def test_a_lost_feeder_raises_broken_in_clients_that_asked_for_it(address):
    with FakeFeeder(address) as feeder:
        client = connect(address, on_disconnect="raise")
        writer = client.table("replay").writer()
        writer.append(step(0))
        writer.flush()
        feeder.do(lambda feeder: feeder.hooks.update(dict.fromkeys(Type, deaf)))
        make_impatient(client)
        with pytest.raises(Broken, match=r"was lost.*last heard"):
            client.status()
        with pytest.raises(Broken, match="was lost"):
            writer.flush()
        with pytest.raises(Broken, match="was lost"):
            writer.append(step(1))
        client.close()  # which was said


def test_requests_are_asked_again_after_a_reconnect(feeder, client):
    asked = []

    def forget_once(feeder, plane, route, message):
        asked.append(message)
        if len(asked) == 1:
            feeder.sessions.clear()
        return False

    feeder.hooks[Type.STATUS] = forget_once
    assert client.status() == {"fine": True}
    assert len(asked) == 2


@pytest.mark.parametrize(
    "kind", [Type.STATUS, Type.DRAIN, Type.PUBLISH, Type.LATEST, Type.PRIORITIZE, Type.CLOSE_WRITER]
)
def test_every_call_has_its_deadline(address, kind):
    with FakeFeeder(address) as feeder:
        client = connect(address, timeout_s=30)
        feeder.hooks[kind] = deaf
        table = client.table("replay")
        writer = table.writer()
        writer.append(step(0))
        client._timeout_s = 0.0
        calls = {
            Type.STATUS: lambda: client.status(timeout_s=0.01),
            Type.DRAIN: lambda: client.drain(timeout_s=0.01),
            Type.PUBLISH: lambda: client.publish("w", {"a": np.ones(3)}, 1, timeout_s=0.01),
            Type.LATEST: lambda: client.latest("w", timeout_s=0.01),
            Type.PRIORITIZE: lambda: table.update_priorities([1], [1.0], timeout_s=0.01),
            Type.CLOSE_WRITER: lambda: writer.close(0.01),
        }
        with pytest.raises(Timeout):
            calls[kind]()
        feeder.hooks.clear()
        client.close(30) if kind is not Type.CLOSE_WRITER else client._connection.stop()


def test_a_call_to_a_dead_feeder_ends_with_its_own_time(address):
    with FakeFeeder(address):
        client = connect(address, timeout_s=PATIENCE_S)
    begun = time.monotonic()
    with pytest.raises(Timeout):
        client.table("replay").sample(4, timeout_s=0.05)
    with pytest.raises(Timeout):
        client.latest("w", timeout_s=0.05)
    assert time.monotonic() - begun < PATIENCE_S, "the client's timeout is not added"
    client._connection.stop()


def test_a_fork_is_told_to_connect_itself(feeder, client):
    writer = client.table("replay").writer()
    source = client.table("replay").source()
    pid = os.fork()
    if not pid:
        said = 0
        for call in (
            client.status, lambda: writer.append(step(0)), writer.flush, writer.close, client.close,
            lambda: client.table("x"), lambda: source.plan(4, None), lambda: client.latest("w"),
        ):  # fmt: skip
            try:
                call()
            except Unsupported:
                said += 1
        os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 8
    writer.append(step(0))
    writer.close()
    assert rewards(feeder) == [0]


def test_threads_share_a_client(feeder, client):
    answers = []

    def ask():
        for _ in range(50):
            answers.append(client.status())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [{"fine": True}] * 200


def test_close_under_load_ends_every_wait(feeder):
    client = connect(feeder.address)
    feeder.hold_acks = True
    feeder.hooks[Type.STATUS] = deaf
    writer = client.table("replay").writer(batch_rows=2, buffer_bytes=1000)
    ends = []

    def work(call):
        try:
            while True:
                call()
        except Closed as error:
            ends.append(error)

    threads = [
        threading.Thread(target=work, args=(call,))
        for call in (lambda: writer.append(step(0)), client.status)
    ]
    for thread in threads:
        thread.start()
    feeder.until(lambda: feeder.seen[Type.INSERT] > 2 and feeder.seen[Type.STATUS])
    with pytest.raises(Timeout, match="not acknowledged"):
        client.close(0.05)
    client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(ends) == 2
    with pytest.raises(Closed):
        client.status()


def test_a_client_that_is_dropped_ends_its_thread(feeder):
    client = connect(feeder.address)
    thread = client._connection._thread
    del client
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_closing_flushes_what_writers_hold(feeder):
    with connect(feeder.address) as client:
        writer = client.table("replay").writer(linger_ms=1e6)
        writer.append(step(0))
    assert rewards(feeder) == [0]
    assert writer is not None


# -- weights ---------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(weights, "PART_BYTES", 10_000)


def test_weights_go_there_and_back_in_parts(feeder, client, small_parts):
    given = {
        "a": np.arange(30_000, dtype=np.float32).reshape(100, 300),
        "b": torch.arange(4),
        "c": np.float64(2.0),
    }
    assert client.latest("policy") is None
    client.publish("policy", given, 3)
    assert feeder.seen[Type.PUBLISH] == 13
    found = client.latest("policy", newer_than=2)
    assert found.version == 3
    assert found.tensors["a"].tolist() == given["a"].tolist()
    assert found.tensors["c"] == 2.0
    assert client.latest("policy", newer_than=3) is None
    as_torch = client.latest("policy", as_torch=True).tensors["b"]
    assert torch.equal(as_torch, given["b"])
    as_torch += 1  # it is the caller's own


@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 5)])
def test_bfloat16_goes_there_and_back_as_such_and_as_bits_for_numpy(feeder, client, shape):
    given = torch.randn(shape).to(torch.bfloat16)
    strided = torch.arange(6).to(torch.bfloat16)[::2]
    client.publish("policy", {"w": given, "b": strided, "a": np.ones(3, np.uint16)}, 1)
    found = client.latest("policy", as_torch=True).tensors
    assert (found["w"].dtype, found["w"].shape) == (torch.bfloat16, given.shape)
    assert torch.equal(found["w"], given)
    assert torch.equal(found["b"], strided)
    assert found["a"].dtype == torch.uint16
    bits = client.latest("policy").tensors["w"]
    assert (bits.dtype, bits.shape) == (np.uint16, shape)
    np.testing.assert_array_equal(
        (bits.astype("u4") << np.uint32(16)).view("f4"), given.float().numpy()
    )
