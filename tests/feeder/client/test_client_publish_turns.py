"""Threads that publish under one name through one client."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import numpy as np
import pytest
from test_client_shared import replay, serving

from async_loader.errors import Timeout, Unsupported
from async_loader.feeder.client import weights as parts

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


def test_of_threads_that_publish_one_version_one_has_published_it(client):
    for version in range(30):
        first, second = in_threads(
            lambda version=version: client.publish("p", weights(1), version),
            lambda version=version: client.publish("p", weights(2), version),
        )
        assert first != second
        assert value(client) == (version, 1 if first else 2)


def test_the_wait_for_another_thread_ends_with_the_deadline_of_the_call(client):
    taken, go_on = threading.Event(), threading.Event()

    def hold():
        with client._publishing:
            taken.set()
            assert go_on.wait(60.0)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60.0)
    try:
        with pytest.raises(Timeout, match="'p' wait for those that another thread"):
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
