"""Every control message is answered, at once or when its time has come; sessions come, are
replaced, and fall silent.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from server_rig import SCHEMA, Rig

from async_loader import ReplayBuffer
from async_loader.feeder.wire import (
    ACK_NOW,
    AboutReply,
    Ack,
    CloseReader,
    Done,
    Drain,
    End,
    Error,
    ErrorCode,
    Gap,
    Hello,
    Latest,
    OpenReader,
    Ping,
    Plane,
    Pong,
    Publish,
    Published,
    Pull,
    Reader,
    Status,
    StatusReply,
    TensorSpec,
    Weights,
    Welcome,
    Writer,
    spec_of,
)
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo
from async_loader.schema import Field, Schema

SLOTS = ()


def held_up() -> dict[str, ReplayBuffer]:
    return {"t": ReplayBuffer(4, SCHEMA, sampler=Fifo(), limiter=Queue(4), max_times_sampled=1)}


def part(version: int, offset: int = 0, total: int = 8) -> Publish:
    return Publish(
        name="w",
        version=version,
        total_bytes=total,
        offset=offset,
        specs=() if offset else (TensorSpec("a", 3, (total,)),),
    )


def test_every_request_has_its_answer():
    with Rig() as rig:
        peer = rig.peer(greet=False)
        assert isinstance(peer.hello().body, Welcome)
        assert isinstance(peer.open_writer().body, Writer)
        assert isinstance(peer.open_reader().body, Reader)
        assert isinstance(peer.ask(Plane.CONTROL, Status()).body, StatusReply)
        assert isinstance(peer.ask(Plane.CONTROL, part(1), data=b"12345678").body, Published)
        assert isinstance(peer.ask(Plane.CONTROL, Latest(name="w", most=100)).body, Weights)
        assert isinstance(peer.ask(Plane.CONTROL, CloseReader(), 1).body, Done)
        peer.close_writer(0)
        assert isinstance(peer.receive(Plane.CONTROL).body, Ack)
        for plane in Plane:
            answer = peer.ask(plane, Ping(), 7, 99)
            assert (type(answer.body), answer.number, answer.sequence) == (Pong, 7, 99)
        assert rig.server.counters.faults == 0


@pytest.mark.parametrize("plane", Plane)
def test_what_belongs_to_another_plane_is_refused(plane):
    wrong = {
        Plane.CONTROL: [Pull(1, SLOTS), Done(), Published(newest=True)],
        Plane.INSERT: [
            Pull(1, SLOTS),
            Status(),
            Hello(client=b"c" * 16, pid=1, host="h"),
        ],
        Plane.PULL: [
            Status(),
            Drain(),
            Hello(client=b"c" * 16, pid=1, host="h"),
        ],
    }
    with Rig() as rig:
        peer = rig.peer()
        for body in wrong[plane]:
            answer = peer.ask(plane, body, 3, 5)
            assert isinstance(answer.body, Error)
            assert answer.body.code in (ErrorCode.MALFORMED, ErrorCode.UNKNOWN_READER)
            assert answer.sequence == 5
        assert len(rig.server_state.sessions) == 1


def test_an_unknown_client_is_told_to_begin_again():
    with Rig() as rig:
        peer = rig.peer()
        for plane in Plane:
            assert peer.ask(plane, Ping(), session=12345).body.code == ErrorCode.UNKNOWN_SESSION
        assert peer.ask(Plane.PULL, Pull(1, SLOTS), 9).body.code == ErrorCode.UNKNOWN_READER
        peer.insert(0, [1], number=9)
        assert peer.receive(Plane.INSERT).body.code == ErrorCode.UNKNOWN_WRITER
        assert peer.open_reader(table="none").body.code == ErrorCode.UNKNOWN_TABLE
        assert peer.open_writer(schema=Schema.of({"y": np.int8})).body.code == ErrorCode.SCHEMA


def test_the_newest_insert_sent_again_is_acknowledged_again():
    with Rig() as rig:
        peer = rig.peer()
        peer.open_writer()
        for _ in range(3):
            peer.insert(0, [1, 2])
            answer = peer.receive(Plane.INSERT)
            assert (type(answer.body), answer.body.applied) == (Ack, 1)
        assert rig.tables["t"].stats().inserted == 2


def test_inserts_of_a_round_are_acknowledged_together_and_a_gap_is_told():
    with Rig() as rig:
        peer = rig.peer()
        peer.open_writer()
        for n in (0, 1, 2, 4, 5):
            peer.insert(n, [n])
        answer = peer.receive(Plane.INSERT)
        assert (type(answer.body), answer.body.applied) == (Gap, 3)
        assert peer.receive(Plane.INSERT, wait=False) is None


def test_a_writer_that_does_not_wait_is_told_after_a_moment_of_all_that_came_in_it():
    with Rig() as rig:
        peer = rig.peer()
        peer.open_writer()
        insert = peer.sockets[Plane.INSERT]
        for n in (0, 1, 2):
            peer.insert(n, [n])
            rig.half_turn()
            assert not insert.poll()
        left_s = rig.server._left_s()
        assert 0 < left_s <= 2e-3
        rig.clock.now += 2e-3
        assert rig.server._left_s() == 0
        rig.half_turn()
        assert insert.poll()
        assert peer.receive(Plane.INSERT).body.applied == 3
        assert peer.receive(Plane.INSERT, wait=False) is None
        peer.insert(3, [3], message_flags=ACK_NOW)
        rig.half_turn()
        assert insert.poll()


def test_a_writer_that_has_sent_a_quarter_of_the_window_is_told_at_once():
    with Rig(window_rows=64) as rig:
        peer = rig.peer()
        peer.open_writer()
        insert = peer.sockets[Plane.INSERT]
        for n in range(4):
            peer.insert(n, range(8))
            rig.half_turn()
            assert bool(insert.poll()) == (n % 2 == 1)
            if n % 2:
                assert peer.receive(Plane.INSERT).body.applied == n + 1


def test_an_ack_that_is_asked_for_comes_though_the_table_holds_the_rows_up():
    with Rig(held_up()) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(10), message_flags=ACK_NOW)
        assert peer.receive(Plane.INSERT).body.applied == 0


def test_a_writer_that_closes_is_answered_when_everything_is_in_the_table():
    with Rig(held_up()) as rig:
        peer, learner = rig.peer(), rig.peer()
        peer.open_writer()
        learner.open_reader(batch_size=2)
        peer.insert(0, range(6))
        peer.close_writer(1)
        assert peer.receive(Plane.CONTROL, wait=False) is None
        rig.pass_time(3)
        assert peer.receive(Plane.CONTROL, wait=False) is None, "the limiter's time does not count"
        learner.pull(1)
        answer = peer.receive(Plane.CONTROL)
        assert (type(answer.body), answer.body.applied) == (Ack, 1)
        assert not rig.server_state.sessions.get(peer.session).writers


def test_a_writer_that_closes_and_whose_inserts_do_not_come_is_told_which_are_missing():
    with Rig() as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, [0])
        peer.close_writer(3)
        rig.turn()
        rig.pass_time(0.9)
        peer.insert(1, [1])
        rig.turn()
        rig.pass_time(0.9)
        assert peer.receive(Plane.CONTROL, wait=False) is None
        assert 0 < rig.server._left_s() <= 0.2
        rig.pass_time(0.2)
        error = peer.receive(Plane.CONTROL).body
        assert (error.code, error.expected, error.retryable) == (ErrorCode.GAP, 2, True)
        peer.insert(2, [2])
        peer.close_writer(3)
        assert isinstance(peer.receive(Plane.CONTROL).body, Ack)


def test_a_writer_that_closes_again_has_no_more_time_for_its_inserts():
    with Rig(heartbeat_s=1.0) as rig:
        peer = rig.peer()
        peer.open_writer()
        for _ in range(4):
            peer.close_writer(3)
            rig.turn()
            rig.pass_time(0.3)
        error = peer.receive(Plane.CONTROL).body
        assert (error.code, error.expected) == (ErrorCode.GAP, 0)


def test_a_writer_that_is_fenced_off_while_it_closes_is_told():
    with Rig(held_up()) as rig:
        peer, later = rig.peer(), rig.peer()
        peer.open_writer(epoch=1)
        peer.insert(0, range(10))
        peer.close_writer(1)
        rig.turn()
        assert later.open_writer(epoch=2).body.applied == 0
        error = peer.receive(Plane.CONTROL).body
        assert (error.code, error.expected) == (ErrorCode.FENCED, 2)
        peer.insert(1, [1])
        assert peer.receive(Plane.INSERT).body.code == ErrorCode.FENCED


def test_waiting_calls_are_answered_at_the_end():
    with Rig(held_up(), drain_s=1.0) as rig:
        peer, other = rig.peer(), rig.peer()
        peer.open_writer()
        peer.insert(0, range(10))
        rig.turn()
        peer.close_writer(1)
        other.send(Plane.CONTROL, Latest(name="w", most=10, timeout_s=1e6))
        rig.turn()
        other.send(Plane.CONTROL, Drain())
        rig.turn()
        assert not rig.server._over()
        assert peer.open_writer(2).body.code == ErrorCode.DRAINING
        assert rig.peer(greet=False).hello().body.code == ErrorCode.DRAINING
        rig.clock.now += 1
        assert rig.server._over()
        rig.server.close()
        peer._turn = other._turn = None
        answers = [peer.receive(Plane.CONTROL).body for _ in range(2)]
        assert (answers[0].code, type(answers[1])) == (ErrorCode.DRAINING, End)
        assert [type(other.receive(Plane.CONTROL).body) for _ in range(3)] == [Weights, Done, End]


def test_a_reader_waits_for_the_schema_that_the_first_writer_brings():
    with Rig({"t": ReplayBuffer(100)}) as rig:
        learner, impatient, actor = rig.peer(), rig.peer(), rig.peer()
        learner.send(Plane.CONTROL, Ping())
        assert isinstance(learner.receive(Plane.CONTROL).body, Pong)
        for _ in range(2):  # asked for again: one answer, to the second
            learner.send(Plane.CONTROL, OpenReader(table="t", batch_size=2), 1)
        impatient.send(Plane.CONTROL, OpenReader(table="t", batch_size=2, timeout_s=1.0), 1)
        rig.turn()
        rig.pass_time(1.1)
        assert impatient.receive(Plane.CONTROL).body.code == ErrorCode.TIMEOUT
        assert actor.open_writer(schema=None).body.code == ErrorCode.SCHEMA
        assert isinstance(actor.open_writer().body, Writer)
        answer = learner.receive(Plane.CONTROL)
        assert (type(answer.body), answer.sequence) == (Reader, learner.sequence)
        assert learner.receive(Plane.CONTROL, wait=False) is None
        actor.insert(0, [1, 2])
        learner.pull(1)
        assert learner.receive(Plane.PULL).body.rows == 2


def test_a_reader_that_is_asked_for_again_has_no_more_time():
    with Rig({"t": ReplayBuffer(100)}) as rig:
        learner = rig.peer()
        wanted = OpenReader(table="t", batch_size=2, timeout_s=7.0)
        learner.send(Plane.CONTROL, wanted, 1)
        rig.turn()
        rig.pass_time(5.0)
        learner.send(Plane.CONTROL, wanted, 1)
        rig.turn()
        assert rig.server._control_handler.waits.due == pytest.approx(rig.clock.now + 2.0)
        rig.pass_time(2.0)
        answer = learner.receive(Plane.CONTROL)
        assert (answer.body.code, answer.sequence) == (ErrorCode.TIMEOUT, learner.sequence)
        learner.send(Plane.CONTROL, wanted, 1)  # after its answer it is another request
        rig.turn()
        assert rig.server._control_handler.waits.due == pytest.approx(rig.clock.now + 7.0)
        learner.send(Plane.CONTROL, OpenReader(table="t", batch_size=2, timeout_s=8.0), 1)
        rig.turn()
        rig.pass_time(7.0)
        assert learner.receive(Plane.CONTROL, wait=False) is None, "it is another one"
        rig.pass_time(1.0)
        assert learner.receive(Plane.CONTROL).body.code == ErrorCode.TIMEOUT


# The rows of a batch have twice as many fields as the table.
FOLLOWED = Schema.of(
    {f"sensor_{i:04d}": Field((), "float32", next=f"next_sensor_{i:04d}") for i in range(1000)}
)


def test_a_late_answer_that_fits_no_message_is_an_error_to_its_client_only():
    with Rig({"t": ReplayBuffer(100)}) as rig:
        learner, actor = rig.peer(), rig.peer()
        learner.send(Plane.CONTROL, OpenReader(table="t", batch_size=2), 1)
        rig.turn()
        assert isinstance(actor.open_writer(schema=FOLLOWED).body, Writer)
        error = learner.receive(Plane.CONTROL).body
        assert error.code == ErrorCode.TOO_LARGE
        assert "2001 fields and takes" in error.text
        assert "a control message 65024: join fields" in error.text
        assert not rig.server_state.tables["t"].scheduler.readers
        assert isinstance(actor.ask(Plane.CONTROL, Ping()).body, Pong)


def test_a_schema_that_no_writer_could_be_told_is_refused_before_the_table_has_it():
    fields = {"x" * 240 + f"{i:04d}": np.float32 for i in range(130)}
    sized = (Schema.of(fields | {"y" * length: np.float32}) for length in range(1, 257))
    schema = next(one for one in sized if len(msgspec.msgpack.encode(spec_of(one))) > 65_024)
    with Rig({"t": ReplayBuffer(100)}) as rig:
        error = rig.peer().open_writer(schema=schema).body
        assert (error.code, "join fields" in error.text) == (ErrorCode.TOO_LARGE, True)
        assert rig.server_state.tables["t"].table.schema is None


@pytest.mark.parametrize("large", [True, False])
def test_late_answers_that_fail_end_nothing(large, caplog, monkeypatch):
    with Rig() as rig:
        learner, actor = rig.peer(), rig.peer()
        actor.send(Plane.CONTROL, Latest(name="w", most=100, timeout_s=9.0))
        rig.turn()
        said = AboutReply(
            schema=None,
            capacity=None,
            nbytes=None,
            limiter=None,
            sampler="",
            stats={"x": "y" * 70_000},
        )
        monkeypatch.setattr(
            rig.server_state.weights, "answer", lambda *_: (said, None) if large else 1 / 0
        )
        assert learner.ask(Plane.CONTROL, part(3), data=b"12345678").body.newest
        error = actor.receive(Plane.CONTROL).body
        assert error.code == (ErrorCode.TOO_LARGE if large else ErrorCode.INTERNAL)
        assert rig.server.counters.faults == (not large)
        assert ("could not answer LATEST" in caplog.text) is not large
        assert isinstance(learner.ask(Plane.CONTROL, Ping()).body, Pong)
        caplog.clear()
        caplog.get_records("call").clear()


def test_a_client_that_says_hello_again_takes_the_place_of_its_session():
    with Rig(held_up()) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(4))
        peer.open_reader(batch_size=4)
        peer.pull(1)
        assert peer.receive(Plane.PULL).body.rows == 4
        peer.send(Plane.CONTROL, Latest(name="w", most=10, timeout_s=1e6))
        before = peer.session
        peer.hello()
        assert [one.number for one in rig.server_state.sessions] == [peer.session]
        assert len(rig.server._control_handler.waits) == 0
        assert (
            peer.ask(Plane.CONTROL, Ping(), session=before).body.code == ErrorCode.UNKNOWN_SESSION
        )
        answer = peer.open_writer().body
        assert (answer.resumed, answer.applied) == (True, 1)
        peer.open_reader(batch_size=4)
        peer.pull(1)
        assert peer.receive(Plane.PULL).flags == 2


def test_sessions_are_counted_and_the_silent_let_go():
    with Rig(sessions=2, silence_s=10.0) as rig:
        one, two = rig.peer(), rig.peer()
        third = rig.peer(greet=False)
        assert third.hello().body.code == ErrorCode.LIMIT
        assert isinstance(two.hello().body, Welcome), "in the place of its own"
        rig.clock.now += 6
        one.ask(Plane.PULL, Ping())
        rig.pass_time(4.5)
        assert [session.number for session in rig.server_state.sessions] == [one.session]
        assert sum(rig.server.status()["sessions_ended"].values()) == 1
        assert isinstance(third.hello().body, Welcome)
        assert rig.server._left_s() <= 1.0


def test_a_server_that_was_suspended_reads_what_was_sent_before_it_ends_a_session():
    with Rig(silence_s=10.0) as rig:
        peers = [rig.peer() for _ in range(3)]
        rig.clock.now += 60
        for _ in range(100):
            for peer in peers:
                peer.send(Plane.CONTROL, Ping())
        rig.turn()
        rig.turn()
        assert len(rig.server_state.sessions) == 3


def test_a_session_opens_no_more_than_some_writers_and_readers():
    with Rig() as rig:
        peer = rig.peer()
        answers = [peer.open_writer(i, producer=i.to_bytes(16, "little")).body for i in range(257)]
        assert [type(one) for one in answers] == [Writer] * 256 + [Error]
        assert answers[-1].code == ErrorCode.LIMIT
        answers = [peer.open_reader(i).body for i in range(257)]  # whatever writers it has
        assert [type(one) for one in answers] == [Reader] * 256 + [Error]
        assert answers[-1].code == ErrorCode.LIMIT
        assert "256 readers" in answers[-1].text


def test_weights_are_available_and_waiting_clients_are_told_once_their_last_byte_arrived():
    with Rig() as rig:
        learner, actor = rig.peer(), rig.peer()
        answer = actor.ask(Plane.CONTROL, Latest(name="w", most=100))
        assert answer.body.version is None
        actor.send(Plane.CONTROL, Latest(name="w", most=5, timeout_s=9.0), sequence=50)
        assert learner.ask(Plane.CONTROL, part(3), data=b"1234").body.newest
        assert actor.receive(Plane.CONTROL, wait=False) is None
        assert learner.ask(Plane.CONTROL, part(3, 2), data=b"3").body.code == ErrorCode.GAP
        assert learner.ask(Plane.CONTROL, part(3, 4), data=b"5678").body.newest
        answer = actor.receive(Plane.CONTROL)
        assert (answer.sequence, bytes(answer.data), answer.body.version) == (50, b"12345", 3)
        answer = actor.ask(Plane.CONTROL, Latest(name="w", most=5, version=3, offset=5))
        assert (bytes(answer.data), answer.body.offset, answer.body.specs) == (b"678", 5, ())
        assert not learner.ask(Plane.CONTROL, part(2), data=b"12345678").body.newest
        assert rig.server_state.weights.stale == 1
        assert actor.ask(Plane.CONTROL, Latest(name="w", most=5, newer_than=3)).data is None
        actor.send(Plane.CONTROL, Latest(name="w", most=5, newer_than=3, timeout_s=2.0))
        assert actor.receive(Plane.CONTROL, wait=False) is None
        rig.pass_time(2.1)
        assert actor.receive(Plane.CONTROL).data is None


def test_the_first_publish_of_a_client_begins_a_run_and_ends_that_of_the_client_before():
    with Rig() as rig:
        first, second, actor = rig.peer(), rig.peer(), rig.peer()

        def publish(learner, version):
            said = learner.ask(Plane.CONTROL, part(version), data=bytes(8)).body
            return said.newest, said.version, said.run

        def newer(than, run):
            found = actor.ask(Plane.CONTROL, Latest(name="w", most=100, newer_than=than, run=run))
            return None if found.data is None else (found.body.version, found.body.run)

        assert publish(first, 5) == (True, 5, first.client)
        assert publish(first, 5) == publish(first, 4) == (False, 5, first.client)
        assert newer(4, first.client) == (5, first.client)
        assert newer(5, first.client) is None
        assert publish(second, 0) == (True, 0, second.client)
        assert newer(5, first.client) == (0, second.client), "whatever its version"
        assert newer(0, second.client) is None
        assert publish(first, 99) == (False, 0, second.client)
        assert publish(second, 1) == (True, 1, second.client)
        session = first.session
        first.hello()  # a client that connects again is the same client
        assert first.session != session
        assert publish(first, 100) == (False, 1, second.client)
        assert rig.server_state.published.behind("w", 0) == (1, 0.0)


def test_a_part_of_another_run_is_no_part_of_these_weights():
    with Rig() as rig:
        first, second, actor = rig.peer(), rig.peer(), rig.peer()
        first.ask(Plane.CONTROL, part(7), data=b"12345678")
        half = actor.ask(Plane.CONTROL, Latest(name="w", most=4)).body
        second.ask(Plane.CONTROL, part(7), data=b"abcdefgh")
        rest = actor.ask(Plane.CONTROL, Latest(name="w", most=4, version=7, run=half.run, offset=4))
        assert (bytes(rest.data), rest.body.offset, rest.body.run) == (b"abcd", 0, second.client)


def test_weights_half_published_go_with_their_publisher_and_too_many_are_refused():
    with Rig(weight_bytes=100) as rig:
        learner = rig.peer()
        learner.ask(Plane.CONTROL, part(3), data=b"1234")
        assert (
            learner.ask(Plane.CONTROL, part(4, total=101), data=b"1234").body.code
            == ErrorCode.TOO_LARGE
        )
        learner.ask(Plane.CONTROL, part(5), data=b"1234")
        assert len(rig.server_state.weights._making) == 1
        rig.pass_time(20)
        assert not rig.server_state.weights._making


def test_a_large_part_of_weights_is_taken_in_one_message():
    with Rig() as rig:
        learner, actor, data = rig.peer(), rig.peer(), np.arange(1 << 22, dtype=np.uint8)
        assert learner.ask(Plane.CONTROL, part(1, total=1 << 22), data=data).body.newest
        answer = actor.ask(Plane.CONTROL, Latest(name="w", most=1 << 30))
        np.testing.assert_array_equal(np.frombuffer(answer.data, np.uint8), data)


def test_names_of_weights_are_limited():
    with Rig() as rig:
        learner = rig.peer()

        def publish(name, data=bytes(8)):
            body = msgspec.structs.replace(part(1), name=name)
            return learner.ask(Plane.CONTROL, body, data=data).body

        assert all(publish(f"trial {i}").newest for i in range(255))
        assert publish("half", bytes(4)).newest
        error = publish("trial 255")
        assert (error.code, error.retryable) == (ErrorCode.CONFIG, False)
        assert error.text.startswith("256 names of weights are in use here, which is the limit")
        assert publish("half").newest
        assert not publish("trial 0").newest, "of a name that is there it is only too old"
        assert len(learner.status()["weights"]) == 256


def test_weights_that_could_not_be_told_of_are_refused():
    specs = tuple(TensorSpec("w" * 240 + f"{i:03d}", 3, (1,)) for i in range(262))
    with Rig() as rig:
        learner = rig.peer()
        for length in range(256):  # PUBLISH just fits
            last = TensorSpec("v" * (length + 1), 3, (1,))
            body = Publish(name="w", version=1, total_bytes=263, specs=(*specs, last))
            if len(msgspec.msgpack.encode(body)) == 65_536:
                break
        error = learner.ask(Plane.CONTROL, body, data=bytes(263)).body
        assert (error.code, "263 tensors take" in error.text) == (ErrorCode.TOO_LARGE, True)


def test_a_session_of_a_client_that_leaves_ends_at_once_and_status_says_how_others_ended():
    names = ("works", "left", "ends", "died", "lost")
    with Rig() as rig:
        peers = {name: rig.peer() for name in names}
        for name in names:
            peers[name].open_writer(producer=name.encode().ljust(16))
            peers[name].insert(0, [1, 2, 3])
        peers["left"].close_writer(1)
        peers["ends"].send(Plane.CONTROL, End(reason="", count=0))
        for name in ("left", "ends", "died"):
            rig.turn()
            peers[name].close()
        rig.turn()
        said = peers["works"].status()
        assert said["sessions_ended"] == {"left": 2, "died": 0, "lost": 0}
        assert [one["connected"] for one in said["sessions"]] == [True, False, True]
        assert said["tables"]["t"]["inserted"] == 15, "what was received is kept"
        for _ in range(4):
            rig.pass_time(rig.server._settings.silence_s / 3)
            peers["works"].ask(Plane.CONTROL, Ping())
        said = peers["works"].status()
        assert said["sessions_ended"] == {"left": 2, "died": 1, "lost": 1}
        assert len(said["sessions"]) == 1


def test_counts_of_a_client_do_not_fall_when_its_writers_and_readers_close():
    with Rig() as rig:
        peer = rig.peer()

        def counts():
            (one,) = peer.status()["sessions"]
            return one["rows_in"], one["batches_out"], one["writers"], one["readers"]

        peer.open_writer()
        peer.insert(0, range(20))
        rig.turn()
        peer.open_reader()
        peer.pull(3)
        for _ in range(3):
            peer.receive(Plane.PULL)
        assert counts() == (20, 3, 1, 1)
        peer.close_writer(1)
        peer.receive(Plane.CONTROL)
        peer.close_reader(arrived=3)
        assert counts() == (20, 3, 0, 0)
        peer.open_writer(producer=b"q" * 16)
        peer.insert(0, [1, 2])
        rig.turn()
        peer.open_writer(producer=b"r" * 16)  # takes the other one's place
        assert counts() == (22, 3, 1, 0)


def test_a_fault_of_the_server_is_reported_and_affects_no_other_client(caplog, monkeypatch):
    with Rig() as rig:
        peer, other = rig.peer(), rig.peer()
        handlers = rig.server._dispatcher.handlers[Plane.CONTROL]
        monkeypatch.setitem(handlers, Status.TYPE, lambda *_: 1 / 0)
        error = peer.ask(Plane.CONTROL, Status()).body
        assert (error.code, rig.server.counters.faults) == (ErrorCode.INTERNAL, 1)
        assert "ZeroDivisionError" in error.text
        assert isinstance(other.ask(Plane.CONTROL, Ping()).body, Pong)
        assert "could not answer STATUS" in caplog.text
        caplog.clear()
        caplog.get_records("call").clear()


def test_waiting_calls_cost_nothing_while_nothing_has_changed():
    with Rig() as rig:
        actor = rig.peer()
        for _ in range(200):
            actor.send(Plane.CONTROL, Latest(name="w", most=10, timeout_s=100.0))
        rig.turn()
        asked = []
        for wait in rig.server._control_handler.waits._waits.values():
            wait.answer = asked.append
        for _ in range(10):
            rig.turn()
        assert not asked
        assert rig.server._left_s() <= 10
