"""A writer against a feeder that does what it is told: batching, windows, losses, restarts."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
from client_rig import OBS, PATIENCE_S, FakeFeeder, rewards, step

from async_loader.errors import Broken, Closed, ConfigError, Malformed, SchemaError, Timeout
from async_loader.feeder import connect, wire
from async_loader.feeder.client.row_queue import WriterOptions
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase
from async_loader.feeder.wire import FINAL, SHOWN, TERMINATED, TRUNCATED, Plane, Type
from async_loader.lifecycle import Deadline, Patience
from async_loader.schema import Field, Schema

LATE = 1e6  # a linger that never comes


def fill(add, text):
    """Call it until it times out; how often it did not."""
    for i in range(1000):
        try:
            add(i)
        except Timeout as error:
            return i if text in str(error) else -1
    raise AssertionError("it never times out")


def append_and_flush(writer, i):
    writer.append(step(i))
    writer.flush()


def test_rows_go_out_by_number(feeder, client):
    writer = client.table("replay").writer(batch_rows=4, linger_ms=LATE)
    for i in range(8):
        writer.append(step(i))
    feeder.until(lambda: len(rewards(feeder)) == 8)
    # a writer that waits for an ACK for too long sends the last again
    assert sorted(set(feeder.inserts)) == [0, 1]
    writer.append(step(8))
    writer.close()
    assert rewards(feeder) == list(range(9))


def test_rows_go_out_when_they_have_lingered(feeder, client):
    writer = client.table("replay").writer(batch_rows=1000, linger_ms=1)
    writer.append(**step(0))
    feeder.until(lambda: rewards(feeder) == [0])
    writer.append(**step(1))
    feeder.until(lambda: rewards(feeder) == [0, 1])


def test_flush_waits_for_the_acknowledgement(feeder, client):
    writer = client.table("replay").writer(linger_ms=LATE)
    feeder.hold_acks = True
    writer.append(step(0))
    with pytest.raises(Timeout, match="not acknowledged"):
        writer.flush(0.01)
    feeder.hold_acks = False
    writer.append(step(1))
    writer.flush()
    assert rewards(feeder) == [0, 1]
    assert client.stats().rows_acked == 2
    assert client.stats().bytes_kept == 0


@pytest.mark.slow
def test_no_more_than_the_window_is_under_way(address):
    with FakeFeeder(address, window=(1 << 20, 8)) as feeder, connect(address) as client:
        feeder.hold_acks = True
        writer = client.table("replay").writer(batch_rows=4, linger_ms=LATE)
        for i in range(40):
            writer.append(step(i))
        feeder.until(lambda: 1 in feeder.inserts)
        client.status()  # whatever the IO thread had to send is sent by now
        assert sorted(set(feeder.inserts)) == [0, 1]  # the last may be sent again
        feeder.hold_acks = False
        writer.flush()
        assert rewards(feeder) == list(range(40))


@pytest.mark.slow
def test_a_full_buffer_makes_append_wait_and_time_out(feeder, client):
    feeder.hold_acks = True
    writer = client.table("replay").writer(batch_rows=4, linger_ms=LATE, buffer_bytes=1000)
    writer.append(step(0))  # it is open from here on
    count = 1 + fill(lambda i: writer.append(step(1 + i), timeout_s=0.01), "raise buffer_bytes")
    assert count > 4
    feeder.hold_acks = False
    writer.append(step(count))
    writer.flush()
    assert rewards(feeder) == list(range(count + 1))


def test_a_call_without_a_limit_waits_as_long_as_the_client_was_told_and_loses_nothing(feeder):
    with connect(feeder.address, timeout_s=30) as client:
        client._timeout_s = 0.2
        writer = client.table("replay").writer(buffer_bytes=200, batch_rows=1)
        writer.append(step(0), timeout_s=30)
        writer.flush(30)
        feeder.hooks = {kind: lambda *_: True for kind in (Type.INSERT, Type.OPEN_WRITER)}
        other, added = client.table("replay").writer(), 1
        with pytest.raises(Timeout, match=r"nothing was added: .*OPEN_WRITER"):
            other.append(step(0))
        added += fill(lambda i: writer.append(step(1 + i)), "the step was not added: the buffer")
        with pytest.raises(Timeout, match="the end of the episode was not added"):
            writer.end_episode()
        many = {"obs": np.zeros((5, 2), np.float32), "reward": np.arange(5.0, dtype=np.float32)}
        with pytest.raises(Timeout, match="the first 0 of 5 rows were added, the others were not"):
            writer.extend(many)
        feeder.hooks = {}
        feeder.forget_sessions()
        writer.append(step(added), timeout_s=30)
        writer.close(30)
        assert rewards(feeder) == list(range(added + 1))


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("schema", [OBS, None])
def test_a_writer_to_which_nothing_was_added_closes_at_once(address, schema, answers):
    with FakeFeeder(address, schema=schema) as feeder:
        client = connect(feeder.address, timeout_s=30)
        if not answers:
            feeder.hooks[Type.OPEN_WRITER] = lambda *_: True
        writers = [client.table("replay").writer() for _ in range(3)]
        feeder.until(lambda: feeder.seen[Type.OPEN_WRITER])
        for writer in writers:
            writer.close(0.0)  # it would be a Timeout, if it waited
            writer.close(0.0)
            with pytest.raises(Closed):
                writer.append(step(0), timeout_s=5)
        feeder.hooks.clear()
        if not answers:
            feeder.forget_sessions()
        client.close(5)
        assert not feeder.inserts


def test_a_writer_that_is_closed_before_it_was_answered_leaves_no_writer_behind(feeder, client):
    held = []

    def hold(feeder, plane, route, message):
        held.append((plane, route, message))
        return True

    feeder.hooks[Type.OPEN_WRITER] = hold
    writer = client.table("replay").writer()
    feeder.until(lambda: held)
    writer.close()
    feeder.do(lambda feeder: feeder.on_open_writer(*held[0]))
    feeder.until(lambda: feeder.seen[Type.CLOSE_WRITER])
    # the first answer comes after that to CLOSE_WRITER, the second when the lines had a turn after
    # it
    for _ in range(2):
        client.status()
    assert not client._connection._channels


@pytest.mark.slow
def test_extend_that_times_out_says_how_far_it_came(feeder, client):
    feeder.hold_acks = True
    writer = client.table("replay").writer(batch_rows=4, linger_ms=LATE, buffer_bytes=1000)
    batch = {"obs": np.zeros((10, 2), np.float32), "reward": np.arange(10, dtype=np.float32)}
    writer.append(step(0))  # it is open from here on
    assert (
        fill(
            lambda _: writer.extend(batch, timeout_s=0.01),
            "of 10 rows were added, the others were not",
        )
        > 0
    )
    feeder.hold_acks = False
    writer.flush()


def test_the_oldest_unsent_is_dropped_and_its_stream_cut(address):
    with FakeFeeder(address, window=(1 << 20, 4)) as feeder, connect(address) as client:
        feeder.hold_acks = True
        writer = client.table("replay").writer(
            batch_rows=4, linger_ms=LATE, buffer_bytes=1000, overflow="drop_oldest"
        )
        writer.append(step(0), stream=3)
        for i in range(1, 100):
            writer.append(step(i), stream=3, timeout_s=0)
        feeder.hold_acks = False
        writer.flush()
        kept, stats = rewards(feeder), client.stats()
        assert stats.rows_dropped == 100 - len(kept) > 0
        assert kept == sorted(set(kept))
        (rows,) = feeder.rows.values()
        cuts = [i for i, (_, flags, _) in enumerate(rows) if flags == FINAL | TRUNCATED]
        steps = [(i, reward) for i, (_, flags, reward) in enumerate(rows) if not flags & FINAL]
        for (i, before), (j, after) in pairwise(steps):
            assert after == before + 1 or any(i < cut < j for cut in cuts)


def full_and_sent(feeder, client, messages=2):
    """A writer that drops the oldest, whose buffer is full of sent messages of four rows each."""
    feeder.hold_acks = True
    row = wire.RowLayout.of(feeder.schema).row_bytes
    writer = client.table("replay").writer(
        batch_rows=4, linger_ms=LATE, buffer_bytes=8 * row, overflow="drop_oldest"
    )
    for i in range(4 * messages):
        writer.append(linked(i))
    feeder.until(lambda: feeder.seen[Type.INSERT] == messages)
    return writer


def linked(i):
    return {"obs": i, "reward": float(i)}


def acknowledge(feeder, client, messages):
    """As many of the writer's messages, four rows in each."""
    ack = wire.Ack(messages, *feeder.window)
    sent = next(one for one in feeder.messages if one.type is Type.INSERT)
    feeder.do(lambda feeder: feeder.say(Plane.INSERT, feeder.routes[Plane.INSERT], sent.reply(ack)))
    feeder.until(lambda: client.stats().rows_acked == 4 * messages)


