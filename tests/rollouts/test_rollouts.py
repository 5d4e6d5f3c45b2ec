"""A table of rollouts in this process, as a program uses it."""

from __future__ import annotations

import contextlib
import threading
from functools import partial

import numpy as np
import pytest
import torch

from async_loader import AsyncDataLoader, Field, Prioritized, Ragged, Rollouts, Uniform, connect
from async_loader.errors import ConfigError, CorruptCheckpoint, SchemaError, Timeout
from async_loader.lifecycle import Deadline, Patience
from async_loader.rollouts import jagged, micro_batches, padded
from async_loader.rollouts.balance import micro_batches as share
from async_loader.rollouts.balance import shares
from async_loader.rollouts.requests import Requests
from async_loader.source import END

SCHEMA = {
    "tokens": Ragged("int32"),
    "version": Ragged("int32"),
    "reward": "float32",
    "answer": Field((), "int32", scope="group"),
}


def add(table, prompts, size=2, reward=1.0, length=3, **fields):
    for number, group in enumerate(table.groups(prompts, size=size)):
        for member in range(size):
            tokens = np.full(length + member, number)
            more = {} if reward is None else {"reward": reward}
            group.append(tokens=tokens, version=np.full(len(tokens), group.version), **more)
        group.update(answer=number, **fields)
        if number == len(prompts) - 1:
            group.commit()
            return


def commit(table, prompt=0, size=1, **fields):
    with table.reserve(prompt) as group:
        for _ in range(size):
            group.append(**{"tokens": [1, 2], "version": [0, 0], "answer": 0, **fields})


def next_of(source, timeout_s=5.0):
    """The next batch, handed out; the one before is settled."""
    if source._lease is not None:
        source.settle(source._lease)
    plan = source.plan(source.batch_size, Patience(deadline=Deadline(timeout_s)))
    assert source.hand_out(plan.lease)
    return plan.batch


def test_a_batch_has_whole_groups_with_offsets():
    table = Rollouts(SCHEMA, batch=2, max_lag=0)
    commit(table, size=3)
    commit(table, size=1, tokens=[7, 8, 9], version=[0, 0, 0], answer=5)
    table.update(np.arange(3), reward=np.arange(3.0))
    table.update([1 << 16], reward=[9.0])
    batch = next_of(table.source())
    assert batch["offsets"].tolist() == [0, 2, 4, 6, 9]
    assert batch["tokens"].tolist() == [1, 2] * 3 + [7, 8, 9]
    assert batch["group"].tolist() == [0, 0, 0, 1]
    assert batch["answer"].tolist() == [0, 5]
    assert batch["reward"].tolist() == [0, 1, 2, 9]
    assert batch["micro"].tolist() == [0, 4]
    assert batch["offsets"].dtype == np.int32


def test_the_loader_trains_all_prompts_once_within_the_lag():
    table, seen = Rollouts(SCHEMA, batch=4, max_lag=2, size=2), []

    def generate():
        for group in table.groups(range(41)):
            while group.missing:
                n = 1 + group.number % 7
                group.append(tokens=np.arange(n), version=np.full(n, group.version))
            group.update(answer=group.prompt)

    def grade():
        for member in table.members(["tokens"], ["reward"]):
            assert member.update(reward=float(member["answer"]) % 3)

    threads = [threading.Thread(target=one) for one in (generate, generate, grade)]
    for thread in threads:
        thread.start()
    source = table.source(needs=["reward"], keep=lambda group: group["reward"].mean() > 0)
    with AsyncDataLoader(source, timeout_s=20) as loader:
        for step, batch in enumerate(loader, 1):
            assert isinstance(batch["tokens"], torch.Tensor)
            assert batch["lag"].max() <= 2
            seen += batch["prompt_index"].tolist()
            table.publish(step)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    stats = table.stats()
    assert sorted(seen) == [number for number in range(41) if number % 3]
    assert (stats.drawn, stats.trained, stats.free) == (41, 27, stats.slots)
    assert stats.ended == {"filtered": 14}
    assert not stats.given_back


