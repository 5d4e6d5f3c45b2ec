"""The limiters of the shards hold as one: samples move between them, and none is made or lost."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from cluster_rig import SCHEMA, add, cluster_of, drawn, until
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import RateLimiter, ReplayBuffer
from async_loader.errors import Timeout
from async_loader.replay.buffer import parts_of
from async_loader.scale.limiter_shares import ShardCursor, differ, even_shares

LIMITER = RateLimiter(min_size_to_sample=10, samples_per_insert=4, error_buffer=200)
LEAST, MOST = LIMITER.bounds

cursors = st.builds(
    lambda moved, cursor, low, room: ShardCursor(moved, cursor, low, low + room),
    st.integers(-1000, 1000),
    st.floats(-5000, 5000),
    st.floats(-500, 500),
    st.floats(2, 5000),
)


@given(st.lists(cursors, min_size=2, max_size=64))
def test_shares_are_0_in_sum_and_bring_all_cursors_to_one_height(shards):
    shares = even_shares(shards)
    assert sum(shares) == 0
    heights = [
        (one.cursor - one.moved + share - one.low) / (one.high - one.low)
        for one, share in zip(shards, shares, strict=True)
    ]
    steps = [1.001 / (one.high - one.low) for one in shards]
    level = sum(one.cursor - one.moved - one.low for one in shards) / sum(
        one.high - one.low for one in shards
    )
    for height, step in zip(heights, steps, strict=True):
        assert abs(height - level) <= step + 1e-9
    after = [
        one._replace(moved=share, cursor=one.cursor - one.moved + share)
        for one, share in zip(shards, shares, strict=True)
    ]
    assert not differ(after, shares, 0.0)


def table_with(rows, limiter=LIMITER):
    table = ReplayBuffer(10_000, schema=SCHEMA, limiter=limiter)
    if rows:
        add(table, 0, rows)
    return table


def state_of(table):
    return parts_of(table).state


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["add", "draw", "move"]), st.integers(1, 90)), max_size=40)
)
def test_two_limiters_let_through_together_what_their_bounds_allow_together(calls):
    tables = [table_with(10), table_with(10)]
    try:
        for i, (call, count) in enumerate(calls):
            one = tables[i % 2]
            try:
                if call == "add":
                    rows = np.zeros(count % 20 + 1, np.int64)
                    one.extend({"x": rows, "shard": rows}, timeout_s=0)
                elif call == "draw":
                    one.sample(count, timeout_s=0)
                else:
                    taken = state_of(one).balance()
                    found = state_of(one).balance(taken.moved, taken.moved - count)
                    if found.moved == taken.moved - count:
                        other = state_of(tables[1 - i % 2])
                        has = other.balance().moved
                        assert other.balance(has, has + count).moved == has + count
            except Timeout:
                pass
        found = [state_of(one).balance() for one in tables]
        assert sum(one.moved for one in found) == 0
        stats = [one.stats() for one in tables]
        earned = sum(one.inserted for one in stats) * 4
        spent = sum(one.sampled for one in stats)
        assert sum(one.cursor for one in found) == earned - spent
        assert 2 * LEAST <= earned - spent <= 2 * MOST
    finally:
        for one in tables:
            one.close()


def test_a_move_from_another_number_or_below_the_bound_changes_nothing():
    table = table_with(10)
    try:
        balance = state_of(table).balance
        assert balance() == (0, 40.0, LEAST, MOST)
        assert balance(5, 30).moved == 0
        assert balance(0, -201).moved == 0
        assert balance(0, -200) == (-200, -160.0, LEAST, MOST)
        assert balance(0, -200).moved == -200  # the same message once more
        with pytest.raises(Timeout):
            table.sample(1, timeout_s=0)
        balance(-200, 0)
        assert len(table.sample(100, timeout_s=0)["x"]) == 100
    finally:
        table.close()


def test_what_was_moved_is_saved_with_the_counts(tmp_path):
    table = table_with(10)
    try:
        state_of(table).balance(0, 70)
        table.save(tmp_path / "save")
        other = ReplayBuffer.from_checkpoint(tmp_path / "save")
        try:
            assert state_of(other).balance() == state_of(table).balance()
            other.clear()
            assert state_of(other).balance().moved == 0
        finally:
            other.close()
    finally:
        table.close()


def test_a_table_without_bounds_moves_nothing():
    for limiter in (None, RateLimiter(min_size_to_sample=10)):
        table = table_with(10, limiter)
        assert state_of(table).balance(0, 10) is None
        table.close()
    queue = ReplayBuffer.queue(16, schema=SCHEMA)
    add(queue, 0, 3)
    assert state_of(queue).balance(0, 10) is None
    queue.close()


def test_a_learner_goes_on_where_one_shard_gets_all_steps_and_the_ratio_holds(tmp_path):
    """By itself the shard without writers would end the draws after some 50 rows of its own."""
    tables = [table_with(40), table_with(40)]
    with cluster_of(tmp_path, tables) as (_, _, client):
        table = client.table("t")
        assert table.stats().limiter_scope == "cluster"

        def write():
            with client.shard("shard-0").table("t").writer() as writer:
                for x in range(40, 1040):
                    writer.append(x=x, shard=0)

        thread = threading.Thread(target=write)
        thread.start()
        source, others = table.source(seed=3), 0
        for _ in range(100):
            batch = drawn(source, 40)
            others += int((batch["index"] >> 56 == 1).sum())
        thread.join()
        # at first half of all items are there, at the end 4%
        assert others > 150
        assert state_of(tables[1]).balance().moved > 100
        stats = table.stats()
        assert stats.inserted == 1080
        assert 2 * LEAST <= stats.inserted * 4 - stats.sampled <= 2 * MOST
        source.close()


def test_samples_that_a_reader_left_out_of_the_sum_are_given_back(tmp_path):
    tables = [table_with(40), table_with(40)]
    state_of(tables[0]).balance(0, -90)  # taken by a process that ended before it gave them
    with cluster_of(tmp_path, tables) as (_, _, client):
        source = client.table("t").source(seed=3)
        drawn(source, 8)
        until(lambda: sum(state_of(one).balance().moved for one in tables) == 0)
        source.close()
