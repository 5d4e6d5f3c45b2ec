"""A feeder's table: sample, get, update, delete, clear, save and load, one message each."""

from __future__ import annotations

import pickle
import re
import threading

import numpy as np
import pytest

from async_loader import Field, MinSize, Prioritized, Transitions
from async_loader.errors import (
    CannotSend,
    ConfigError,
    NotEnoughData,
    SchemaError,
    Timeout,
    Unsupported,
)
from async_loader.feeder import connect

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


def test_a_sample_has_what_the_table_holds(client):
    table = filled(client, "plain")
    for _ in range(20):  # over the socket first, then through shared memory
        batch = table.sample(32)
        assert set(batch) == {"obs", "reward", "index"}
        assert batch["obs"].shape == (32, 4)
        assert (batch["obs"][:, 0] == batch["reward"]).all()
        got = table.get(batch["index"])
        assert (got["reward"] == batch["reward"]).all()


@pytest.mark.slow
def test_a_table_may_be_asked_for_anew_at_each_call(client):
    filled(client, "plain")
    for _ in range(300):  # a session has 256 readers at most
        assert len(client.table("plain").sample(4)["reward"]) == 4
    assert client.status()["tables"]["plain"]["readers"] == 1


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


def test_a_sample_that_is_held_stays_as_it_was(client):
    table = filled(client, "plain")
    held = [table.sample(8192) for _ in range(12)]
    copies = [batch["obs"].copy() for batch in held]
    for _ in range(12):
        table.sample(8192)
    assert all((batch["obs"] == copy).all() for batch, copy in zip(held, copies, strict=True))


@pytest.mark.slow
def test_an_empty_table_without_a_limiter_says_so_at_once(client):
    table = client.table("plain")
    with pytest.raises(NotEnoughData, match="the table holds 0"):
        table.sample(8)


@pytest.mark.slow
def test_a_limiter_is_waited_for_until_the_timeout(client):
    table = filled(client, "rated", 10)
    with pytest.raises(Timeout, match=r"0.05 s have passed, and still cannot sample: .*50"):
        table.sample(8, timeout_s=0.05)
    with pytest.raises(Timeout, match="0 s have passed"):
        table.sample(8, timeout_s=0)
    found = []
    thread = threading.Thread(target=lambda: found.append(table.sample(8, timeout_s=30)))
    thread.start()
    with table.writer() as writer:
        writer.extend(obs=np.zeros((60, 4), np.float32), reward=np.zeros(60, np.float32))
    thread.join(30)
    assert len(found[0]["reward"]) == 8


@pytest.mark.slow
def test_a_queue_gives_each_row_once(client):
    table = filled(client, "queue", 48)
    seen = np.concatenate([table.sample(16, timeout_s=60)["reward"] for _ in range(3)])
    assert sorted(seen.tolist()) == list(range(48))
    assert len(table) == 0
    with pytest.raises(Timeout):
        table.sample(16, timeout_s=0)


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


def test_rows_by_id_are_read_changed_and_taken_out(client):
    table = filled(client, "plain", 10)
    ids = table.sample(64)["index"]
    known = np.unique(ids)
    assert table.update(known, reward=np.full(len(known), 7.0)).applied == len(known)
    assert (table.get(known)["reward"] == 7).all()
    done = table.delete(known[:1])
    assert (done.applied, done.stale) == (1, 0)
    assert table.delete(known[:1]).stale == 1
    got = table.get(known)
    assert got["index"].tolist() == known[1:].tolist() or got["index"].tolist() == known.tolist()
    assert table.get([10**9])["reward"].shape == (0,)
    with pytest.raises(SchemaError, match="'nothing' cannot be updated"):
        table.update(known, nothing=np.zeros(len(known)))


def test_priorities_reach_the_table(client):
    table = filled(client, "weighted", 10)
    batch = table.sample(64)
    assert batch["weight"].dtype == np.float32
    done = table.update_priorities(batch["index"], np.ones(64))
    assert (done.applied, done.stale) == (64, 0)
    with pytest.raises(
        ConfigError, match=r"priority 0 of \d+ is .*: priorities are numbers from 0 to 1e\+100"
    ):
        table.update_priorities(batch["index"], -np.ones(64))
    with pytest.raises(Unsupported, match="no priorities"):
        filled(client, "plain").update_priorities([0], [1.0])


def test_a_view_is_the_one_of_the_call(client):
    table = client.table("linked")
    with table.writer(
        schema={"obs": Field((), "float32", next="next_obs"), "reward": "float32"}
    ) as writer:
        for step in range(20):
            writer.append(obs=step, reward=1.0)
    batch = table.sample(64, view=Transitions(n_steps=3, gamma=0.5))
    early = batch["obs"] < 15  # the last steps have fewer behind them
    assert early.any()
    assert (batch["next_obs"] - batch["obs"] == 3)[early].all()
    assert (batch["reward"] == 1.75)[early].all()


def test_a_table_says_what_it_is(client):
    table = filled(client, "rated", 10)
    assert table.capacity == 1000
    assert table.schema.fields[0].name == "obs"
    assert table.nbytes > 0
    assert table.limiter.min_size_to_sample == 50
    assert len(table) == 10
    assert "'rated'" in repr(table)
    assert (table.stats().size, table.stats().capacity) == (10, 1000)


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


@pytest.mark.slow
def test_weights_that_are_no_mapping_are_refused(client):
    with pytest.raises(SchemaError, match="tensors is a ndarray: give a dict of arrays or tensors"):
        client.publish("policy", np.zeros(3), version=1)


def test_tables_that_are_no_mapping_are_refused():
    with pytest.raises(ConfigError, match=r"tables=\['replay'\]: give a dict of names and sizes"):
        connect("embedded", tables=["replay"])  # type: ignore[arg-type]