def test_whole_groups_are_added_as_batches_come():
    table, other = (Rollouts(SCHEMA, batch=3, max_lag=0) for _ in range(2))
    add(table, range(3), size=2)
    batch = next_of(table.source())
    ids = other.extend(batch, prompts=["a", "b", "c"])
    assert other.state_dict()["arrays"]["2/column/answer"] == 2
    again = next_of(other.source())
    assert (again["index"] >> 16).tolist() == [one for one in ids for _ in range(2)]
    for name in ("tokens", "offsets", "reward", "answer", "group"):
        assert again[name].tolist() == batch[name].tolist()
    with pytest.raises(Timeout, match="3 of 3 slots, 0 are free"):
        other.extend(batch, timeout_s=0.01)
    with pytest.raises(ConfigError, match="1 prompts for 3 groups"):
        other.extend(batch, prompts=["a"])
    with pytest.raises(SchemaError, match="counts from 0 on"):
        other.extend({**batch, "group": batch["group"][::-1]})


def test_a_reservation_waits_for_a_slot_and_says_who_holds_them():
    table = Rollouts(SCHEMA, batch=1, max_lag=0)
    commit(table)
    with pytest.raises(Timeout, match="one of 1 slots: 1 ready"):
        table.reserve(1, timeout_s=0.01)
    table.delete([0])
    assert table.reserve(1, timeout_s=1).prompt == 1
    assert table.stats().drawn == 2  # the call that gave up left no prompt behind


@pytest.mark.parametrize("where", ["here", "in a feeder"])
def test_a_long_wait_warns_and_ends_by_the_deadline(where, monkeypatch):
    for module in ("rollouts.port", "feeder.client.rollouts"):
        monkeypatch.setattr(f"async_loader.{module}.WARN_AFTER_S", 0.1)
    table = Rollouts(SCHEMA, batch=1, max_lag=0, size=1, deadline_s=0.5)
    with contextlib.ExitStack() as stack:
        if where == "in a feeder":
            table = stack.enter_context(connect("embedded", tables={"math": table})).table("math")
        warned = pytest.warns(RuntimeWarning, match="one of 1 slots: 1 ready groups, 1 lack reward")
        with warned as found:
            for group in table.groups(range(2)):
                group.append(tokens=[1], version=[0], answer=0)
        assert found[0].filename == __file__
        assert table.stats().given_back["deadline: no reward"] >= 1


def test_a_reservation_is_for_no_number_that_was_trained_after_a_save():
    table = Rollouts(SCHEMA, batch=1)
    table._ask("trained", keys=[["reserved", 0]], version=0)
    group = table.reserve("a", timeout_s=1)
    assert (group.prompt, group.number) == ("a", 1)
    assert (table.stats().drawn, table.stats().trained) == (2, 1)


def test_a_block_whose_members_do_not_fit_gives_the_prompt_back():
    table = Rollouts(SCHEMA, batch=1)
    with pytest.raises(SchemaError, match="differ in length"), table.reserve("a") as group:
        group.append(version=[1], member=group.append(tokens=[1, 2]))
    assert table.stats().given_back == {"no commit": 1}


def test_an_exception_gives_the_prompt_back_once():
    table = Rollouts(SCHEMA, batch=1, max_lag=1)
    for tries in (1, 2):
        with contextlib.suppress(ZeroDivisionError), table.reserve("sum") as group:
            assert (group.prompt, group.tries) == ("sum", tries)
            raise ZeroDivisionError
    stats = table.stats()
    assert (stats.given_back, stats.ended) == ({"ZeroDivisionError": 1}, {"ZeroDivisionError": 1})
    assert stats.drawn == stats.trained + sum(stats.ended.values()) + stats.under_way == 2