def episodes(feeder):
    """The rewards of the only stream, up to each end."""
    (rows,) = feeder.rows.values()
    found = [[]]
    for _, flags, reward in rows:
        if flags & FINAL:
            found.append([])
        else:
            found[-1].append(reward)
    return found


LINKED = Schema.of({"obs": Field((), np.int64, next="next_obs"), "reward": np.float32})


def test_an_end_that_finds_no_room_is_counted_and_the_next_episode_begins_anew(address):
    with FakeFeeder(address, schema=LINKED) as feeder, connect(address) as client:
        writer = full_and_sent(feeder, client)
        writer.end_episode(terminated=True, final_obs=8)
        assert client.stats().rows_dropped == 1
        acknowledge(feeder, client, 2)
        feeder.hold_acks = False
        for i in range(20, 24):
            writer.append(linked(i))
        writer.flush()
        assert episodes(feeder) == [[*range(8)], [*range(20, 24)]]


@pytest.mark.slow
def test_a_last_step_that_finds_no_room_ends_its_stream_before_the_last_free_row_is_used(address):
    with FakeFeeder(address, schema=LINKED) as feeder, connect(address) as client:
        writer = full_and_sent(feeder, client)
        writer.append(linked(8))
        acknowledge(feeder, client, 1)
        for i in range(10, 13):  # the end of the stream that misses row 8 is sent before them
            writer.append(linked(i))
        feeder.until(lambda: feeder.seen[Type.INSERT] == 3)
        writer.append(linked(13), terminated=True, final_obs=14)  # two rows, there is room for one
        assert client.stats().rows_dropped == 2
        assert writer.steps == 11
        writer.append(linked(20))
        feeder.hold_acks = False
        writer.flush()
        writer.append(linked(21))
        writer.flush()
        found = episodes(feeder)
        assert all(after == before + 1 for one in found for before, after in pairwise(one)), found
        assert found[0] == [*range(8)]
        assert 21 in found[-1]


