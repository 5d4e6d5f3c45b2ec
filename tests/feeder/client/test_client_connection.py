"""A client and its feeder: greetings, silence, forks, ends."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from client_rig import PATIENCE_S, FakeFeeder, make_impatient, rewards, step

from async_loader.errors import Broken, Closed, ConfigError, SchemaError, Timeout, Unsupported
from async_loader.feeder import connect, wire
from async_loader.feeder.client import weights
from async_loader.feeder.client.calls import AnswerDeadline
from async_loader.feeder.wire import Type


def deaf(feeder, *_):
    return True


def test_hello_names_the_client(feeder, client):
    hello = feeder.messages[0].body
    assert hello.pid == os.getpid()
    assert hello.user_agent.startswith("async_loader/")
    assert client.status() == {"fine": True}
    feeder.until(lambda: feeder.seen[Type.PING] >= 2)  # one on each data plane
    assert client.stats().connected
    client.drain()


def test_a_drain_whose_answer_is_lost_ends_with_the_session(feeder, client):
    def only_end(feeder, plane, route, message):
        feeder.say(plane, route, wire.Message(wire.End(reason="drained", count=0), message.session))
        return True

    feeder.hooks[Type.DRAIN] = only_end
    client.drain(timeout_s=PATIENCE_S)
    assert feeder.seen[Type.DRAIN] == 1


def test_a_drain_is_not_asked_of_the_process_that_takes_the_place_of_the_drained_one(
    feeder, client
):
    def is_gone(feeder, plane, route, message):
        feeder.sessions.clear()
        feeder.incarnation = bytes(16)
        feeder.error(plane, route, message, wire.ErrorCode.UNKNOWN_SESSION)
        return True

    feeder.hooks[Type.DRAIN] = is_gone
    client.drain(timeout_s=PATIENCE_S)
    feeder.until(lambda: feeder.seen[Type.HELLO] == 2)
    assert client.status() == {"fine": True}
    assert feeder.seen[Type.DRAIN] == 1


def test_an_answer_on_its_way_is_read_though_another_connection_of_the_session_has_ended(
    feeder, client
):
    """As of a feeder that ends: it closes all connections at once, and is noticed one by one."""
    asked, noticed = threading.Event(), threading.Event()
    sockets = client._connection._sockets
    real = sockets.cut

    def cut():
        found = real()
        if asked.is_set() and not noticed.is_set():
            found = True
            noticed.set()
        return found

    def late(feeder, plane, route, message):
        asked.set()
        client._connection.wake()
        assert noticed.wait(PATIENCE_S)
        feeder.say(plane, route, message.reply(wire.Done()))
        return True

    sockets.cut = cut
    feeder.hooks[Type.DRAIN] = late
    client.drain(timeout_s=PATIENCE_S)
    assert feeder.seen[Type.DRAIN] == 1
    feeder.until(lambda: feeder.seen[Type.HELLO] == 2)  # and the session ends for all that
    assert client.status() == {"fine": True}


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
        match=r"did not answer HELLO .*/feeder is missing: does it run there\? 'async-loader",
    ):
        connect(address, timeout_s=0.05)


@pytest.mark.parametrize("address", ["nonsense", "tcp://", "carrier://pigeon", 7])
def test_a_text_that_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match="address"):
        connect(address, timeout_s=30)


@pytest.mark.parametrize("port", ["99999", "65536", "0", "9" * 5000])
def test_a_port_that_there_cannot_be_is_refused_at_once(port):
    with pytest.raises(ConfigError, match=r"is no port: give the feeder's, a number from 1 to"):
        connect(f"tcp://127.0.0.1:{port}", timeout_s=1)


def test_heartbeats_go_on_while_nothing_else_does(feeder, client):
    feeder.until(lambda: feeder.seen[Type.PING] >= 6)
    assert client.stats().sessions == 1


def test_a_bell_that_rings_late_wakes_once(feeder, client):
    connection, rounds = client._connection, []
    wait, ring = connection._sockets.wait, connection._waker._bell.ring

    def counted(left_s):
        rounds.append(left_s)
        return wait(left_s)

    def late():
        before = len(rounds)
        # a heartbeat has woken the thread, and it has looked
        feeder.until(lambda: len(rounds) > before + 1)
        ring()

    connection._sockets.wait, connection._waker._bell.ring = counted, late
    connection.wake()
    connection._waker._bell.ring = ring
    heard = feeder.seen[Type.PING]
    del rounds[:]
    feeder.until(lambda: feeder.seen[Type.PING] > heard + 3)
    assert len(rounds) < 100, "it looks again and again, for nothing"


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


@pytest.mark.parametrize(("answers_s", "left_s"), [(0.0, 0.0), (3.0, 3.0), (99.0, 10.0)])
def test_an_answer_may_take_longer_than_a_call_only_while_the_feeder_lives(answers_s, left_s):
    own = AnswerDeadline(SimpleNamespace(answers_s=answers_s), 1e-9, 10.0)
    assert own.left() == pytest.approx(left_s, abs=1.0)
    assert own.expired is (answers_s == 0.0)


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


def test_a_fork_made_while_another_thread_holds_a_lock_is_told_so_too(feeder, client):
    table, connection = client.table("replay"), client._connection
    source = table.source()
    # this thread's, as far as the child can tell: of any thread
    with connection._calls.lock, connection._waker._lock:
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            said = 0
            for call in (table.writer, lambda: source.plan(4, None), client.close):
                try:
                    call()
                except Unsupported:
                    said += 1
            # as a finalizer does, in a thread that does not hold it
            released = threading.Thread(target=connection.wake)
            released.start()
            released.join()
            os._exit(said)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


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


def test_closing_flushes_what_writers_hold_that_were_dropped(feeder):
    with connect(feeder.address) as client:
        client.table("replay").writer(linger_ms=1e6).append(step(0))
        gc.collect()
    assert rewards(feeder) == [0]


def test_closing_without_a_limit_waits_longer_than_the_client_was_told(feeder):
    client = connect(feeder.address)
    client._timeout_s = 0.0
    client.table("replay").writer(linger_ms=1e6).append(step(0), timeout_s=PATIENCE_S)
    client.close(math.inf)
    assert rewards(feeder) == [0]


def test_an_interrupted_close_ends_the_thread(feeder, monkeypatch):
    client = connect(feeder.address)
    writer = client.table("replay").writer()
    writer.append(step(0))
    monkeypatch.setattr(
        type(writer._channel), "close", lambda self, deadline: os.kill(os.getpid(), signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert not client._connection._thread.is_alive()
    with pytest.raises(Closed):
        writer.flush()


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


def test_a_version_that_is_replaced_while_it_is_read_is_read_from_the_start(feeder, client):
    client.publish("policy", {"a": np.zeros(1000)}, 1)

    def replace(feeder, plane, route, message):
        if message.body.offset and feeder.weights["policy"][0] == 1:
            specs = wire.specs_of({"a": np.ones(500)})
            feeder.weights["policy"] = (2, specs, np.ones(500).tobytes())
        return False

    feeder.hooks[Type.LATEST] = replace
    found = client.latest("policy")
    assert found.version == 2
    assert found.tensors["a"].tolist() == [1.0] * 500


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


def test_weights_that_cannot_travel_are_said(feeder, client):
    with pytest.raises(SchemaError, match="float8"):
        client.publish("policy", {"a": torch.zeros(3, dtype=torch.float8_e4m3fn)}, 1)
    with pytest.raises(ConfigError, match="no bytes"):
        client.publish("policy", {}, 1)
    with pytest.raises(ConfigError, match="version"):
        client.publish("policy", {"a": np.zeros(1)}, -1)


def test_publishing_begins_again_when_the_feeder_was_lost(feeder, client, small_parts):
    lost = []

    def lose(feeder, plane, route, message):
        if message.body.offset and not lost:
            lost.append(message)
            feeder.sessions.clear()
            feeder.parts.clear()
        elif message.body.offset and message.body.name not in feeder.parts:
            feeder.error(plane, route, message, wire.ErrorCode.GAP, 0)
            return True
        return False

    feeder.hooks[Type.PUBLISH] = lose
    client.publish("policy", {"a": np.arange(20_000.0)}, 1)
    assert client.latest("policy").tensors["a"][-1] == 19_999


def test_without_an_address_it_is_that_of_a_server_without_one(monkeypatch, tmp_path):
    from async_loader.feeder.settings import ServerSettings

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    address = str(ServerSettings.of(["replay:10"]).address())
    with FakeFeeder(address), connect() as client:
        assert client.address == address
        assert not client.owns_feeder
        assert not client.closed
        assert address in repr(client)
    assert client.closed


def test_a_name_is_what_the_status_calls_the_client(address):
    said = []
    with FakeFeeder(address) as feeder:
        feeder.hooks[Type.HELLO] = lambda feeder, plane, route, message: said.append(message.body)
        with connect(address, name="learner 1"):
            assert said[0].user_agent.startswith("learner 1 async_loader/")
    for bad in (3, "x" * 65, "two\nlines"):
        with pytest.raises(ConfigError, match="name="):
            connect(address, name=bad)