def test_leaving_the_loop_gives_the_prompt_back():
    table = Rollouts(SCHEMA, batch=1, max_lag=1)
    for group in table.groups(["a", "b"]):
        group.append(tokens=[1])
        break
    assert table.stats().given_back == {"the loop was left": 1}
    assert next(table.groups(["a", "b"])).prompt == "a"


def test_a_partial_rollout_goes_on_under_a_newer_version():
    table = Rollouts(SCHEMA, batch=1, max_lag=2)
    with table.reserve() as group:
        member = group.append(tokens=[1, 2], version=[0, 0], reward=1, answer=0)
        table.publish(1)
        group.append(member=member, tokens=[3], version=[1])
    batch = next_of(table.source())
    assert batch["tokens"].tolist() == [1, 2, 3]
    assert batch["version"].tolist() == [0, 0, 1]
    assert batch["lag"].tolist() == [1]


def test_the_oldest_token_counts_for_the_lag():
    table = Rollouts(SCHEMA, batch=1, max_lag=2)
    table.publish(5)
    commit(table, version=[3, 5], reward=0)
    assert next_of(table.source())["lag"].tolist() == [2]


def test_a_batch_waits_for_a_due_group_until_its_deadline():
    table = Rollouts(SCHEMA, batch=1, max_lag=1, deadline_s=1.0)
    slow = table.reserve("slow")
    commit(table, "quick", reward=0)
    source = table.source()
    next_of(source)
    table.publish(1)
    commit(table, "quick too", reward=0, version=[1, 1])
    with pytest.raises(Timeout, match=r"1 of the groups \[0\], which are due"):
        next_of(source, 0.01)
    assert next_of(source, 5.0)["index"].tolist() == [2 << 16]
    assert table.stats().given_back == {"deadline": 1}
    slow.append(tokens=[1])
    assert slow.over
    assert not slow.commit()
    assert table.stats().late == 1


@pytest.mark.parametrize("stale", ["drop", "mask"])
def test_too_old_groups_are_dropped_or_masked(stale):
    table = Rollouts(SCHEMA, batch=1, max_lag=1, stale=stale)
    commit(table, reward=0)
    table.publish(1)
    commit(table, reward=0, version=[1, 1])
    table.publish(2)
    batch = next_of(table.source())
    if stale == "drop":
        assert batch["index"].tolist() == [1 << 16]
        assert table.stats().ended == {"stale": 1}
    else:
        assert batch["index"].tolist() == [0]
        assert batch["mask"].tolist() == [False, False]


def test_a_group_without_its_late_field_is_ended_with_its_reason():
    table = Rollouts(SCHEMA, batch=1, max_lag=0, deadline_s=0.05, tries=1)
    commit(table)
    with pytest.raises(Timeout, match="1 lack reward"):
        next_of(table.source(needs=["reward"]), 0.01)
    with pytest.raises(Timeout):
        next_of(table.source(needs=["reward"]), 0.2)
    assert table.stats().ended == {"deadline: no reward": 1}


def test_rewards_may_come_after_the_loop_of_one_thread():
    table = Rollouts(SCHEMA, batch=2, max_lag=0, deadline_s=5)
    for group in table.groups(range(2), size=1):
        group.append(tokens=[1], version=[0], answer=0)
    assert table.update([0, 1 << 16], reward=[1, 2]).applied == 2
    assert next_of(table.source())["reward"].tolist() == [1, 2]


@pytest.mark.parametrize("returns", [True, False])
def test_a_prompt_that_comes_back_after_the_loop_has_a_generator_or_an_end(returns):
    table = Rollouts({"tokens": Ragged("int32")}, batch=2, max_lag=1, size=1, deadline_s=0.3)
    for group in table.groups(range(4)):
        group.append(tokens=[1])
    table.publish(1)
    source = table.source()
    next_of(source)
    table.publish(3)  # a jump: two groups are too old
    with pytest.raises(Timeout, match="2 prompts wait, for a generator: each is gone"):
        next_of(source, 0.01)
    for group in table.groups(range(4)) if returns else ():
        group.append(tokens=[2])
    plan = source.plan(2, Patience(deadline=Deadline(5)))
    assert (plan is END) is not returns
    assert table.stats().ended == ({} if returns else {"no generator": 2})


