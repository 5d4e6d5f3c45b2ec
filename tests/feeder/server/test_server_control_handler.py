"""Every control message is answered, at once or when its time has come; sessions come, are
replaced, and fall silent.
"""

from __future__ import annotations

import pytest
from server_rig import SCHEMA, Rig

from async_loader import ReplayBuffer
from async_loader.feeder.wire import (
    CloseReader,
    Done,
    Drain,
    End,
    Error,
    ErrorCode,
    Hello,
    Latest,
    OpenReader,
    OpenWriter,
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
)
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo

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
        assert isinstance(peer.receive(Plane.CONTROL).body, Done)
        for plane in Plane:
            answer = peer.ask(plane, Ping(), 7, 99)
            assert (type(answer.body), answer.number, answer.sequence) == (Pong, 7, 99)
        assert rig.server.counters["faults"] == 0


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


def test_a_writer_closes_when_everything_is_in_the_table():
    with Rig(held_up()) as rig:
        peer, learner = rig.peer(), rig.peer()
        peer.open_writer()
        learner.open_reader(batch_size=2)
        peer.insert(0, range(6))
        peer.close_writer(1)
        assert peer.receive(Plane.CONTROL).body.code == ErrorCode.UNKNOWN_WRITER
        learner.pull(1)
        rig.turn()
        peer.close_writer(1)
        assert isinstance(peer.receive(Plane.CONTROL).body, Done)
        assert not rig.server_state.sessions.get(peer.session).writers


def test_waiting_calls_are_answered_at_the_end():
    with Rig(held_up(), drain_s=1.0) as rig:
        peer, other = rig.peer(), rig.peer()
        peer.open_writer()
        peer.insert(0, range(10))
        peer.send(Plane.CONTROL, Latest(name="w", most=10, timeout_s=1e6))
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
        assert [type(one) for one in answers] == [Weights, End]
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
        assert not list(rig.server._control_handler.waits)
        assert (
            peer.ask(Plane.CONTROL, Ping(), session=before).body.code == ErrorCode.UNKNOWN_SESSION
        )
        answer = peer.open_writer().body
        assert (answer.resumed, answer.applied) == (True, 1)
        peer.open_reader(batch_size=4)
        peer.pull(1)
        assert peer.receive(Plane.PULL).flags == 2


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


def test_a_client_gets_all_of_the_weights_that_it_has_begun_to_read():
    with Rig() as rig:
        learner, actor, other = rig.peer(), rig.peer(), rig.peer()

        def publish(version):
            assert learner.ask(Plane.CONTROL, part(version), data=bytes([version]) * 8).body.newest

        def read(peer, **more):
            said = peer.ask(Plane.CONTROL, Latest(name="w", most=3, **more))
            return said.body.version, said.body.offset, bytes(said.data)

        publish(1)
        assert read(actor) == (1, 0, b"\1\1\1")
        publish(2)
        assert read(other) == (2, 0, b"\2\2\2")
        publish(3)
        assert read(actor, version=1, offset=3) == (1, 3, b"\1\1\1")
        assert read(actor, version=1, offset=6) == (1, 6, b"\1\1")
        assert read(actor, version=1, offset=3) == (3, 0, b"\3\3\3"), "it had all of it"
        weights = rig.server_state.weights
        assert sorted(one.version for one in weights._reading.values()) == [2, 3]
        weights._most = 3  # there is room for one
        assert read(actor, version=3, offset=3) == (3, 3, b"\3\3\3")
        assert read(other, version=2, offset=3) == (3, 0, b"\3\3\3")
        weights.gone(actor.session)
        weights.gone(other.session)
        assert not weights._reading


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
        died = {one["state"]: one["role"] for one in said["sessions_died"]}
        assert died == {"died": "actor", "lost": "actor"}
        assert min(one["silent_s"] for one in said["sessions_died"]) >= 10.0
        peers["lost"].hello()
        assert [one["state"] for one in peers["works"].status()["sessions_died"]] == ["died"]


def test_status_says_what_clients_are_and_names_the_last_16_that_died():
    with Rig() as rig:
        peer = rig.peer()
        reader, writer = (
            OpenReader(table="t", batch_size=1),
            OpenWriter(table="t", producer=bytes(16)),
        )
        asked = Ping(), Status(), Latest(name="policy", most=10), reader, writer
        roles = []
        for number, message in enumerate(asked):
            peer.send(Plane.CONTROL, message, number)
            rig.turn()
            roles.append(rig.server.status()["sessions"][0]["role"])
        assert roles == ["other", "watcher", "evaluator", "learner", "actor"]
        for number in range(1, 19):
            other = rig.peer()
            other.open_writer(producer=bytes([number] * 16))
            other.close()
            rig.turn()
        rig.pass_time(rig.server._settings.silence_s / 2)
        peer.ask(Plane.CONTROL, Ping())
        rig.pass_time(rig.server._settings.silence_s / 2)
        said = rig.server.status()
        assert (said["sessions_ended"]["died"], len(said["sessions"])) == (18, 1)
        assert [one["id"] for one in said["sessions_died"]] == list(range(4, 20))


def test_a_fault_of_the_server_is_reported_and_affects_no_other_client(caplog, monkeypatch):
    with Rig() as rig:
        peer, other = rig.peer(), rig.peer()
        handlers = rig.server._dispatcher.handlers[Plane.CONTROL]
        monkeypatch.setitem(handlers, Status.TYPE, lambda *_: 1 / 0)
        error = peer.ask(Plane.CONTROL, Status()).body
        assert (error.code, rig.server.counters["faults"]) == (ErrorCode.INTERNAL, 1)
        assert "ZeroDivisionError" in error.text
        assert isinstance(other.ask(Plane.CONTROL, Ping()).body, Pong)
        assert "could not answer STATUS" in caplog.text
        caplog.clear()
        caplog.get_records("call").clear()


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
