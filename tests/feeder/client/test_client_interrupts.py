"""Ctrl-C at every point of a client's calls: the object works on, nothing stays, counts are
right.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
from client_rig import FakeFeeder, rewards, step
from storm_rig import Struck, strike

from async_loader.errors import Timeout
from async_loader.feeder import connect, wire
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.client import Client
from async_loader.feeder.wire import Type
from async_loader.lifecycle import Deadline, Patience
from async_loader.schema import Field, Schema

MOST_POINTS = 3000
LINKED = Schema.of({"obs": Field((2,), np.float32, next="next_obs"), "reward": np.float32})
WEIGHTS = {"w": np.arange(5000, dtype=np.uint8)}


@pytest.fixture
def feeder(address):
    # No heartbeat within a test: it would wake up the connection's thread where a call failed to.
    with FakeFeeder(address, heartbeat_s=300.0, silence_s=900.0) as feeder:
        yield feeder


@pytest.fixture
def client(feeder):
    client = connect(feeder.address, timeout_s=20)
    yield client
    client.close(30)


def at_each_point(
    call: Callable[[], object], after: Callable[[Struck], None], every: int = 1
) -> None:
    """Strike the call at one point after another, until it ends before the point is reached."""
    for at in range(1, MOST_POINTS, every):
        struck = strike(call, at)
        if not struck.where:
            assert struck.raised is None
            break
        assert isinstance(struck.raised, KeyboardInterrupt), struck
        after(struck)
        del struck
    else:
        raise AssertionError("the call has more points than that")
    assert at > 10, "there are points to strike"


def check_clean(client: Client, lines: int) -> None:
    """No request, no waiting thread and no line is left of calls that were interrupted."""
    client.status()  # answers come in order: those of requests that were forgotten have come
    connection = client._connection
    assert not connection._calls.pending
    assert not connection._calls.unsent
    assert not connection.news._gates
    assert len(connection._channels) == lines
    assert not any(line.news._gates for line in connection._channels.values())


@pytest.mark.parametrize(
    ("batch_rows", "kind"),
    [(4, "goes on"), (4, "ends"), (1, "goes on"), (1, "ends"), (4, "is ended later")],
)
def test_an_interrupted_append_added_its_step_or_did_not_and_the_writer_says_which(
    feeder, client, batch_rows, kind
):
    feeder.schema = LINKED
    writer = client.table("replay").writer(batch_rows=batch_rows)
    writer.append(step(0))
    expected, ended = [0.0], 0

    def append() -> None:
        more = {"terminated": True, "final_obs": np.zeros(2, np.float32)} if kind == "ends" else {}
        writer.append(step(writer.steps), **more)

    def end() -> None:
        writer.end_episode(final_obs=np.zeros(2, np.float32), truncated=True)

    def after(struck: Struck) -> None:
        added = writer.steps - len(expected)
        assert added in (0, 1), struck
        expected.extend([float(len(expected))] * added)

    if kind == "is ended later":
        at_each_point(end, after)
        assert writer.steps == 1
    else:
        at_each_point(append, after)
    expected[:] = map(float, range(writer.steps))
    writer.flush(20)
    assert rewards(feeder) == expected
    (rows,) = feeder.rows.values()
    for (_, flags, _), (_, following, _) in zip(rows, [*rows[1:], (0, 0, 0.0)], strict=True):
        if flags & wire.TERMINATED:
            assert following & wire.FINAL, "a step and the observation after it are added together"
            ended += 1
    assert bool(ended) == (kind == "ends")
    check_clean(client, 1)
    assert writer._queue.hurried <= writer._queue.outbox.done_total


@pytest.mark.parametrize("rows", [3, 40])
def test_an_interrupted_extend_added_the_first_rows_and_the_writer_says_how_many(
    feeder, client, rows
):
    writer = client.table("replay").writer(batch_rows=16)
    writer.append(step(0))
    expected, given = [0.0], 0

    def extend() -> None:
        nonlocal given
        given += 1
        values = 1000.0 * given + np.arange(rows, dtype=np.float32)
        writer.extend(obs=np.stack([values, values], 1), reward=values)

    def after(struck: Struck) -> None:
        added = writer.steps - len(expected)
        assert 0 <= added <= rows, struck
        expected.extend(1000.0 * given + i for i in range(added))

    at_each_point(extend, after)
    expected.extend(1000.0 * given + i for i in range(rows))
    writer.flush(20)
    assert writer.steps == len(expected)
    assert rewards(feeder) == expected
    check_clean(client, 1)


@pytest.mark.slow
def test_an_append_that_drops_the_oldest_and_is_interrupted_leaves_counts_that_add_up(
    feeder, client
):
    feeder.hooks[Type.INSERT] = lambda *_: True  # nothing is ever acknowledged
    feeder.window = (1, 1)
    writer = client.table("replay").writer(batch_rows=1, buffer_bytes=200, overflow="drop_oldest")
    writer.append(step(0))
    feeder.until(lambda: feeder.seen[Type.INSERT])
    for i in range(1, 20):
        writer.append(step(i))

    def after(struck: Struck) -> None:
        line = writer._channel
        with line.lock:
            box = writer._queue.outbox
            assert box.nbytes == sum(entry.nbytes for entry in box.entries), struck
            held = sum(entry.steps for entry in box.entries)
            begun = 0 if writer._queue.buffer is None else writer._queue.buffer.count
            assert held + begun + box.counts.rows_dropped == writer._queue.steps(), struck

    at_each_point(lambda: writer.append(step(7)), after)
    del feeder.hooks[Type.INSERT]
    feeder.window = (1 << 20, 1 << 10)
    feeder.forget_sessions()


def test_interrupted_flushes_leave_no_message_in_a_hurry(feeder, client):
    writer = client.table("replay").writer()
    for i in range(3):
        writer.append(step(i))

    def flush() -> None:
        writer.append(step(writer.steps))
        writer.flush(20)

    at_each_point(flush, lambda _: None)
    writer.flush(20)
    assert rewards(feeder) == [float(i) for i in range(writer.steps)]
    assert writer._queue.hurried == writer._queue.outbox.done_total, "no message is waited for"
    check_clean(client, 1)


@pytest.mark.parametrize("name", ["status", "publish", "latest", "ask", "updates"])
def test_an_interrupted_request_leaves_nothing_and_the_next_is_answered(feeder, client, name):
    version = 0

    def publish() -> None:
        nonlocal version
        version += 1
        client.publish("net", WEIGHTS, version)

    def ask() -> None:
        connection = client._connection
        call = connection.ask(Call(wire.Status()))
        connection.answer(call, Deadline(20))

    publish()
    table = client.table("replay")
    calls = {
        "status": client.status,
        "publish": publish,
        "latest": lambda: client.latest("net"),
        "ask": ask,
        "updates": lambda: table.update_priorities([1, 2], [0.5, 0.5]),
    }
    every = 1 if name in ("status", "ask") else 2
    at_each_point(calls[name], lambda _: None, every)
    publish()
    found = client.latest("net")
    assert found.version == version
    assert (found.tensors["w"] == WEIGHTS["w"]).all()
    check_clean(client, 0)


def test_an_interrupted_request_is_not_sent_again_in_a_later_session(feeder, client, monkeypatch):
    client.status()
    connection = client._connection
    feeder.hooks[Type.STATUS] = lambda *_: True  # it is never answered

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(connection, "wake", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.status()
    assert not connection._calls.pending
    feeder.hooks.clear()
    feeder.forget_sessions()
    check_clean(client, 0)


def test_an_interrupted_close_of_a_writer_can_be_made_again(feeder, client):
    made = 0

    def after(struck: Struck) -> None:
        nonlocal made
        current[0].close(20)
        made += 1
        current[0] = opened()

    def opened():
        writer = client.table("replay").writer()
        writer.append(step(made))
        return writer

    current = [opened()]
    at_each_point(lambda: current[0].close(20), after)
    assert sorted(rewards(feeder)) == [float(i) for i in range(made + 1)]
    check_clean(client, 0)


def test_an_interrupted_call_for_a_writer_leaves_no_line_behind(feeder, client):
    table = client.table("replay")
    at_each_point(lambda: table.writer().close(20), lambda _: None)
    for line in client._traffic.open_writers():  # those that were made, and not closed
        line.closing = True
    client._connection.wake()
    for _ in range(100):
        client.status()  # a round trip in which lines go on to close
    check_clean(client, 0)


def test_an_interrupted_plan_loses_no_batch_of_a_queue(feeder, client):
    feeder.leases = None
    source = client.table("replay").source(prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, Patience(deadline=Deadline(0.02)))
    feeder.until(lambda: feeder.granted[1] == 4)
    line = source._channel

    def send() -> None:
        if not line.deliveries.inbox.waiting:
            feeder.do(
                lambda feeder: feeder.batch(
                    1, line.deliveries.credit.received, 10 * line.deliveries.credit.received
                )
            )

    def plan() -> None:
        source.plan(4, Patience(deadline=Deadline(20)))

    send()
    at_each_point(plan, lambda _: send())
    assert line.deliveries.bell is None
    with line.lock:
        known = {lease.number for lease in source._planned_leases} | {
            came.lease.number for came in line.deliveries.inbox.waiting if came.lease is not None
        }
        came = line.deliveries.credit.received
    assert known == set(range(came)), "each batch that came goes back, or was handed out"
    source.close(20)
    body = [one.body for one in feeder.messages if one.type is Type.CLOSE_READER][-1]
    assert set(body.unused.tolist()) == set(range(came))
    check_clean(client, 0)


def test_an_interrupted_close_of_a_source_gives_back_what_it_had(feeder, client):
    feeder.leases = None
    for at in range(1, 60, 2):
        source = client.table("replay").source(prefetch=2)
        with pytest.raises(Timeout):
            source.plan(4, Patience(deadline=Deadline(0.005)))
        line = source._channel
        feeder.until(lambda line=line: feeder.granted[line.number] == 2)
        feeder.do(lambda feeder, line=line: feeder.batch(line.number, 0))
        source.plan(4, Patience(deadline=Deadline(20)))
        struck = strike(lambda source=source: source.close(20), at)
        source.close(20)
        said = [one.body for one in feeder.messages if one.type is Type.CLOSE_READER]
        assert said[-1].unused.tolist() == [0], struck
        if not struck.where:
            break
    check_clean(client, 0)


def test_an_interrupted_connect_or_close_of_a_client_leaves_no_thread(feeder):
    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "async-loader-feeder-client"]

    def connected() -> None:
        connect(feeder.address, timeout_s=20).close(5)

    def after(struck: Struck) -> None:
        raised = struck.raised
        while raised is not None:  # its frames hold the client
            raised.__traceback__, raised = None, raised.__context__
        gc.collect()
        for thread in threads():
            thread.join(10)
        assert not threads(), struck

    at_each_point(connected, after, every=11)