def test_members_come_once_and_come_again_if_the_loop_was_left():
    table = Rollouts(SCHEMA, batch=2, max_lag=0)
    commit(table, size=3)
    for member in table.members(["tokens"], ["reward"]):
        assert member["tokens"].tolist() == [1, 2]
        break
    numbers = []
    members = table.members(["tokens"], ["reward"], timeout_s=0.01)
    for _ in range(3):
        member = next(members)
        numbers.append(member.number)
        assert member.update(reward=2)
    with pytest.raises(Timeout, match="a member with tokens and without reward"):
        next(members)
    assert sorted(numbers) == [0, 1, 2]
    assert table.get([0])["reward"].tolist() == [2, 2, 2]


def test_waits_are_woken_and_never_poll(monkeypatch):
    table, found, looks = Rollouts(SCHEMA, batch=1, max_lag=0), [], []
    advance = Requests.advance
    monkeypatch.setattr(Requests, "advance", lambda *args: (looks.append(1), advance(*args)))
    source = table.source(needs=["reward"])
    waits = [
        threading.Thread(
            target=lambda: next(table.members(["tokens"], ["reward"])).update(reward=1)
        ),
        threading.Thread(target=lambda: found.append(next_of(source, 20))),
    ]
    for thread in waits:
        thread.start()
    while len(table.stats().waiting) < 2:
        threading.Event().wait(0.001)
    before = len(looks)
    threading.Event().wait(0.3)
    assert len(looks) == before
    commit(table)
    for thread in waits:
        thread.join(10)
    assert found[0]["reward"].tolist() == [1]


def test_members_that_were_used_before_a_loop_was_left_keep_no_other_waiting():
    table = Rollouts(SCHEMA, batch=1)
    commit(table, size=4)
    table.finish()
    for member in table.members(["tokens"], ["reward"], ahead=4):
        if member.number == 2:
            break
        member.update(reward=1)
    others = table.members(["tokens"], ["reward"], timeout_s=1)
    assert sorted(member.number for member in others) == [2, 3]


def test_a_late_ragged_field_has_the_length_of_its_member():
    table = Rollouts({**SCHEMA, "value": Ragged("float32")}, batch=1, max_lag=0)
    commit(table, size=2, reward=0)
    for i, member in enumerate(table.members(["tokens"], ["value"], ahead=2)):
        with pytest.raises(SchemaError, match=r"is float32\[3\], it takes float32\[2\]"):
            member.update(value=np.zeros(3))
        member.update(value=np.full(2, i))
        if i == 1:
            break
    assert next_of(table.source())["value"].tolist() == [0, 0, 1, 1]


def test_ranks_share_a_step_and_none_is_empty():
    table = Rollouts(SCHEMA, batch=4, max_lag=0)
    add(table, range(4))
    sources = [table.source(rank=rank, world_size=2) for rank in range(2)]
    batches = [next_of(one) for one in sources]
    groups = [set((one["index"] >> 16).tolist()) for one in batches]
    assert groups[0] | groups[1] == {0, 1, 2, 3}
    assert not groups[0] & groups[1]
    assert all(groups)
    with pytest.raises(Timeout, match="rank 0, 1 has not used its part"):
        sources[0].plan(4, Patience(deadline=Deadline(0.01)))
    sources[0].settle(sources[0]._lease)  # one speaks for all
    assert table.stats().trained == 4


