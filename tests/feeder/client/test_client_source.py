"""A source against a feeder that sends what it is told: credits, ends, errors, leases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from client_rig import PATIENCE_S, FakeFeeder, make_impatient

from async_loader.errors import AsyncLoaderError, Broken, Closed, ConfigError, Timeout, Unsupported
from async_loader.feeder import connect, wire
from async_loader.feeder.wire import Message, Type
from async_loader.lifecycle import Deadline, Patience
from async_loader.replay.views import Transitions
from async_loader.source import END, Applied, Foresighted, Source
from tests.waiting_rig import until


def patience(seconds=30.0):
    return Patience(deadline=Deadline(seconds))


def plan(source, batch_size=4):
    return source.plan(batch_size, patience())


def test_batches_come_as_far_as_they_were_granted(feeder, client):
    source = client.table("replay").source(
        prefetch=2, view=Transitions(n_steps=3, gamma=0.5), seed=7, timeout_s=5.0
    )
    assert isinstance(source, Source)
    assert isinstance(source, Foresighted)
    with pytest.raises(Timeout, match="batches of table 'replay'"):
        source.plan(4, patience(0.05))
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: [feeder.batch(1, i, 4 * i) for i in range(2)])
    first = plan(source)
    assert first.lent
    assert list(first.batch) == ["obs", "reward", "index"]
    assert first.batch["index"].tolist() == [0, 1, 2, 3]
    assert first.batch["obs"].shape == (4, 2)
    assert all(array.flags.c_contiguous for array in first.batch.values())
    feeder.until(lambda: feeder.granted[1] == 3)
    assert plan(source).batch["reward"].tolist() == [4, 5, 6, 7]
    opened = feeder.readers[1].body
    assert (opened.batch_size, opened.view.n, opened.seed, opened.timeout_s) == (4, 3, 7, 5.0)
    with pytest.raises(ConfigError, match="was opened for 4"):
        source.plan(8, patience())
    source.close()
    source.close()
    with pytest.raises(Closed):
        plan(source)
    assert client.stats().batches == 2


def test_a_loader_that_plans_further_ahead_is_sent_more(feeder, client):
    source = client.table("replay").source(prefetch=2)
    source.note_ahead(4, 9)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 9)
    assert feeder.readers[1].body.prefetch == 9


def test_the_end_comes_after_the_last_batch(feeder, client):
    source = client.table("replay").source()
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1])
    feeder.do(
        lambda feeder: (feeder.batch(1, 0), feeder.tell(1, wire.End(reason="drained", count=1)))
    )
    assert plan(source) is not END
    assert plan(source) is END
    assert plan(source) is END


def test_a_timeout_of_the_feeder_is_ours_and_credits_stay(feeder, client):
    source = client.table("replay").source(timeout_s=1.0, prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(plan, source)
        feeder.until(lambda: source._channel.bell is not None)
        feeder.do(complain)
        with pytest.raises(Timeout, match="no actor inserts"):
            waits.result(PATIENCE_S)
    feeder.do(lambda feeder: feeder.batch(1, 0))
    assert plan(source).batch["index"].tolist() == [0, 1, 2, 3]


def complain(feeder):
    feeder.tell(1, wire.Error.of(wire.ErrorCode.TIMEOUT, "no actor inserts"))


def test_timeouts_of_the_feeder_that_came_while_no_plan_waited_are_not_raised_later(feeder, client):
    source = client.table("replay").source(timeout_s=1.0, prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    for number in range(2):
        for _ in range(3):
            feeder.do(complain)
        feeder.do(lambda feeder, number=number: feeder.batch(1, number))  # it comes after them
        until(lambda: source._channel.waiting)
        assert plan(source) is not END
        with pytest.raises(Timeout) as raised:
            source.plan(4, patience(0.0))
        assert "no actor inserts" not in str(raised.value)


def test_a_table_without_a_schema_is_asked_for_again(feeder, client):
    refused = []

    def later(feeder, plane, route, message):
        refused.append(message)
        if len(refused) < 3:
            feeder.error(plane, route, message, wire.ErrorCode.TIMEOUT)
        return len(refused) < 3

    feeder.hooks[Type.OPEN_READER] = later
    source = client.table("replay").source(prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.0))
    feeder.until(lambda: feeder.granted[1] == 4)
    feeder.do(lambda feeder: feeder.batch(1, 0))
    assert plan(source).batch["index"].tolist() == [0, 1, 2, 3]


def test_an_unknown_table_is_said(feeder, client):
    def unknown(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.UNKNOWN_TABLE)
        return True

    feeder.hooks[Type.OPEN_READER] = unknown
    with pytest.raises(ConfigError, match="UNKNOWN_TABLE"):
        plan(client.table("replay").source())


def test_feedback_says_what_became_of_it(feeder, client):
    source = client.table("replay").source()
    with pytest.raises(ConfigError, match="before the first batch"):
        source.update_priorities(np.arange(3), np.ones(3))
    with pytest.raises(Timeout):
        source.plan(4, patience(0.0))
    assert source.update_priorities(np.arange(3), np.ones(3)) == Applied(2, 1)
    # in one message
    assert source.update_priorities(np.arange(10_000), np.ones(10_000)).applied == 9_999
    assert client.table("replay").update_priorities(
        np.arange(4), np.ones(4, np.float32)
    ) == Applied(3, 1)
    for bad in (np.array([np.nan]), np.array([-1.0]), np.array([np.inf])):
        with pytest.raises(
            ConfigError, match=r"priority 0 of \d+ is .*: priorities are numbers from 0 to 1e\+100"
        ):
            source.update_priorities(np.arange(1), bad)


def test_a_lost_session_opens_the_reader_again(feeder, client):
    source = client.table("replay").source(prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    feeder.do(lambda feeder: feeder.batch(1, 0, 100))
    assert plan(source).batch["index"][0] == 100
    feeder.forget_sessions()
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2 and feeder.granted[1] == 4)
    feeder.do(lambda feeder: feeder.batch(1, 0, 200))
    assert plan(source).batch["index"][0] == 200


@pytest.mark.parametrize("sequence", [2, 500, 2**64 - 1])
def test_batches_that_were_not_asked_for_are_of_an_earlier_opening(feeder, client, sequence):
    source = client.table("replay").source(prefetch=2)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(
        lambda feeder: [
            feeder.batch(1, sequence, 900),
            feeder.batch(1, 0, 100),
            feeder.batch(1, 1, 200),
        ]
    )
    assert [plan(source).batch["index"][0] for _ in range(2)] == [100, 200]
    feeder.until(lambda: feeder.granted[1] == 4)
    assert client.status() == {"fine": True}


def test_a_feeder_is_told_what_has_come(feeder, client):
    source = client.table("replay").source(prefetch=2)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: [feeder.batch(1, i) for i in range(2)])
    feeder.until(lambda: client.stats().batches == 2)  # heartbeats go on, so that it is looked at
    plan(source)
    feeder.until(lambda: feeder.granted[1] == 3)
    plan(source)
    feeder.until(lambda: feeder.granted[1] == 4)
    pulled = [message.body for message in feeder.messages if message.type is Type.PULL]
    assert {(body.granted, body.received) for body in pulled} == {(2, 0), (3, 2), (4, 2)}


def test_batches_that_hold_rows_which_came_before_are_counted(feeder, client):
    source = client.table("replay").source(prefetch=4)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 4)
    feeder.do(lambda feeder: [feeder.batch(1, i, flags=i * wire.REDELIVERED) for i in range(2)])
    assert [plan(source).lent for _ in range(2)] == [True, True]
    assert client.stats().batches_redelivered == 1


def test_a_source_that_is_dropped_is_closed_there(feeder, client):
    source = client.table("replay").source()
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    del source
    feeder.until(lambda: feeder.seen[Type.CLOSE_READER] == 1)


def test_a_plan_that_waits_ends_when_the_feeder_is_lost(address):
    with FakeFeeder(address) as feeder:
        client = connect(address, on_disconnect="raise")
        source = client.table("replay").source(prefetch=4)
        with pytest.raises(Timeout):
            source.plan(4, patience(0.02))
        feeder.until(lambda: feeder.granted[1] == 4)
        feeder.do(lambda feeder: feeder.hooks.update({kind: lambda *_: True for kind in Type}))
        make_impatient(client)
        with pytest.raises(Broken, match="last heard"):
            plan(source)
        client.close()


def test_batches_that_were_here_before_a_session_was_lost_are_asked_for_anew_when_they_are_used(
    feeder, client
):
    source = client.table("replay").source(prefetch=2)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: [feeder.batch(1, i, 100 * i) for i in range(2)])
    feeder.until(lambda: client.stats().batches == 2)  # heartbeats go on, so that it is looked at
    feeder.forget_sessions()
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2)
    assert [plan(source).batch["index"][0] for _ in range(2)] == [0, 100]
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: feeder.batch(1, 0, 200))
    assert plan(source).batch["index"][0] == 200


def test_readers_that_failed_are_closed_there_and_forgotten(feeder, client):
    for number in range(1, 4):
        source = client.table("replay").source(prefetch=4)
        with pytest.raises(Timeout):
            source.plan(4, patience(0.02))
        feeder.until(lambda number=number: feeder.granted[number] == 4)
        error = wire.Error.of(wire.ErrorCode.UNSUPPORTED, "a sampler that cannot draw")
        feeder.do(lambda feeder, number=number, error=error: feeder.tell(number, error))
        with pytest.raises(Unsupported, match="cannot draw"):
            plan(source)
        feeder.until(lambda number=number: feeder.seen[Type.CLOSE_READER] == number)
        source.close()
    feeder.until(lambda: not client._connection._channels)
    assert len(client._traffic._channels) == 1, "the last one"


def test_a_reader_that_failed_is_nothing_to_wake_up_for(feeder, client, monkeypatch):
    monkeypatch.setattr("async_loader.feeder.client.reader_channel.REMIND_S", 0.01)
    source = client.table("replay").source(prefetch=2)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 2)
    feeder.do(lambda feeder: feeder.tell(1, wire.Error.of(wire.ErrorCode.UNSUPPORTED, "scripted")))
    with pytest.raises(AsyncLoaderError, match="scripted"):
        plan(source)
    line, now = source._channel, client._connection.clock()
    assert line.step(now + 60) is None


def test_what_is_said_of_a_reader_is_no_answer_to_a_request_of_another_that_has_the_same_number(
    feeder, client
):
    source = client.table("replay").source()
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))

    def complain_first(feeder, plane, route, message):
        body = wire.Error.of(wire.ErrorCode.UNSUPPORTED, "never")
        feeder.say(
            plane, route, Message(body, message.session, message.sequence, source._channel.number)
        )

    feeder.hooks[Type.PRIORITIZE] = complain_first
    assert client.table("replay").update_priorities([1, 2], [1.0, 1.0]).applied == 1
    with pytest.raises(Unsupported, match="never"):
        source.plan(4, patience())


def test_priorities_after_the_end_of_a_source_are_refused_at_once(feeder, client):
    source = client.table("replay").source()
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.hooks[Type.PRIORITIZE] = lambda *_: True
    feeder.until(lambda: feeder.granted[1])
    source.close()
    with pytest.raises(Closed):
        source.update_priorities(np.arange(1), np.ones(1))


def test_rows_of_a_feeder_that_is_no_more_are_stale_whatever_the_next_one_calls_by_their_ids(
    feeder, client
):
    sent = []

    def priorities(feeder, plane, route, message):
        both = np.frombuffer(message.data, np.int64), np.frombuffer(message.data, np.float64)
        count = message.body.count
        sent.append((both[0][:count].tolist(), both[1][count:].tolist()))
        feeder.say(plane, route, message.reply(wire.Applied(count, 0)))
        return True

    feeder.hooks[Type.PRIORITIZE] = priorities
    source = client.table("replay").source(prefetch=1)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 1)
    feeder.do(lambda feeder: feeder.batch(1, 0))
    first = plan(source).batch["index"]
    assert source.update_priorities(first, np.full(4, 1.0)) == Applied(4, 0)
    feeder.do(
        lambda feeder: (
            setattr(feeder, "incarnation", b"another" + bytes(9)),
            feeder.sessions.clear(),
        )
    )
    feeder.until(lambda: feeder.seen[Type.OPEN_READER] == 2 and feeder.granted[1] == 1)
    feeder.do(lambda feeder: feeder.batch(1, 0, 2))
    second = plan(source).batch["index"]
    assert not set(first) & set(second)
    both = np.concatenate([first, second])
    assert source.update_priorities(both, np.arange(8.0)) == Applied(4, 4)
    assert source.update_priorities(first, np.ones(4)) == Applied(0, 4)
    assert sent == [([0, 1, 2, 3], [1.0] * 4), ([2, 3, 4, 5], [4.0, 5.0, 6.0, 7.0])]


def test_priorities_under_way_to_a_feeder_that_dies_are_not_sent_to_the_next(feeder, client):
    source = client.table("replay").source(prefetch=1)
    with pytest.raises(Timeout):
        source.plan(4, patience(0.02))
    feeder.until(lambda: feeder.granted[1] == 1)

    def dies(feeder, plane, route, message):
        feeder.incarnation = b"another" + bytes(9)
        feeder.sessions.clear()
        return True

    feeder.hooks[Type.PRIORITIZE] = dies
    assert source.update_priorities(np.arange(4), np.ones(4)) == Applied(0, 4)
    assert feeder.seen[Type.PRIORITIZE] == 1


def test_a_table_that_stays_without_a_schema_is_a_timeout_as_one_without_rows_is(feeder, client):
    def none(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.TIMEOUT)
        return True

    feeder.hooks[Type.OPEN_READER] = none
    source = client.table("replay").source(timeout_s=0.01)
    with pytest.raises(Timeout, match="scripted"):
        plan(source)
    del feeder.hooks[Type.OPEN_READER]
    feeder.until(lambda: feeder.granted[1])


def test_more_readers_or_writers_than_a_session_can_have_are_refused_at_once(feeder, client):
    def full(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.LIMIT)
        return True

    feeder.hooks.update({Type.OPEN_READER: full, Type.OPEN_WRITER: full})
    with pytest.raises(Broken, match="scripted LIMIT"):
        plan(client.table("replay").source())
    with pytest.raises(Broken, match="scripted LIMIT"):
        client.table("replay").writer().append({"obs": np.zeros(2, np.float32), "reward": 0.0})