def test_steps_of_a_vector_that_find_no_room_end_their_streams_before_later_steps(address):
    with FakeFeeder(address, schema=LINKED) as feeder, connect(address) as client:
        writer = full_and_sent(feeder, client, messages=1)
        for i in range(4, 6):
            writer.append(linked(i))
        many = {"obs": np.arange(30, 38), "reward": np.arange(30, 38, dtype=np.float32)}
        writer._extend_together(
            many, [writer.stream] * 8, terminated=False, truncated=False, final_obs=None,
            priority=None, timeout_s=0,
        )  # fmt: skip
        assert client.stats().rows_dropped == 8
        acknowledge(feeder, client, 1)
        feeder.hold_acks = False
        writer.append(linked(20))
        writer.flush()
        assert episodes(feeder) == [[*range(6)], [20]]


def test_a_gap_is_sent_again(feeder, client):
    lost = []

    def lose(feeder, plane, route, message):
        if message.sequence == 1 and not lost:
            lost.append(message)
            return True
        return False

    feeder.hooks[Type.INSERT] = lose
    writer = client.table("replay").writer(batch_rows=2, linger_ms=LATE)
    for i in range(10):
        writer.append(step(i))
    writer.flush()
    assert lost
    assert rewards(feeder) == list(range(10))
    assert client.stats().messages_resent > 0