@pytest.mark.parametrize("last", [5, 9])
def test_prompts_of_an_iterable_come_again_when_the_table_is_from_before(last):
    table = Rollouts(SCHEMA, batch=8, max_lag=3, size=1)

    class Prompts:
        def __iter__(self):
            return iter(range(10))

    def play(prompts):
        seen = []
        for group in table.groups(prompts):
            seen.append(group.prompt)
            group.append(tokens=[group.prompt], version=[0])
            group.commit()
            if len(seen) == 3:
                state = table.state_dict()
            if len(seen) == last + 1:
                table.load_state_dict(state)
        return seen

    assert play(Prompts()) == [*range(last + 1), *range(3, 10)]
    stats = table.stats()
    assert (stats.drawn, stats.states["ready"]) == (10, 10)
    table.clear()
    with pytest.raises(ConfigError, match=f"prompt 3, this iterator to {last + 1}: begin the loop"):
        play(iter(Prompts()))


def test_a_group_that_became_too_old_at_a_learner_is_tried_again_after_a_load():
    table = Rollouts(SCHEMA, batch=1, max_lag=1)
    commit(table, reward=0)
    table._port.answer(table._port.ask("draw", draw_of(table.source())))
    table._ask("publish", version=2)
    table.load_state_dict(table.state_dict())
    stats = table.stats()
    assert (stats.states["ready"], stats.prompts_waiting, stats.given_back) == (0, 1, {"stale": 1})


def test_a_step_that_no_rank_has_any_more_holds_up_no_other():
    table = Rollouts(SCHEMA, batch=2, max_lag=1)
    add(table, range(4))
    first, other = (table.source(rank=rank, world_size=2) for rank in range(2))
    next_of(first)
    first.close()  # its peer ends too, and has had no part
    first = table.source(rank=0, world_size=2)
    assert {next_of(one)["prompt_index"][0] for one in (first, other)} == {0, 1}
    assert (first.step, other.step) == (2, 2)


def test_a_draw_that_is_given_up_gets_its_part_of_the_step_that_another_rank_has():
    table = Rollouts(SCHEMA, batch=2, max_lag=0)
    first, other = (table.source(rank=rank, world_size=2) for rank in range(2))
    add(table, range(2))
    next_of(other)
    table._port.answer(table._port.ask("draw", draw_of(first)))  # the answer comes too late
    first._tell("give_back", part=first._part, after=first.step)
    next_of(first)
    assert (first.step, other.step) == (1, 1)


def draw_of(source):
    return {"part": source._part, "after": source.step, "rank": 0, "learner": source._learner}


def test_what_a_learner_has_not_used_comes_again_marked():
    table = Rollouts(SCHEMA, batch=1, max_lag=0)
    commit(table, reward=0)
    source = table.source()
    assert not next_of(source)["redelivered"].any()
    source.release(1)
    assert next_of(source)["redelivered"].all()
    source.close()
    assert next_of(table.source())["redelivered"].all()


def test_a_second_learner_with_other_wishes_is_refused():
    table = Rollouts(SCHEMA, batch=1, max_lag=1)
    commit(table, reward=0)
    first = table.source()
    next_of(first)
    with pytest.raises(ConfigError, match="close them, or say the same"):
        next_of(table.source(tokens=5))
    first.close()
    assert next_of(table.source(tokens=5))["index"].tolist() == [0]


@pytest.mark.parametrize("sampler", [Uniform(replacement=False), Prioritized(), None])
def test_trained_groups_are_replayed(sampler):
    table, seen = Rollouts(SCHEMA, batch=2, max_lag=3, replay=8), []
    for number in range(4):
        commit(table, number, reward=0)
    source = table.source(sampler=sampler, max_times_sampled=3)
    for step in range(4):
        batch = next_of(source)
        source.update_priorities(batch["index"], np.ones(len(batch["index"])))
        seen += sorted(set((batch["index"] >> 16).tolist()))
        table.publish(step + 1)
    assert len(seen) == 8  # two different ones in each batch
    assert max(map(seen.count, seen)) <= 3
    assert table.stats().trained == len(set(seen))


def test_replay_needs_room():
    with pytest.raises(ConfigError, match="replay=256"):
        next_of(Rollouts(SCHEMA, batch=1).source(max_times_sampled=2), 0.1)


