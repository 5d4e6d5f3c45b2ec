"""A feeder's table: sample, get, update, delete, clear, save and load, one message each."""

from __future__ import annotations

import pickle
import re
import threading

import numpy as np
import pytest

from async_loader import Field, MinSize, Prioritized
from async_loader.errors import (
    CannotSend,
)
from async_loader.feeder import connect

pytestmark = pytest.mark.usefixtures("near_feeders")

SCHEMA = {"obs": Field((4,), "float32"), "reward": Field((), "float32")}


@pytest.fixture
def client():
    tables = {
        "plain": 1000,
        "rated": {"capacity": 1000, "limiter": MinSize(50)},
        "queue": {"queue": 64},
        "weighted": {"capacity": 1000, "sampler": Prioritized()},
        "linked": 1000,
    }
    with connect("embedded", tables=tables) as made:
        yield made


def filled(client, name, rows=100):
    table = client.table(name)
    with table.writer(schema=SCHEMA) as writer:
        obs = np.repeat(np.arange(rows, dtype=np.float32)[:, None], 4, axis=1)
        writer.extend(obs=obs, reward=np.arange(rows, dtype=np.float32))
    return table


@pytest.mark.slow
def test_samples_of_many_threads_are_their_own(client):
    table = filled(client, "plain")
    wrong = []

    def draw(size):
        for _ in range(30):
            batch = table.sample(size)
            if len(batch["reward"]) != size or (batch["obs"][:, 0] != batch["reward"]).any():
                wrong.append(size)

    threads = [threading.Thread(target=draw, args=(size,)) for size in (8, 8, 8, 16, 20_000)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not wrong


def test_a_batch_that_came_too_late_goes_back_to_the_queue(client, monkeypatch):
    table = filled(client, "queue", 32)
    table.sample(16, timeout_s=60)
    ((_, source),) = table._readers._idle

    def interrupted(channel, received):
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.sample(16, timeout_s=60)
    batch = table.sample(16, timeout_s=60)
    assert sorted(batch["reward"].tolist()) == list(range(16, 32))


def test_what_belongs_to_a_client_says_what_travels_instead(client):
    table = filled(client, "rated", 10)
    with table.writer() as writer:
        for one, said in (
            (client, f"say connect('{client.address}') there"),
            (table, f"say connect('{client.address}').table('rated') there"),
            (writer, "connect(address).table('rated').writer() there"),
            (table.source(), "connect(address).table(name) there"),
        ):
            with pytest.raises(CannotSend, match=re.escape(said)):
                pickle.dumps(one)