def test_a_lost_tail_is_found_by_a_probe(feeder, client, monkeypatch):
    monkeypatch.setattr("async_loader.feeder.client.writer_channel.PROBE_S", 0.02)
    left = [3]

    def lose(feeder, plane, route, message):
        left[0] -= 1
        return left[0] >= 0

    feeder.hooks[Type.INSERT] = lose
    writer = client.table("replay").writer(batch_rows=1, linger_ms=LATE)
    for i in range(3):
        writer.append(step(i))
    writer.flush()
    assert rewards(feeder) == [0, 1, 2]


def test_acknowledgements_that_come_twice_or_late_do_no_harm(feeder, client):
    def twice(feeder, plane, route, message):
        feeder.on_insert(plane, route, message)
        feeder.say(plane, route, message.reply(wire.Ack(0, *feeder.window)))
        feeder.ack(route, message, feeder.producers[message.session, message.number])
        feeder.say(
            plane,
            route,
            message.reply(wire.Ack(1 << 40, *feeder.window))
            if message.sequence == 9
            else message.reply(wire.Pong()),
        )
        return True

    feeder.hooks[Type.INSERT] = twice
    writer = client.table("replay").writer(batch_rows=1, linger_ms=LATE)
    for i in range(10):
        writer.append(step(i))
    writer.flush()
    feeder.hooks.clear()
    writer.append(step(10))
    writer.flush()
    assert rewards(feeder) == list(range(11))


def test_a_feeder_that_resumes_takes_nothing_twice(feeder, client):
    writer = client.table("replay").writer(batch_rows=2, linger_ms=LATE)
    for i in range(6):
        writer.append(step(i))
    writer.flush()
    feeder.hold_acks = True  # the acknowledgements of these are lost
    for i in range(6, 12):
        writer.append(step(i))
    feeder.until(lambda: len(rewards(feeder)) == 12)
    feeder.hold_acks = False
    feeder.forget_sessions()
    for i in range(12, 14):
        writer.append(step(i))
    writer.flush()
    assert rewards(feeder) == list(range(14))
    assert client.stats().sessions == 2
    assert client.stats().rows_lost == 0


def test_what_a_feeder_lost_is_counted_and_said(address):
    with FakeFeeder(address) as feeder:
        client = connect(address)
        writer = client.table("replay").writer(batch_rows=2, linger_ms=LATE)
        for i in range(6):
            writer.append(step(i))
        writer.flush()
        feeder.hold_acks = True
        writer.append(step(6))
        writer.append(step(7))
        feeder.until(lambda: len(rewards(feeder)) == 8)
    with FakeFeeder(address) as feeder:
        # said by whichever call comes first after it is known
        with pytest.warns(UserWarning, match="lost 6 rows"):
            append_and_flush(writer, 8)
        assert rewards(feeder) == [6, 7, 8]
        assert client.stats().rows_lost == 6
        client.close()


def test_a_lost_writer_is_opened_again(feeder, client):
    writer = client.table("replay").writer(batch_rows=1, linger_ms=LATE)
    writer.append(step(0))
    writer.flush()
    feeder.do(lambda feeder: feeder.producers.clear())
    writer.append(step(1))
    writer.flush()
    assert rewards(feeder) == [0, 1]


MANY = {f"sensor {i}": np.float32(i) for i in range(4000)}


def test_a_schema_that_no_message_can_hold_is_refused_and_ends_no_other_writer(address):
    with FakeFeeder(address, schema=None) as feeder, connect(address) as client:
        with pytest.raises(SchemaError, match=r"4,000 fields takes .* bytes .* 65,536 are allowed"):
            client.table("replay").writer(schema=Schema.of_step(MANY))
        first = client.table("replay").writer()
        with pytest.raises(SchemaError, match="4,002 fields"):
            first.append(MANY)
        first.append(step(0))
        first.flush()
        assert rewards(feeder) == [0]