def test_micro_batches_are_views_that_begin_at_zero():
    table = Rollouts(SCHEMA, batch=3, max_lag=0)
    add(table, range(3), size=2, length=4)
    batch = next_of(table.source(tokens=10))
    parts = list(micro_batches(batch, table))
    assert len(parts) == 3
    assert sum(len(one["tokens"]) for one in parts) == 27
    for part in parts:
        assert len(part["tokens"]) == part["offsets"][-1] <= 10
        assert part["offsets"][0] == 0
        assert len(part["reward"]) == len(part["group"]) == len(part["offsets"]) - 1
        assert part["answer"][part["group"]].shape == part["reward"].shape
        assert np.shares_memory(part["tokens"], batch["tokens"])


def test_a_member_that_is_too_long_is_alone_or_an_error():
    table = Rollouts(SCHEMA, batch=1, max_lag=1)
    with table.reserve() as group:
        for n in (2, 9, 2):
            group.append(tokens=[0] * n, version=[0] * n, reward=0, answer=0)
    source = table.source(tokens=5, overlong="error")
    with pytest.raises(ConfigError, match="has 9 tokens, a micro-batch 5"):
        next_of(source)
    assert table.stats().ended == {"longer than tokens": 1}
    source.close()
    with table.reserve() as group:
        for n in (2, 9, 2):
            group.append(tokens=[0] * n, version=[0] * n, reward=0, answer=0)
    batch = next_of(table.source(tokens=5))
    assert sorted(np.diff(batch["offsets"][batch["micro"]]).tolist()) == [4, 9]


def test_shares_of_published_lengths_differ_by_five_percent_at_most():
    rng = np.random.default_rng(0)
    for _ in range(20):  # lengths of answers to mathematics: log-normal, cut at 8k
        lengths = np.minimum(rng.lognormal(6.5, 0.8, 512).astype(int) + 1, 8192)
        costs = lengths * 1.0 + lengths.astype(float) ** 2 / 8192
        groups = costs.reshape(64, 8).sum(1)
        ranks = shares(groups.tolist(), 4, [0] * 64, 0.0)
        members = [[8 * g + m for g in rank for m in range(8)] for rank in ranks]
        found = share(
            [[int(lengths[i]) for i in one] for one in members], 32_768,
            [[float(costs[i]) for i in one] for one in members],
        )  # fmt: skip
        assert len({len(one) for one in found}) == 1
        loads = [
            sum(costs[members[r][i]] for i in one) for r, rank in enumerate(found) for one in rank
        ]
        assert min(loads) > 0
        assert max(loads) / (sum(loads) / len(loads)) <= 1.05
        for r, rank in enumerate(found):
            for one in rank:
                assert sum(lengths[members[r][i]] for i in one) <= 32_768


def test_a_rank_with_few_members_is_not_left_without_a_micro_batch():
    found = share([[3, 3, 3], [2]], 4, [[3.0] * 3, [2.0]])
    assert found == [[[0, 1, 2]], [[0]]]


def test_padded_and_jagged_show_the_same_values():
    table = Rollouts(SCHEMA, batch=1, max_lag=0)
    add(table, [0], size=2, length=2)
    batch = next_of(table.source())
    wide = padded(batch, SCHEMA, value={"tokens": -1}, multiple=4)
    assert wide["tokens"].shape == (2, 4)
    assert wide["tokens"][0].tolist() == [0, 0, -1, -1]
    assert wide["length"].tolist() == [2, 3]
    masked = {"offsets": batch["offsets"], "mask": np.ones(5, np.bool_)}
    assert padded(masked, SCHEMA, value=7)["mask"].sum(1).tolist() == [2, 3]
    nested = jagged({name: torch.from_numpy(one) for name, one in batch.items()}, table)
    assert [len(one) for one in nested["tokens"].unbind()] == [2, 3]
    with AsyncDataLoader(
        add_and_source(), transform=partial(padded, schema=SCHEMA), timeout_s=5
    ) as loader:
        assert next(loader)["tokens"].shape == (2, 4)


