"""The simulation of a cluster: closed forms of queues, the balance, and the page it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader.errors import Broken
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.scale.limiter_balance import LimiterBalance
from benchmarks.simulation import command, directory, limiter, page, sessions, sizing
from benchmarks.simulation.costs import Assumed, Costs
from benchmarks.simulation.events import EventQueue
from benchmarks.simulation.fifo_server import FifoServer
from benchmarks.simulation.link import Link

RECORD = json.loads(command.RECORD.read_text())
COSTS = Costs(
    report_us=500, hold_us=400, answer_us=200, answer_shard_us=7, map_shard_bytes=100, ray_us=1_000,
    session_us=1_000, heartbeat_us=250, round_trip_us=300, call_us=50, shard_start_s=0.7,
    session_bytes=4_000, learner_us=60, learner_shard_us=40,
    small_insert_us=256, small_insert_row_us=0.4, small_sample_us=16, small_sample_row_us=0.06,
    small_step_bytes=140, small_row_bytes=170, atari_insert_us=280, atari_insert_row_us=3,
    atari_sample_us=44, atari_sample_row_us=20, atari_step_bytes=7_300, atari_row_bytes=60_000,
)  # fmt: skip
ASSUMED = Assumed()

# -- events ----------------------------------------------------------------------------------------

TIMES = st.floats(0.0, 1e6, allow_nan=False)


@given(st.lists(TIMES, max_size=50))
def test_events_come_in_the_order_of_their_times_and_equal_ones_in_that_of_their_entry(times):
    events, seen = EventQueue(), []
    for number, time_s in enumerate(times):
        events.at(
            time_s, lambda number, due: seen.append((events.now, due, number)), number, time_s
        )
    events.run()
    assert [now for now, _, _ in seen] == [due for _, due, _ in seen]
    assert [(due, number) for _, due, number in seen] == sorted(
        (time_s, number) for number, time_s in enumerate(times)
    )


@given(st.lists(st.tuples(TIMES, st.lists(st.floats(0.0, 10.0), max_size=3)), max_size=20))
def test_no_event_goes_back_in_time_whatever_events_enter_others(plan):
    events, seen = EventQueue(), []

    def fire(delays):
        seen.append(events.now)
        for delay_s in delays:
            events.after(delay_s, fire, [])

    for time_s, delays in plan:
        events.at(time_s, fire, delays)
    events.run()
    assert seen == sorted(seen)
    assert len(seen) == sum(1 + len(delays) for _, delays in plan)


@pytest.mark.parametrize("time_s", [4.9, float("nan")])
def test_an_event_in_the_past_is_refused(time_s):
    events = EventQueue()
    events.run(5.0)
    with pytest.raises(ValueError, match="cannot be entered"):
        events.at(time_s, lambda: None)


def test_a_run_ends_at_its_time_and_leaves_later_events():
    events, seen = EventQueue(), []
    for time_s in (1.0, 2.0, 3.0):
        events.at(time_s, seen.append, time_s)
    events.run(2.0)
    assert (seen, events.now, len(events)) == ([1.0, 2.0], 2.0, 1)


# -- servers and links -----------------------------------------------------------------------------


def served(arrivals: Any, cost_s: float) -> tuple[FifoServer, EventQueue]:
    events = EventQueue()
    server = FifoServer(events)
    for time_s in arrivals:
        events.at(float(time_s), server.serve, cost_s)
    events.run()
    return server, events


@given(
    st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40),
    st.lists(st.floats(0.001, 5.0), min_size=40, max_size=40),
)
def test_a_server_follows_the_recursion_of_lindley(arrivals, costs):
    events, ends = EventQueue(), []
    server = FifoServer(events)
    for time_s, cost_s in zip(sorted(arrivals), costs, strict=False):
        events.at(time_s, server.serve, cost_s, lambda: ends.append(events.now))
    events.run()
    free, expected = 0.0, []
    for time_s, cost_s in zip(sorted(arrivals), costs, strict=False):
        free = max(free, time_s) + cost_s
        expected.append(free)
    assert ends == pytest.approx(expected)
    assert server.busy_s == pytest.approx(sum(costs[: len(arrivals)]))


def test_jobs_that_come_at_once_wait_for_those_before_them():
    server, events = served([0.0] * 10, 0.5)
    assert (server.jobs, events.now, server.longest_wait_s) == (10, 5.0, 4.5)
    assert server.waited_s == pytest.approx(0.5 * sum(range(10)))


def test_a_train_of_jobs_is_one_job_as_long_as_all_of_them():
    single, events = served([0.0] * 10 + [1.0], 0.5)
    together = EventQueue()
    server = FifoServer(together)
    server.serve(5.0)
    together.at(1.0, server.serve, 0.5)
    together.run()
    assert (together.now, server.busy_s) == (events.now, single.busy_s)
    assert server.longest_wait_s == 4.0


def test_random_arrivals_at_a_server_of_one_cost_wait_as_pollaczek_and_khinchine_say():
    rng, cost_s, load = np.random.default_rng(0), 1.0, 0.7
    arrivals = np.cumsum(rng.exponential(cost_s / load, 100_000))
    server, _ = served(arrivals, cost_s)
    expected = load * cost_s / (2 * (1 - load))
    assert server.waited_s / server.jobs == pytest.approx(expected, rel=0.05)


def test_the_mean_number_inside_is_the_rate_times_the_mean_time_inside():
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1.5, 5_000))
    events, counts = EventQueue(), []
    server = FifoServer(events)
    for time_s in arrivals:
        events.at(float(time_s), server.serve, 1.0)
    steps = np.arange(0.0, float(arrivals[-1]), 0.5)
    for time_s in steps:
        events.at(float(time_s), lambda: counts.append(len(server)))
    events.run()
    rate, inside_s = server.jobs / events.now, server.inside_s / server.jobs
    assert np.mean(counts) == pytest.approx(rate * inside_s, rel=0.03)


def test_the_cost_of_a_job_is_asked_when_it_begins():
    events, said = EventQueue(), []
    server = FifoServer(events)
    server.serve(2.0)
    server.serve(lambda: said.append(events.now) or 1.0)
    events.run()
    assert (said, events.now) == ([2.0], 3.0)


def test_messages_share_the_bytes_of_a_link_and_not_its_latency():
    events, came = EventQueue(), []
    link = Link(events, 0.5, 100.0)
    for _ in range(2):
        link.send(100, lambda: came.append(events.now))
    events.run()
    assert (came, link.sent_bytes) == ([1.5, 2.5], 200)


# -- the directory ---------------------------------------------------------------------------------


def load(clients: int, scenario: str, shards: int = 4, **more: Any) -> directory.Load:
    costs = more.pop("costs", COSTS)
    model = directory.DirectoryModel(costs, ASSUMED, shards, clients, **more)
    return model.run(directory.SCENARIOS[scenario])


def test_at_rest_each_client_costs_one_question_a_minute():
    found = load(2_000, "at rest", 64)
    one_s = COSTS.hold_us / 1e6 + COSTS.answer_s(64)
    assert found.utilisation == pytest.approx(2_000 / directory.POLL_S * one_s, rel=0.03)
    assert (found.news_s, found.changes, found.saturated) == (0.0, 0, False)


def test_news_of_a_lost_shard_comes_after_the_answers_to_all_clients():
    found = load(500, "a shard is lost")
    least_s = 500 * COSTS.answer_s(4)
    assert least_s <= found.news_s <= least_s + 500 * COSTS.report_us / 1e6 + 0.01
    assert (found.reports, found.changes) == (500, 2)
    assert found.longest_wait_s >= 499 * COSTS.report_us / 1e6


def test_a_lost_host_is_reported_by_each_client_once_for_each_shard_when_news_comes_at_once():
    found = load(100, "a host is lost")
    assert found.reports == 100 * 4


def test_clients_without_the_news_report_a_lost_host_again_every_ten_seconds():
    found = load(100, "a host is lost", costs=replace(COSTS, answer_us=1e5))
    assert found.news_s > 10
    assert 100 * 4 < found.reports < 100 * 4 * 3
    assert found.changes == 8


def test_a_rolling_restart_changes_the_map_twice_for_each_shard():
    found = load(50, "rolling restart")
    assert found.changes == 2 * ASSUMED.rolled
    assert found.took_s >= ASSUMED.drain_s + COSTS.shard_start_s


def test_equal_seeds_give_equal_loads_and_others_others():
    first, again = (load(300, "a host is lost", seed=3) for _ in range(2))
    assert first == again
    assert first != load(300, "a host is lost", seed=4)


def test_more_clients_than_calls_are_answered_late():
    assert load(40, "at rest", calls=40).late == 0
    assert load(80, "at rest", calls=40).late > 0


def test_the_most_clients_are_those_that_the_calls_hold_when_nothing_happens():
    fast = replace(COSTS, hold_us=1.0, answer_us=1.0, answer_shard_us=0.0)
    most = directory.most_clients(fast, ASSUMED, 4, directory.rest, calls=5_000)
    ratio = 1 + directory.ANSWER_S / directory.POLL_S
    assert most == pytest.approx(5_000 * ratio, rel=0.06)


# -- sessions --------------------------------------------------------------------------------------


def test_sessions_are_open_again_after_one_cost_for_each():
    found = sessions.ReopeningModel(COSTS, ASSUMED, 1_000).run()
    assert found.open_s == pytest.approx(1_000 * COSTS.session_us / 1e6, rel=0.05)
    assert found.attempts == 1.0
    assert found.resting == pytest.approx(1_000 * COSTS.heartbeat_us / 1e6)


def test_clients_that_have_no_answer_in_time_try_again():
    slow = replace(COSTS, session_us=50_000.0)
    found = sessions.ReopeningModel(slow, ASSUMED, 300).run()
    assert found.attempts > 1.0


def test_heartbeats_limit_the_sessions_of_a_shard():
    most = sessions.most_clients(COSTS, ASSUMED, 0.5)
    assert 0.9 * 2_000 <= most <= 2_000


# -- the limiter -----------------------------------------------------------------------------------


def fairness(balanced: bool, shards: int = 4, **more: Any) -> limiter.Fairness:
    work = limiter.Workload(**more)
    return limiter.LimiterModel(COSTS, ASSUMED, shards, work, balanced).run(20.0, 5.0)


def test_without_the_balance_the_laziest_writers_set_the_pace():
    found = fairness(balanced=False)
    laziest = limiter.Workload().rates(4).min() / limiter.Workload().rates(4).mean()
    assert found.learner == pytest.approx(laziest, rel=0.05)


def test_with_the_balance_the_learner_has_what_all_writers_earn():
    found = fairness(balanced=True)
    assert found.learner == pytest.approx(1.0, abs=0.01)
    assert found.whole == pytest.approx(0.0, abs=0.01)
    assert found.writers >= 0.98
    assert found.outside <= 0.0


def test_equal_writers_need_no_balance():
    assert fairness(balanced=False, spread=1.0).learner == pytest.approx(1.0, abs=0.02)


def test_equal_seeds_give_equal_fairness():
    assert fairness(balanced=True) == fairness(balanced=True)


MOVES = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["insert", "sample", "balance", "before", "after"])
    ),
    max_size=120,
)


class FragileShard(limiter.SimulatedShard):
    """A shard whose next move is not sent, or is made without an answer, where it is to."""

    breaks = ""

    def ask_balance(self, was: int | None = None, now: int = 0) -> Any:
        if was is not None and self.breaks == "before":
            self.breaks = ""
            raise Broken("it was lost")
        return was, super().ask_balance(was, now)

    def balance_of(self, call: Any, deadline: object) -> Any:
        was, said = call
        if was is not None and self.breaks == "after":
            self.breaks = ""
            raise Broken("its answer was lost")
        return super().balance_of(said, deadline)


@settings(max_examples=60, deadline=None)
@given(MOVES, st.integers(1, 40))
def test_the_sum_of_the_cursors_never_leaves_the_sum_of_the_bounds(moves, rows):
    config = RateLimiter(min_size_to_sample=100, samples_per_insert=2.0, error_buffer=80.0)
    traffic = limiter.Traffic()
    shards = [FragileShard(config, traffic) for _ in range(4)]
    balance = LimiterBalance(SimpleNamespace(all=shards), lambda one: one)
    try:
        for number, what in moves:
            state = shards[number].state
            if what == "balance":
                balance.once()
            elif what in ("before", "after"):
                shards[number].breaks = what
            elif what == "insert" and state.may_insert(rows):
                state.insert(rows)
            elif what == "sample" and state.may_sample(rows):
                state.sample(rows)
            cursors = [one.state.balance(one.moved) for one in shards]
            assert sum(one.low for one in cursors) <= sum(one.cursor for one in cursors)
            assert sum(one.cursor for one in cursors) <= sum(one.high for one in cursors)
            assert sum(one.moved for one in cursors) <= 0  # taken first, given then
    finally:
        balance.close()


def test_a_shard_that_is_removed_meanwhile_ends_no_balance():
    config = RateLimiter(min_size_to_sample=100, samples_per_insert=2.0, error_buffer=80.0)
    traffic = limiter.Traffic()
    shards = [limiter.SimulatedShard(config, traffic) for _ in range(3)]
    shards[0].state.insert(30)
    removed = []

    def calls_of(shard):
        if shard in removed:
            raise Broken("it was removed from the cluster")
        return shard

    balance = LimiterBalance(SimpleNamespace(all=shards), calls_of)
    try:
        assert balance.once()
        removed.append(shards[1])
        shards[2].state.insert(30)
        assert balance.once()
        assert balance._all_at_once([(shards[1], None, 0)]) == [None]
    finally:
        balance.close()


# -- sizing, the record and the page ---------------------------------------------------------------


def test_sizes_follow_from_the_costs():
    small, atari = sizing.sizes(COSTS, ASSUMED)
    assert small.memory_bytes == 140e6
    assert small.network_bytes_per_s == 100 * 256 * 170
    assert atari.learner == pytest.approx(100 * (44 + 256 * 20) / 1e6)
    assert small.on_host == sizing.CORES
    assert sizing.most_batches_per_s(COSTS, 1) == 1e4
    assert atari.on_host == int(0.75 * (128 << 30) / 7.3e9)


def test_every_measured_cost_says_how():
    assert all(one["how"] for one in RECORD["measured"].values())
    assert Costs.of(RECORD["measured"]).report_us == RECORD["measured"]["report_us"]["value"]


def test_a_real_directory_answers_about_as_fast_as_the_model():
    found = command.checked(Costs.of(RECORD["measured"]), ASSUMED, RECORD["measured"])
    assert found == RECORD["check"]
    assert 0.5 <= found["measured_s"] / found["simulated_s"] <= 2.0


def test_the_page_says_what_the_record_says():
    assert page.section(RECORD) in page.PAGE.read_text()


def test_the_record_is_what_its_costs_lead_to():
    costs, assumed = Costs.of(RECORD["measured"]), Assumed(**RECORD["assumed"])
    model = directory.DirectoryModel(costs, assumed, 64, 1_000, RECORD["seed"])
    found = model.run(directory.shard_lost)
    recorded = next(
        one
        for one in RECORD["directory"]
        if (one["shards"], one["clients"], one["scenario"]) == (64, 1_000, "a shard is lost")
    )
    assert recorded["news_s"] == pytest.approx(found.news_s, rel=1e-3)
    assert RECORD["sizing"] == [command._rounded(vars(one)) for one in sizing.sizes(costs, assumed)]