def test_a_name_that_no_message_can_hold_is_refused_and_ends_no_other_writer(feeder, client):
    table = client.table("x" * 1000)
    with pytest.raises(ConfigError, match="256"):
        table.writer()
    with pytest.raises(ConfigError, match="256"):
        table.source().plan(4, Patience(deadline=Deadline(PATIENCE_S)))
    append_and_flush(client.table("replay").writer(), 0)
    assert rewards(feeder) == [0]


@pytest.mark.parametrize("what", ["begin", "step", "take"])
def test_an_error_in_one_writer_ends_no_other_writer(feeder, client, what, monkeypatch):
    def fails(*_):
        raise Malformed("a message that cannot be sent")

    good, bad = client.table("replay").writer(), client.table("replay").writer()
    append_and_flush(good, 0)
    append_and_flush(bad, 1)
    with monkeypatch.context() as patch:
        patch.setattr(bad._channel, what, fails)
        feeder.forget_sessions()
        with pytest.raises(Malformed, match="cannot be sent"):
            append_and_flush(bad, 2)
        append_and_flush(good, 3)
    assert sorted(rewards(feeder)) == [0, 1, 3]


def test_writers_that_failed_are_forgotten(feeder, client):
    def unknown(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.UNKNOWN_TABLE)
        return True

    append_and_flush(client.table("replay").writer(), 0)
    feeder.hooks[Type.OPEN_WRITER] = unknown
    for _ in range(5):
        with pytest.raises(ConfigError, match="UNKNOWN_TABLE"):
            client.table("replay").writer(schema=OBS).append(step(1))
    feeder.until(lambda: len(client._connection._channels) == 1)
    assert len(client._traffic._channels) == 2, "the first one, and the last one that failed"
    assert client.stats().rows_acked == 1


def test_a_fenced_writer_is_broken(feeder, client):
    def fence(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.FENCED, 2)
        return True

    feeder.hooks[Type.INSERT] = fence
    writer = client.table("replay").writer(batch_rows=1)
    writer.append(step(0))
    with pytest.raises(Broken, match="FENCED"):
        writer.flush()
    with pytest.raises(Broken, match="FENCED"):
        writer.append(step(1))


def test_a_table_without_a_schema_takes_the_first_steps(address):
    with FakeFeeder(address, schema=None) as feeder, connect(address) as client:
        with client.table("replay").writer() as writer:
            assert writer.schema is None
            writer.append(obs=np.zeros(3), reward=1.0, terminated=True)
            assert [str(field) for field in writer.schema.fields] == [
                "obs float64[3]", "reward float32[]", "terminated bool[]", "truncated bool[]",
            ]  # fmt: skip
        assert rewards(feeder) == [1.0]


def test_final_observations_follow_their_steps(address):
    schema = Schema.of({"obs": Field((2,), np.float32, next="next_obs"), "reward": np.float32})
    with FakeFeeder(address, schema=schema) as feeder, connect(address) as client:
        with client.table("replay").writer(batch_rows=2, linger_ms=LATE) as writer:
            with pytest.raises(SchemaError, match="final_obs"):
                writer.append(step(0), truncated=True)
            with pytest.raises(SchemaError, match="neither terminated nor truncated"):
                writer.append(step(0), final_obs=np.zeros(2, np.float32))
            writer.append(step(0), stream=5)
            writer.append(step(1), truncated=True, final_obs=np.ones(2, np.float32), stream=5)
            writer.append(step(2), terminated=True)
            writer.end_episode()
            writer.append(step(3))
            writer.end_episode(final_obs=np.ones(2, np.float32))
            writer.append(step(4))
            writer.flush()
            writer.end_episode(final_obs=np.full(2, 7, np.float32), terminated=True)
        (rows,) = feeder.rows.values()
        assert [(stream, flags) for stream, flags, _ in rows] == [
            (1, 0),
            (1, TRUNCATED),
            (1, FINAL),
            (0, TERMINATED),
            (0, FINAL | TRUNCATED),
            (0, 0),
            (0, FINAL | TRUNCATED | SHOWN),
            (0, 0),
            (0, FINAL | TERMINATED | SHOWN),
        ]
        assert rewards(feeder) == [0, 1, 2, 3, 4]
        assert client.stats().rows_acked == client.stats().rows_added == 5