def add_and_source():
    table = Rollouts(SCHEMA, batch=1, max_lag=0)
    add(table, [0])
    return table.source()


def test_one_cut_goes_on_without_a_prompt_lost_or_trained_twice(tmp_path):
    table = Rollouts(SCHEMA, batch=2, max_lag=1)
    groups, seen = table.groups(range(6), size=1), []

    def make(count):
        for _ in range(count):
            group = next(groups)
            group.append(tokens=[group.number], version=[0], reward=1, answer=group.number)
            group.commit()

    make(3)
    hanging = next(groups)  # the fourth is under way
    source = table.source()
    seen += next_of(source)["prompt_index"].tolist()
    report = table.save(tmp_path)  # what the learner has is trained
    assert report.rows == 1
    other = Rollouts(SCHEMA, batch=2, max_lag=1)
    other.load(tmp_path)
    assert (other.step, other.stats().trained) == (1, 2)
    table, groups = other, other.groups(range(6), size=1)
    make(3)
    source = table.source()
    for _ in range(2):
        seen += next_of(source)["prompt_index"].tolist()
        table.publish(table.version + 1)
    assert sorted(seen) == list(range(6))
    assert hanging.id not in table.get([hanging.id << 16])


def test_restarts_favour_neither_short_nor_long_rollouts():
    table, seen, loops = Rollouts(SCHEMA, batch=2, max_lag=1), [], []

    def take():
        loops.append(table.groups(range(8), size=1, timeout_s=5))
        return next(loops[-1])

    def make(group):
        n = 9 if group.prompt in (0, 3) else 1
        group.append(tokens=[0] * n, version=[table.version] * n, reward=1, answer=0)
        assert group.commit()

    for _ in range(3):  # the long ones are under way at each of these saves
        for group in [take() for _ in range(4)]:
            if group.prompt not in (0, 3):
                make(group)
        source = table.source()
        seen += np.diff(next_of(source)["offsets"]).tolist()
        state, table = table.state_dict(), Rollouts(SCHEMA, batch=2, max_lag=1)
        table.load_state_dict(state)
    for _ in range(2):
        make(take())
    seen += np.diff(next_of(table.source())["offsets"]).tolist()
    assert sorted(seen) == [1] * 6 + [9] * 2


def test_a_damaged_save_is_named(tmp_path):
    table = Rollouts(SCHEMA, batch=1)
    commit(table, prompt={"text": "1 + 1", "raw": b"\0"})
    table.save(tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptCheckpoint, match=file.name):
            Rollouts(SCHEMA, batch=1).load(tmp_path)
    file.write_bytes(whole)
    with pytest.raises(SchemaError, match="has the fields"):
        Rollouts({"tokens": Ragged("int32")}, batch=1).load(tmp_path)


def test_an_iterator_of_prompts_goes_on_after_a_restart():
    table = Rollouts(SCHEMA, batch=4, max_lag=1)
    first = table.groups(iter("abcd"))
    assert next(first).append(tokens=[1]) == 0
    assert next(first).prompt == "b"
    first.close()
    state = table.state_dict()
    again = Rollouts(SCHEMA, batch=4, max_lag=1)
    again.load_state_dict(state)
    prompts = []
    for group in again.groups(iter("abcd")):
        group.append(tokens=[1])
        prompts.append(group.prompt)
        if len(prompts) == 3:
            break
    assert prompts == ["b", "c", "d"]


