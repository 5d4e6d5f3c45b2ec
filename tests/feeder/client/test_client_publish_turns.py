"""Threads, and signal handlers, that publish under one name through one client."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import numpy as np
import pytest
from storm_rig import count_points, some_points, strike
from test_client_shared import replay, serving

from async_loader.errors import Timeout, Unsupported
from async_loader.feeder.client import weights as parts
from async_loader.lifecycle import Deadline

SIZE = 1 << 18
PARTS = 16


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_BYTES", SIZE // PARTS)
    with serving(tmp_path, replay()) as (_, client):
        yield client


def weights(value):
    return {"w": np.full(SIZE, value, np.uint8)}


def value(client, name="p"):
    """The version, and the one number that the weights consist of."""
    found = client.latest(name)
    (number,) = set(found.tensors["w"].tolist())
    return found.version, number


def in_threads(*calls):
    """Call all at once; return their results, or raise the first error."""
    barrier, done = threading.Barrier(len(calls)), {}

    def run(place, call):
        barrier.wait()
        try:
            done[place] = call()
        except Exception as error:
            done[place] = error

    threads = [threading.Thread(target=run, args=one) for one in enumerate(calls)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for result in done.values():
        if isinstance(result, Exception):
            raise result
    return [done[place] for place in range(len(calls))]


def test_threads_that_publish_different_versions_do_not_disturb_each_other(client):
    for version in range(0, 60, 2):
        even, odd = in_threads(
            lambda version=version: client.publish("p", weights(2), version),
            lambda version=version: client.publish("p", weights(1), version + 1),
        )
        assert odd  # the even one may have come too late
        assert value(client) == (version + 1, 1), even
    assert not client._turns._taken


def test_of_threads_that_publish_one_version_one_has_published_it(client):
    for version in range(30):
        first, second = in_threads(
            lambda version=version: client.publish("p", weights(1), version),
            lambda version=version: client.publish("p", weights(2), version),
        )
        assert first != second
        assert value(client) == (version, 1 if first else 2)


def test_other_names_do_not_wait(client):
    def publish(turn):
        return client.publish("q", weights(1), 1, timeout_s=30.0)

    assert client._turns.run("p", Deadline(30.0), publish)


def test_the_wait_for_another_thread_ends_with_the_deadline_of_the_call(client):
    taken, go_on = threading.Event(), threading.Event()

    def hold(turn):
        taken.set()
        assert go_on.wait(60.0)

    thread = threading.Thread(target=lambda: client._turns.run("p", Deadline(60.0), hold))
    thread.start()
    assert taken.wait(60.0)
    try:
        with pytest.raises(Timeout, match="'p' are still being published by another thread"):
            client.publish("p", weights(1), 1, timeout_s=0.05)
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            with contextlib.suppress(Unsupported):
                client.publish("p", weights(1), 1, timeout_s=30.0)
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        go_on.set()
        thread.join()
    assert client.publish("p", weights(1), 1)


@pytest.mark.parametrize("at", [0, 1, 7, PARTS - 2])
@pytest.mark.parametrize(
    ("version", "fails", "last"),
    [(6, False, (6, 2)), (5, False, (5, 2)), (4, False, (5, 1)), (5, True, (5, 1))],
    ids=["above", "equal", "below", "equal and given up"],
)
def test_a_signal_handler_publishes_first_and_nothing_is_mixed(
    client, monkeypatch, at, version, fails, last
):
    """The signal comes with a part of the publication that its handler interrupts."""
    ask, step, done = client._connection.ask, SIZE // PARTS, []

    def asked(call):
        if not done and call.body.offset == step * at:
            done.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return ask(call)

    def handle(*_):
        monkeypatch.setattr(client._connection, "ask", until_there if fails else ask)
        with contextlib.suppress(Timeout):
            done.append(client.publish("p", weights(2), version))
        monkeypatch.setattr(client._connection, "ask", asked)

    def until_there(call):
        if call.body.offset > step * at:
            raise Timeout("given up where the other publication goes on")
        return ask(call)

    monkeypatch.setattr(client._connection, "ask", asked)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        published = client.publish("p", weights(1), 5)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert value(client) == last
    assert (published, done) == (last[1] == 1, [None] if fails else [None, True])
    assert not client._turns._taken


def test_ctrl_c_anywhere_ends_the_turn(client):
    assert client.publish("p", weights(0), 0)
    version = 1
    total = count_points(lambda: client.publish("p", weights(1), 1))
    for at in some_points(total, 60, seed=3):
        version += 1
        strike(lambda version=version: client.publish("p", weights(1), version), at)
        assert not client._turns._taken
        version += 1
        (published,) = in_threads(
            lambda version=version: client.publish("p", weights(2), version, timeout_s=30.0)
        )
        assert published
    assert value(client) == (version, 2)
