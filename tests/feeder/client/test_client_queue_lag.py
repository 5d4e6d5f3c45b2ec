"""A queue hands out rows that are no older than it is long, whatever its writers and readers do."""

from __future__ import annotations

import contextlib
import logging
import threading

import numpy as np
import pytest

from async_loader import AsyncDataLoader, connect
from async_loader.errors import Timeout

WEIGHTS = {"w": np.zeros(1)}
FOR_EVER_S = 60.0


class Actors:
    """Threads that append to a queue without a pause and without `flush`."""

    def __init__(self, address, count, rows=1):
        self.address, self.rows = address, rows
        self.added = self.version = 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self.act) for _ in range(count)]

    def __enter__(self):
        for one in self.threads:
            one.start()
        return self

    def act(self):
        client = connect(self.address, timeout_s=FOR_EVER_S)
        writer = client.table("rollouts").writer()
        while not self.over.is_set():
            with contextlib.suppress(Timeout):
                if self.rows > 1:
                    version = np.full(self.rows, self.version)
                    writer.extend(policy_version=version, timeout_s=1)
                else:
                    writer.append(policy_version=self.version, timeout_s=1)
                with self.lock:
                    self.added += self.rows
        with contextlib.suppress(Timeout):  # no learner takes what is left
            client.close(0)

    def __exit__(self, *_):
        self.over.set()
        for one in self.threads:
            one.join(FOR_EVER_S)
            assert not one.is_alive()


def work():
    """What a learner does with a batch."""
    threading.Event().wait(0.003)


def queue(size):
    return connect("embedded", tables={"rollouts": {"queue": size}}, timeout_s=FOR_EVER_S)


def test_the_plain_program_trains_on_rows_that_are_a_few_versions_old():
    lags = []
    with queue(16) as client, Actors(client.address, 2) as actors:
        with AsyncDataLoader(client.table("rollouts"), batch_size=8) as loader:
            for version in range(300):
                batch = next(loader)
                lags.append(version - batch["policy_version"].numpy())
                work()
                client.publish("policy", WEIGHTS, version=version + 1)
                actors.version = version + 1
    assert np.mean(lags) <= 4


@pytest.mark.parametrize(
    ("size", "batch_size", "writers", "rows"),
    [(4, 4, 1, 1), (16, 8, 3, 1), (9, 2, 2, 5), (64, 8, 2, 3), (8, 8, 5, 16)],
)
def test_no_more_rows_wait_than_the_queue_takes_and_two_messages_of_each_writer(
    size, batch_size, writers, rows
):
    waiting = []
    with queue(size) as client, Actors(client.address, writers, rows) as actors:
        with AsyncDataLoader(client.table("rollouts"), batch_size=batch_size) as loader:
            for batches in range(1, 41):
                next(loader)
                work()
                waiting.append(actors.added - batches * batch_size)
    # one that waits, and one that was sent when the queue had told of a place that another took
    assert max(waiting) <= size + 2 * writers * rows


def test_status_says_how_far_behind_the_rows_of_the_last_batch_are():
    with queue(64) as client, client.table("rollouts").writer() as writer:
        client.publish("policy", WEIGHTS, version=0)
        writer.extend(x=np.arange(64), policy_version=np.zeros(64, int))
        writer.flush()
        client.publish("policy", WEIGHTS, version=17)
        client.table("rollouts").sample(8)
        assert client.status()["tables"]["rollouts"]["policies"]["policy"]["batch_lag"] == 17


def test_old_rows_of_a_queue_are_ended_and_counted_and_let_the_actor_go_on():
    with queue(8) as client, client.table("rollouts").writer() as writer:
        client.publish("policy", WEIGHTS, version=0)
        writer.extend(x=np.arange(8), policy_version=np.zeros(8, int))
        writer.flush()
        table = client.table("rollouts")
        with AsyncDataLoader(table, batch_size=2) as given_back:
            next(given_back)
        with AsyncDataLoader(table.source(max_lag=2), batch_size=2) as loader:
            client.publish("policy", WEIGHTS, version=5)
            writer.extend(x=np.arange(100), policy_version=np.arange(100) // 25)
            assert {int(v) for _ in range(12) for v in next(loader)["policy_version"]} == {3}
        stale = client.status()["tables"]["rollouts"]["stale"]
        assert sum(stale.values()) == 6 + 75


def test_a_learner_is_warned_once_of_rows_far_behind(caplog):
    with queue(64) as client, client.table("rollouts").writer() as writer:
        client.publish("policy", WEIGHTS, version=0)
        writer.extend(x=np.arange(64), policy_version=np.zeros(64, int))
        writer.flush()
        client.publish("policy", WEIGHTS, version=17)
        with caplog.at_level(logging.WARNING, "async_loader"):
            with AsyncDataLoader(client.table("rollouts"), batch_size=8) as loader:
                for _ in range(4):
                    next(loader)
            client.table("rollouts").sample(8)
        (said,) = [one.message for one in caplog.records]
        assert "17 versions behind version 17" in said
        assert "max_lag" in said
        assert client.status()["tables"]["rollouts"]["policies"]["policy"]["batch_lag"] == 17
