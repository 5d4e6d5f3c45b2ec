"""A session's life, without sockets and with a clock that the test turns."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader.feeder import wire
from async_loader.feeder.client.reconnecting import (
    BACKOFF_MOST_S,
    SILENCE_S,
    Action,
    Session,
)

WELCOME = wire.Welcome(
    incarnation=secrets.token_bytes(16),
    heartbeat_s=1.0,
    silence_s=10.0,
    insert_endpoint="tcp://a:1",
    pull_endpoint="tcp://a:2",
    memory_endpoint=None,
    limits=wire.Limits(),
    tables=(),
)


def opened(wait_s=None):
    session = Session(0.0, wait_s, lambda: 1.0)
    assert session.step(0.0) is Action.CONNECT
    assert session.welcomed(0.0, 5, WELCOME)
    return session


def test_silence_ends_it_and_backoff_grows_to_a_bound():
    session = opened()
    assert session.step(9.99) is Action.PING
    assert session.step(10.0) is Action.LEAVE
    now, gaps = 10.0, []
    for _ in range(12):
        at = session.due()
        assert session.step(at) is Action.CONNECT
        gaps.append(round(at - now, 6))
        assert session.due() == pytest.approx(at + SILENCE_S)
        now = at + 1.0
        session.lost(now)  # it was refused
    assert gaps[0] == pytest.approx(0.1)
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(BACKOFF_MOST_S)


def test_it_gives_up_when_it_was_told_to():
    for wait_s in (0.0, 3.0):
        session = opened(wait_s)
        session.lost(5.0)
        assert session.due() <= 5.0 + max(wait_s, 0.1)
        assert session.step(5.0 + wait_s) is Action.GIVE_UP


@given(
    st.lists(
        st.tuples(st.sampled_from(["step", "sent", "heard", "welcome", "lost"]), st.floats(0, 4)),
        max_size=60,
    )
)
def test_it_always_has_something_due_and_time_alone_never_stops_it(events):
    session, now = Session(0.0, None, lambda: 0.5), 0.0
    for event, after in events:
        now += after
        if event == "step":
            for _ in range(5):
                if session.step(now) is None:
                    break
            else:
                raise AssertionError("there is always something to do")
            assert session.due() > now
        elif event == "welcome":
            session.welcomed(now, 1, WELCOME)
        else:
            getattr(session, event)(now)
