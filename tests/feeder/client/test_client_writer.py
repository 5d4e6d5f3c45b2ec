"""A writer against a feeder that does what it is told: batching, windows, losses, restarts."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
from client_rig import PATIENCE_S, FakeFeeder, rewards, step

from async_loader.errors import Broken, Closed, ConfigError, Malformed, SchemaError, Timeout
from async_loader.feeder import connect, wire
from async_loader.feeder.wire import FINAL, TRUNCATED, Type
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
    feeder.forget_sessions()
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
        feeder.forget_sessions()
        writer.flush()
        kept, stats = rewards(feeder), client.stats()
        assert stats.rows_dropped == 100 - len(kept) > 0
        assert kept == sorted(set(kept))
        (rows,) = feeder.rows.values()
        cuts = [i for i, (_, flags, _) in enumerate(rows) if flags == FINAL | TRUNCATED]
        steps = [(i, reward) for i, (_, flags, reward) in enumerate(rows) if not flags & FINAL]
        for (i, before), (j, after) in pairwise(steps):
            assert after == before + 1 or any(i < cut < j for cut in cuts)


LINKED = Schema.of({"obs": Field((), np.int64, next="next_obs"), "reward": np.float32})


def linked(i):
    return {"obs": i, "reward": float(i)}


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


@pytest.mark.parametrize("how", ["append", "extend", "together", "end"])
def test_a_writer_that_drops_never_waits_and_joins_no_rows_across_dropped_ones(address, how):
    with FakeFeeder(address, schema=LINKED) as feeder, connect(address) as client:
        feeder.hold_acks = True
        row = wire.RowLayout.of(feeder.schema).row_bytes
        writer = client.table("replay").writer(
            batch_rows=4, linger_ms=LATE, buffer_bytes=8 * row, overflow="drop_oldest"
        )
        for i in range(8):
            writer.append(linked(i))
        feeder.until(lambda: feeder.seen[Type.INSERT] == 2)
        added = 8
        for i in range(8, 40, 4):
            many = {"obs": np.arange(i, i + 4), "reward": np.arange(i, i + 4, dtype=np.float32)}
            if how == "extend":
                writer.extend(many, timeout_s=0)
            elif how == "together":
                writer._extend_together(
                    many, [writer.stream] * 4, terminated=False, truncated=False, final_obs=None,
                    priority=None, timeout_s=0,
                )  # fmt: skip
            else:
                for j in range(i, i + 4):
                    writer.append(linked(j), timeout_s=0)
                if how == "end":
                    writer.end_episode(terminated=True, final_obs=j + 1, timeout_s=0)
            added += 4
        assert writer.steps == added
        feeder.hold_acks = False
        feeder.forget_sessions()
        writer.flush()
        found = episodes(feeder)
        assert all(after == before + 1 for one in found for before, after in pairwise(one)), found
        assert sum(map(len, found)) + client.stats().rows_dropped == added
        assert found[0] == [*range(8)]
        assert found[-1][-1:] == [39] or found[-1] == []


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


def test_a_writer_that_is_refused_for_good_is_broken(feeder, client):
    def refuse(feeder, plane, route, message):
        feeder.error(plane, route, message, wire.ErrorCode.INTERNAL)
        return True

    feeder.hooks[Type.INSERT] = refuse
    writer = client.table("replay").writer(batch_rows=1)
    writer.append(step(0))
    with pytest.raises(Broken, match="INTERNAL"):
        writer.flush()
    with pytest.raises(Broken, match="INTERNAL"):
        writer.append(step(1))


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


@pytest.mark.slow
def test_a_full_buffer_makes_append_wait_and_time_out(feeder, client):
    feeder.hold_acks = True
    writer = client.table("replay").writer(batch_rows=4, linger_ms=LATE, buffer_bytes=1000)
    writer.append(step(0))  # it is open from here on
    count = 1 + fill(lambda i: writer.append(step(1 + i), timeout_s=0.01), "raise buffer_bytes")
    assert count > 4
    feeder.hold_acks = False
    feeder.forget_sessions()
    writer.append(step(count))
    writer.flush()
    assert rewards(feeder) == list(range(count + 1))


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