def test_extend_adds_columns_with_their_final_observations(address):
    schema = Schema.of(
        {
            "obs": Field((2,), np.float32, next="next_obs"),
            "reward": np.float32,
            "terminated": np.bool_,
            "truncated": np.bool_,
        }
    )
    with FakeFeeder(address, schema=schema) as feeder, connect(address) as client:
        with client.table("replay").writer(batch_rows=4, linger_ms=LATE) as writer:
            n = 10
            ends = np.arange(n) % 3 == 2
            writer.extend(
                obs=np.zeros((n, 2), np.float32),
                reward=np.arange(n, dtype=np.float32),
                terminated=np.zeros(n, np.bool_),
                truncated=ends,
                final_obs=np.ones((n, 2), np.float32),
                stream=np.arange(n) % 2,
                priority=np.ones(n),
            )
        (rows,) = feeder.rows.values()
        assert rewards(feeder) == list(range(n))
        # steps, not what was observed after them
        assert client.stats().rows_acked == client.stats().rows_added == n
        for i, (stream, flags, _) in enumerate(rows):
            if flags == FINAL:
                assert rows[i - 1][:2] == (stream, TRUNCATED)
        assert sum(flags == FINAL for _, flags, _ in rows) == 3


def test_large_fields_travel_beside_the_rows(address):
    schema = Schema.of({"pixels": ((40, 40), np.uint8), "reward": np.float32})
    with FakeFeeder(address, schema=schema) as feeder, connect(address) as client:
        with client.table("replay").writer(batch_rows=8) as writer:
            for i in range(20):
                writer.append(pixels=np.full((40, 40), i, np.uint8), reward=float(i))
            writer.extend(
                pixels=np.zeros((100, 40, 40), np.uint8),
                reward=np.arange(20, 120, dtype=np.float32),
            )
        assert rewards(feeder) == list(range(120))


def test_what_does_not_fit_is_said_and_not_added(feeder, client):
    writer = client.table("replay").writer(linger_ms=LATE)
    for bad, text in [
        ({"obs": np.zeros(3, np.float32), "reward": 0.0}, "has shape"),
        ({"obs": np.zeros(2, np.float32)}, "does not fit the schema"),
    ]:
        with pytest.raises(SchemaError, match=text):
            writer.append(bad)
    with pytest.raises(ConfigError, match="priority"):
        writer.append(step(0), priority=-1.0)
    with pytest.raises(ConfigError, match="stream"):
        writer.append(step(0), stream=[1])
    writer.append(step(0))
    writer.close()
    writer.close()
    with pytest.raises(Closed):
        writer.append(step(0))
    assert rewards(feeder) == [0]


