"""A session is its client's own: what others can learn of it lets them do nothing in its name."""

from __future__ import annotations

import logging

import pytest
from server_rig import NO_SLOTS, SCHEMA, Peer, Rig, in_thread, rows_of

from async_loader import ReplayBuffer
from async_loader.feeder.curve_keys import apply_client_keys, curve_of, load_server_keys
from async_loader.feeder.server import Server
from async_loader.feeder.server.sessions import Sessions
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import (
    CloseWriter,
    Drain,
    Error,
    ErrorCode,
    Latest,
    OpenReader,
    Ping,
    Plane,
    Pong,
    Pull,
    Status,
)
from tests.insert_rows import insert


@pytest.fixture
def sessions():
    return Sessions(10, 10.0, lambda: 0.0)


class Locked(Peer):
    """A peer with keys."""

    def __init__(self, context, endpoints, keys, **others) -> None:
        super().__init__(Keyed(context, keys), endpoints, **others)


class Keyed:
    """Makes sockets with keys."""

    def __init__(self, context, keys) -> None:
        self._context, self._keys = context, keys

    def socket(self, kind):
        one = self._context.socket(kind)
        apply_client_keys(one, self._keys)
        return one


@pytest.fixture
def locked(folder):
    """A server with keys, in a thread."""
    mechanism = curve_of(load_server_keys(folder))
    where = dict.fromkeys(Plane, "tcp://127.0.0.1:0")
    server = Server(
        {"t": ReplayBuffer(1000, SCHEMA, seed=0)},
        where,
        mechanism=mechanism,
        settings=ServiceSettings(drain_s=1.0),
    )
    yield from in_thread(server)


@pytest.fixture
def two(locked, context, folder):
    """Alice, and Mallory who is known too and has learned the number of Alice's session."""
    with (
        Locked(context, locked.endpoints, folder / "alice.secret") as alice,
        Locked(context, locked.endpoints, folder / "bob.secret") as mallory,
    ):
        alice.hello()
        mallory.hello()
        yield alice, mallory


@pytest.mark.parametrize("plane", list(Plane))
def test_with_keys_anothers_number_is_worth_nothing_on_any_plane(two, plane):
    alice, mallory = two
    alice.open_writer()
    alice.insert(0, [1, 2, 3])
    assert alice.receive(Plane.INSERT).body.applied == 1
    layout, steps = rows_of([666])
    bodies = {
        Plane.CONTROL: (
            Ping(),
            Status(),
            CloseWriter(last=1),
            OpenReader(table="t", batch_size=1),
            Latest(name="w", most=1),
            Drain(),
        ),
        Plane.INSERT: (Ping(), insert(layout, steps)),
        Plane.PULL: (Ping(), Pull(1, NO_SLOTS)),
    }[plane]
    for body in bodies:
        mallory.send(plane, body, 1, 1, session=alice.session, schema=layout.schema_id)
        answer = mallory.receive(plane).body
        assert isinstance(answer, Error)
        assert answer.code == ErrorCode.UNKNOWN_SESSION
        assert str(alice.session) not in answer.text
        assert f"{alice.session:x}" not in answer.text
    alice.insert(1, [4])
    assert alice.receive(Plane.INSERT).body.applied == 2, "its routes are its own still"
    status = alice.status()
    assert status["tables"]["t"]["inserted"] == 4
    assert not status["draining"]


def test_a_client_id_of_another_user_does_not_end_its_session(two, locked, context, folder):
    alice, _ = two
    with Locked(context, locked.endpoints, folder / "bob.secret", client=alice.client) as thief:
        thief.hello()
        assert isinstance(alice.ask(Plane.CONTROL, Ping()).body, Pong)


def numbers(value) -> set:
    """Everything that stands in plain values."""
    if isinstance(value, dict):
        return numbers(list(value.items()))
    if isinstance(value, list | tuple):
        return set().union(*map(numbers, value))
    return {value}


def test_the_number_of_a_session_stands_in_no_status_no_error_and_no_log(caplog):
    with Rig() as rig, caplog.at_level(logging.DEBUG):
        one, other = rig.peer(), rig.peer()
        one.open_writer()
        one.open_reader()
        (session, _) = rig.server_state.sessions
        said = other.status()
        assert session.number == one.session
        assert session.number not in numbers(said)
        assert [row["id"] for row in said["sessions"]] == [1, 2]
        one.pull(1, 9)
        assert isinstance(one.receive(Plane.PULL).body, Error)
        text = f"{said}{caplog.text}{session!r}"
        assert str(session.number) not in text
        assert f"{session.number:x}" not in text