def test_the_end_of_prompts_is_no_starvation():
    table = Rollouts(SCHEMA, batch=4, max_lag=0)
    source = table.source()
    for number in range(3):
        commit(table, number, reward=0)
    with pytest.raises(Timeout, match="4 groups: 3 are there"):
        next_of(source, 0.01)
    table.finish()
    assert len(next_of(source)["prompt_index"]) == 3  # a short last batch
    source.settle(source._lease)
    assert source.plan(4, Patience(deadline=Deadline(1))).name == "END"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tokens": [1], "logprob": [1]}, "no field 'logprob'"),
        ({"tokens": [[1]]}, r"has shape \[1, 1\], it takes \[length\]"),
        ({"tokens": [1.5]}, "is float64, it takes int32"),
        ({"tokens": [2**40]}, "take a wider dtype"),
        ({"tokens": [1], "version": [0, 0]}, "differ in length"),
        ({"reward": [1.0]}, "has shape"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(fields, text):
    table = Rollouts(SCHEMA, batch=1)
    group = table.reserve()
    with pytest.raises(SchemaError, match=text):
        group.append(**fields)
    assert len(group) == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"stale": "never"}, "stale is 'never'"),
        ({"schema": {"offsets": "int32"}}, "batches have"),
        ({"schema": {"a": Field(stack=2)}}, "leave them out"),
        ({"schema": []}, "a dict of fields"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, text):
    with pytest.raises((ConfigError, SchemaError), match=text):
        Rollouts(**{"schema": SCHEMA, "batch": 1, **change})


def test_a_loader_takes_the_table_itself():
    table = Rollouts(SCHEMA, batch=2, max_lag=0)
    add(table, range(2))
    with AsyncDataLoader(table, timeout_s=20) as loader:
        assert len(next(loader)["prompt_index"]) == 2


def test_a_source_that_was_dropped_gives_back_also_under_the_lock():
    table = Rollouts(SCHEMA, batch=1, max_lag=0)
    commit(table, reward=0)
    source = table.source()
    next_of(source)
    with table._port._lock:
        del source
    assert table.stats().states["delivered"] == 1  # the call that finds it makes it
    assert table.stats().states["ready"] == 1


def test_closing_ends_all_waits():
    table = Rollouts(SCHEMA, batch=1)
    failed = []

    def wait(call):
        try:
            call()
        except Exception as error:
            failed.append(type(error).__name__)

    calls = [
        lambda: next(table.members(["tokens"], ["reward"])),
        lambda: next_of(table.source(), 20),
    ]
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    while len(table.stats().waiting) < 2:
        threading.Event().wait(0.001)
    table.close()
    for thread in threads:
        thread.join(10)
    assert failed == ["Closed", "Closed"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda table: next(table.groups(5)), r"prompts is 5: give a sequence, as \[5\]"),
        (lambda table: next(table.groups("2 + 2")), "prompts is '2 [+] 2': give a sequence"),
        (lambda table: table.source(keep=3), "keep=3: give a function"),
        (lambda table: table.source(sampler="prioritized"), "give a sampler"),
        (lambda table: next(table.members(["reward"], ["reward"])), "'reward' is in needs and in"),
        (lambda table: table.load_state_dict({}), "no state_dict of Rollouts"),
        (lambda table: table.update_priorities([1, 2], [1.0]), "1 priorities for 2 ids"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(call, text):
    with (
        Rollouts(SCHEMA, batch=2, max_lag=1, size=2) as table,
        pytest.raises((ConfigError, SchemaError), match=text),
    ):
        call(table)


def test_replayed_groups_let_no_new_one_grow_too_old():
    table = Rollouts({"reward": "float32"}, batch=2, max_lag=0, size=1, replay=32, deadline_s=30)

    def generate():
        for group in table.groups(range(6)):
            group.append(reward=1.0)

    thread = threading.Thread(target=generate)
    thread.start()
    source = table.source(sampler=Uniform(), max_times_sampled=3)
    with AsyncDataLoader(source, timeout_s=20) as loader:
        for step, _ in enumerate(loader, 1):
            table.publish(step)
    thread.join(20)
    stats = table.stats()
    assert (stats.trained, stats.given_back, stats.ended) == (6, {}, {})
