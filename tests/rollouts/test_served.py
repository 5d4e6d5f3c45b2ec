"""A table of rollouts of a feeder: the same methods, from other processes, which may be killed."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
from play import Round
from test_rollouts import SCHEMA, commit, next_of
from waiting_rig import until

from async_loader import AsyncDataLoader, Prioritized, Rollouts, connect
from async_loader.errors import ConfigError, SchemaError, Timeout
from async_loader.feeder.settings import ServerSettings

pytestmark = pytest.mark.usefixtures("near_feeders")

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def client():
    tables = {"math": Rollouts(SCHEMA, batch=2, max_lag=1, size=2, replay=4)}
    with connect("embedded", tables=tables) as one:
        yield one


def generate(address):
    with connect(address) as client:
        for group in client.table("math").groups(range(21)):
            while group.missing:
                n = 1 + group.prompt % 3
                group.append(tokens=[group.prompt] * n, version=[group.version] * n)
            group.update(answer=group.prompt)


def grade(address):
    with connect(address) as client:
        for member in client.table("math").members(["tokens"], ["reward"]):
            assert member.update(reward=member["answer"] % 3)


def test_processes_share_a_table(client):
    table, seen, step = client.table("math"), [], 0
    processes = [
        SPAWN.Process(target=generate, args=(client.address,)),
        SPAWN.Process(target=generate, args=(client.address,)),
        SPAWN.Process(target=grade, args=(client.address,)),
    ]
    for process in processes:
        process.start()
    source = table.source(needs=["reward"], keep=lambda group: group["reward"].min() > 0)
    with AsyncDataLoader(source, timeout_s=60) as loader:
        for batch in loader:
            assert batch["lag"].max() <= 1
            numbers = batch["prompt_index"].numpy()
            expected = np.repeat(numbers[batch["group"]], np.diff(batch["offsets"]))
            assert (batch["tokens"].numpy() == expected).all()
            seen += numbers.tolist()
            step += 1
            client.publish("policy", {"w": np.zeros(1)}, step)
    for process in processes:
        process.join(30)
    stats = table.stats()
    assert sorted(seen) == [one for one in range(21) if one % 3]
    assert (stats.drawn, stats.trained, stats.ended) == (21, 14, {"filtered": 7})
    assert stats.given_back.keys() <= {"not begun"}  # reserved ahead, by a loop that was slow then
    assert stats.free == stats.slots
    assert client.status()["rollouts"]["math"]["trained"] == 14


def test_a_wait_names_what_it_waits_for(client):
    table = client.table("math")
    commit(table)
    with pytest.raises(Timeout, match="2 groups: 0 are there, 1 lack reward"):
        next_of(first := table.source(needs=["reward"]), 0.05)
    for prompt in range(3):
        commit(table, prompt)
    with pytest.raises(Timeout, match="one of 4 slots: 4 ready"):
        table.reserve(timeout_s=0.05)
    with pytest.raises(SchemaError, match="no field 'logprob'"):
        table.source(needs=["logprob"])
    with pytest.raises(ConfigError, match="close them, or say the same"):
        next_of(table.source(needs=["reward"], tokens=3), 1)
    first.close()


def test_a_producer_that_is_gone_is_named(client):
    table = client.table("math")
    with connect(client.address) as other:
        other.table("math").reserve("a")
        assert table.stats().states["reserved"] == 1
    until(lambda: table.stats().given_back)  # a feeder hears of it a little later
    group = table.reserve("b", timeout_s=10)
    assert (group.prompt, group.tries) == ("a", 2)
    assert table.stats().given_back == {"its client left": 1}


def test_weights_of_another_name_free_slots_and_move_no_version(client):
    table = client.table("math")
    for prompt in range(2):
        commit(table, prompt, reward=1)
    source = table.source()
    next_of(source)
    client.publish("critic", {"w": np.zeros(1)}, 7)
    stats = table.stats()
    assert (stats.trained, stats.free, stats.version) == (2, 4, 0)
    client.publish("policy", {"w": np.zeros(1)}, 3)
    assert table.version == 3


def test_late_fields_and_priorities_go_by_id(client):
    table = client.table("math")
    for prompt in range(2):
        commit(table, prompt, size=2)
    index = np.array([0, 1, 1 << 16, (1 << 16) + 1, 9 << 16])
    assert table.update(index, reward=np.arange(5.0)).stale == 1
    source = table.source(needs=["reward"], sampler=Prioritized(), max_times_sampled=2)
    batch = next_of(source)
    assert batch["reward"].tolist() in ([0, 1, 2, 3], [2, 3, 0, 1])
    assert source.update_priorities(batch["index"], np.ones(4)).applied == 2
    assert table.get(index)["tokens"].tolist() == [1, 2] * 4
    assert table.delete(index).stale == 3


def test_a_batch_that_is_larger_than_a_message_comes_in_parts(client):
    table, length = client.table("math"), 6 << 20
    for prompt in range(2):
        tokens = np.arange(length, dtype=np.int32) + prompt
        version = np.zeros(length, np.int32)
        commit(table, prompt, tokens=tokens, version=version, reward=1)
    batch = next_of(table.source(), 60)
    assert len(batch["tokens"]) == 2 * length
    assert (batch["tokens"][:length] == np.arange(length)).all()
    assert (batch["tokens"][-length:] == np.arange(length) + 1).all()


def test_groups_that_are_larger_than_a_message_are_added_in_parts(client):
    table, length = client.table("math"), 5 << 20
    batch = {
        "tokens": np.arange(2 * length, dtype=np.int32), "version": np.zeros(2 * length, np.int32),
        "offsets": [0, length, 2 * length], "group": [0, 1], "reward": [1, 2], "answer": [3, 4],
    }  # fmt: skip
    assert len(table.extend(batch, prompts=["a", "b"])) == 2
    found = next_of(table.source(), 60)
    assert (found["tokens"] == batch["tokens"]).all()
    assert found["answer"].tolist() == [3, 4]
    with pytest.raises(ConfigError, match="give less at a time"):
        commit(table, tokens=np.zeros(20 << 20, np.int32), version=np.zeros(20 << 20, np.int32))


def test_a_save_is_one_cut_with_what_the_learner_was_given(client, tmp_path):
    table = client.table("math")
    for prompt in range(4):
        commit(table, prompt, reward=1)
    source = table.source()
    first = next_of(source)["prompt_index"].tolist()
    assert table.save(tmp_path / "cut") > 0
    source.close()
    table.clear()
    table.load(tmp_path / "cut")
    rest = next_of(table.source())["prompt_index"].tolist()
    assert sorted(first + rest) == [0, 1, 2, 3]


LENGTH = 1 << 17
"""Tokens of a group that goes through shared memory."""


def put_large(table, number):
    commit(table, tokens=np.full(LENGTH, number), version=np.zeros(LENGTH, int), reward=1)


def large_of(source):
    batch = next_of(source, 60)
    assert source.hand_out(source._lease)
    return batch["tokens"]


def test_large_values_go_through_slots_that_are_used_again_when_no_array_is_left(client):
    table, held, seen = client.table("math"), [], []
    source, memory = table.source(), client._call_memory
    for number in range(0, 24, 2):
        put_large(table, number)
        put_large(table, number + 1)
        tokens = large_of(source)
        seen += tokens[::LENGTH].tolist()
        if len(held) < 2:
            held.append(tokens)
    assert seen == list(range(24))
    assert [one[::LENGTH].tolist() for one in held] == [[0, 1], [2, 3]]
    assert held[0].flags.writeable
    del tokens
    source.close()
    assert memory.ring.free == memory.ring.count - 2


def test_a_draw_that_is_given_up_frees_its_slot_once_the_feeder_knows(client):
    table, memory = client.table("math"), client._call_memory
    source = table.source()
    for _ in range(9):
        with pytest.raises(Timeout):
            next_of(source, 0.01)
    assert memory.ring.free == memory.ring.count
    put_large(table, 1)
    put_large(table, 2)
    assert large_of(source)[::LENGTH].tolist() == [1, 2]


def test_a_call_goes_over_the_socket_if_its_slot_is_of_an_earlier_session(client, monkeypatch):
    table = client.table("math")
    monkeypatch.setattr(
        client._call_memory, "lease", lambda: (0, 1, np.empty(16 * LENGTH, np.uint8))
    )
    put_large(table, 1)
    put_large(table, 2)
    assert large_of(table.source())[::LENGTH].tolist() == [1, 2]


def test_a_draw_that_was_given_up_takes_no_step(client):
    table = client.table("math")
    given_up = table.source()
    with pytest.raises(Timeout):
        next_of(given_up, 0.1)
    given_up.release(5)
    for prompt in range(2):
        commit(table, prompt, reward=1)
    assert len(next_of(table.source())["prompt_index"]) == 2


def test_a_quick_loop_reserves_ahead_and_gives_back_once_it_is_not_quick():
    wide = {"wide": Rollouts(SCHEMA, batch=32, max_lag=0, size=1, tries=1)}
    with connect("embedded", tables=wide) as one:
        table = one.table("wide")
        for group in table.groups(range(40)):
            group.append(tokens=[1], version=[0], reward=0)
            if group.prompt == 3:
                ahead = table.stats().states["reserved"] - 1
                threading.Event().wait(0.1)
            if group.prompt == 4:
                assert table.stats().states["reserved"] == 1
            if group.prompt == 8:
                break
        stats = table.stats()
        assert 0 < ahead <= 7
        assert (stats.states["reserved"], stats.states["ready"]) == (0, 8)
        assert dict(stats.ended) == {"the loop was left": 1}


def test_groups_of_one_message_are_as_they_were_made_and_the_last_needs_no_other_to_be_sent():
    wide = {"wide": Rollouts(SCHEMA, batch=32, max_lag=0, size=1, tries=1)}
    with connect("embedded", tables=wide) as one, connect(one.address) as other:
        table, there = one.table("wide"), other.table("wide")
        for group in table.groups(range(32)):
            if group.prompt == 20:  # the one before is held for this one
                until(lambda: there.stats().states["ready"] == 20)
            for member in range(1 + group.prompt % 3):
                late = {} if group.prompt % 5 == 0 and member else {"reward": member}
                group.append(tokens=[group.prompt] * member, version=[0] * member, **late)
            if group.prompt % 4:
                group.update(answer=group.prompt)
            if group.prompt == 31:
                break
        groups = {}
        for member in there.members(["tokens"], name="all", timeout_s=10):
            groups.setdefault(int(member.group), []).append(member)
        assert len(groups) == 31
        for prompt, members in enumerate(groups.values()):
            assert len(members) == 1 + prompt % 3
            for number, member in enumerate(members):
                assert member["tokens"].tolist() == [prompt] * number
                assert member.get("answer") == (prompt if prompt % 4 else None)


def test_a_commit_whose_caller_waits_no_longer_is_made_with_all_groups_of_its_message():
    wide = {"wide": Rollouts(SCHEMA, batch=8, max_lag=0, size=1)}
    with connect("embedded", tables=wide) as one, connect(one.address) as other:
        table, held = one.table("wide"), threading.Event()
        groups = [table.reserve(prompt) for prompt in range(4)]
        ready = table._port._ready
        table._port._ready = lambda call: held.is_set() and ready(call)
        asked = []
        for group in groups:
            group.append(tokens=[1], version=[0])
            asked = group.ask_commit(asked, 60.0)
        assert len(table._port._told) == 1
        with pytest.raises(Timeout):
            groups[0].committed(asked, 0.05)
        held.set()
        one._connection.wake()
        until(lambda: other.table("wide").stats().states["ready"] == 4)


def test_producers_need_no_torch(client):
    code = """