def test_threads_share_a_writer_and_each_stream_stays_in_order(feeder, client):
    writer = client.table("replay").writer(batch_rows=16, buffer_bytes=5000)

    def act(stream):
        for i in range(500):
            writer.append(step(i), stream=stream)

    threads = [threading.Thread(target=act, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    writer.flush()
    (rows,) = feeder.rows.values()
    numbers = {number for number, _, _ in rows}
    # in the order in which they were first used; 0 is the writer's own
    assert numbers == {1, 2, 3, 4}
    for number in numbers:
        assert [reward for one, _, reward in rows if one == number] == list(range(500))


def test_values_that_need_a_closer_look_are_the_same_rows(feeder, client):
    obs = np.zeros(2, np.float32)
    given = [1.0, np.float32(2), np.float64(3), 4, True, np.array(6.0), float("inf")]
    with client.table("replay").writer(linger_ms=LATE) as writer:
        for reward in given:
            writer.append(obs=obs, reward=reward)
        for bad in (1e300, None, "8", 1j, np.zeros(1, np.float32)):
            with pytest.raises(SchemaError):
                writer.append(obs=obs, reward=bad)
        writer.append(obs=obs.astype(np.float64), reward=9.0)
        writer.append(reward=10.0, obs=obs)
    assert rewards(feeder) == [1, 2, 3, 4, 1, 6, float("inf"), 9, 10]


def test_an_array_may_change_after_it_was_appended(feeder, client):
    obs, reward = np.zeros(2, np.float32), np.zeros(3, np.float32)
    with client.table("replay").writer(linger_ms=LATE) as writer:
        writer.append(obs=obs, reward=0.0)
        writer.extend(obs=np.zeros((3, 2), np.float32), reward=reward)
        obs += 1
        reward += 1
    assert rewards(feeder) == [0, 0, 0, 0]


def test_a_late_refusal_is_no_answer_to_what_was_asked_since():
    asked = []

    class Port:
        is_open, servers = True, 0

        def sequence(self):
            asked.append(len(asked) + 1)
            return asked[-1]

        def send(self, *_):
            pass

    line = WriterChannel(1, "replay", None, WriterOptions(batch_rows=4, linger_ms=LATE))
    nameless = wire.Error.of(wire.ErrorCode.SCHEMA, "table 'replay' has no schema yet: send one")
    line.step(0.0, Port())
    line.step(100.0, Port())
    assert asked == [1, 2], "the feeder took its time, and was asked again"
    line.take(wire.Message(nameless, sequence=1, number=1), 100.0)
    line.take(wire.Message(nameless, sequence=2, number=1), 100.0)
    with line.lock:
        line.propose(Schema.of({"x": np.float32}))
    line.step(101.0, Port())
    line.take(wire.Message(nameless, sequence=2, number=1), 101.0)
    assert (line.failure, line.phase) == (None, WriterPhase.OPENING)


def test_what_was_acknowledged_is_filled_again_and_what_was_sent_twice_is_not(
    feeder, client, monkeypatch
):
    for name in ("PROBE_S", "PROBE_MOST_S"):  # nothing is sent twice but where it is said
        monkeypatch.setattr(f"async_loader.feeder.client.writer_channel.{name}", 1e6)
    writer = client.table("replay").writer(batch_rows=4, linger_ms=LATE)
    line, parts = writer._queue, []
    for i in range(40):
        writer.append(step(i))
        with writer._channel.lock:
            if line.buffer is not None and line.buffer not in parts:
                parts.append(line.buffer)
        if i % 4 == 3:
            writer.flush()
    assert len(parts) == 1
    feeder.hold_acks = True
    for i in range(40, 44):
        writer.append(step(i))
    for sent in (11, 12):
        feeder.until(lambda sent=sent: feeder.seen[Type.INSERT] == sent)
        feeder.hold_acks = sent == 11
        with writer._channel.lock:
            writer._channel._probe.at = 0.0  # nothing was heard of it for too long
        client._connection.wake()
    writer.flush()
    assert parts[0] not in [part for spares in line._spares.by_rows.values() for part in spares]
    assert rewards(feeder) == list(range(44))


def test_any_name_is_a_stream_and_ended_ones_are_forgotten(feeder, client):
    writer = client.table("replay").writer("left", linger_ms=LATE)
    assert writer.stream == "left"
    for episode in range(2000):
        for name in (("actor", episode), f"other {episode}"):
            writer.append(step(0), stream=name)
            writer.append(step(1), stream=name, terminated=True)
    writer.append(step(2))
    writer.append(step(3), stream="left")
    writer.flush()
    assert len(writer._streams) <= 512
    (rows,) = feeder.rows.values()
    assert max(number for number, _, _ in rows) <= 512
    assert [number for number, _, reward in rows if reward > 1] == [0, 0]


def test_close_ends_the_open_episodes_and_only_these(feeder, client):
    with client.table("replay").writer("own", linger_ms=LATE) as writer:
        writer.append(step(0))
        writer.append(step(1), stream="open")
        writer.append(step(2), stream="over", truncated=True)
    assert writer.closed
    (rows,) = feeder.rows.values()
    assert [(number, flags) for number, flags, _ in rows[3:]] == [
        (0, FINAL | TRUNCATED),
        (1, FINAL | TRUNCATED),
    ]
    assert client.stats().rows_acked == 3