import sys
from async_loader import connect
with connect(sys.argv[1]) as client:
    with client.table("math").reserve() as group:
        group.append(tokens=[1])
    for member in client.table("math").members(["tokens"], ["reward"]):
        member.update(reward=1)
        break
assert not {"torch", "numba"} & set(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code, client.address], check=True, timeout=100)


def test_settings_of_a_file_make_a_table():
    plain = Rollouts(SCHEMA, batch=4, max_lag=2, stale="drop").settings.plain()
    given = ServerSettings.from_plain({"math": {"rollouts": plain}}).make_rollouts()["math"]
    assert given == Rollouts(SCHEMA, batch=4, max_lag=2, stale="drop").settings
    for wrong, text in (
        ({"batch": 4}, "needs a 'schema'"),
        ({**plain, "batch": 0}, "batch is 0"),
        ({**plain, "speed": 1}, "no such setting"),
        ({**plain, "schema": {"tokens": {"dtype": "text"}}}, "text"),
    ):
        with pytest.raises(ConfigError, match=text):
            ServerSettings.from_plain({"math": {"rollouts": wrong}})


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("generator", "grader"), ("learner", "feeder")])
def test_each_prompt_is_trained_once_when_processes_are_killed(kinds):
    assert Round(7, kinds, kills=4).play() == []
