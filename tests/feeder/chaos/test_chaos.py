"""A feeder loses nothing that it promised to have, invents nothing, and nobody waits for ever, whatever befalls whom.

Each round is drawn from its seed; ``python tests/feeder/chaos/play.py SEED`` plays it by itself and says what happens when.
Processes run when they like, so that the same seed is the same faults at the same moments, not the same bytes.
"""

from __future__ import annotations

import pytest
from plan import Act, Plan, plan_of
from proxy import DOWN, UP
from round import again, play

SEEDS, SOAK = 30, 200
pytestmark = pytest.mark.soak  # `pytest -m soak tests/feeder/chaos -k "not many_rounds"`: a minute


def judge(nursery, folder, plan, sabotage=()):
    """What is wrong with a round."""
    try:
        wrong, _ = play(nursery, folder, plan, sabotage)
    except AssertionError as error:
        wrong = [str(error)]
    return wrong


def check(nursery, folder, seed):
    plan = plan_of(seed)
    wrong = judge(nursery, folder, plan)
    assert not wrong, "\n".join([str(plan), *wrong, f"again: {again(seed)}"])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_promised_is_lost(nursery, tmp_path, seed):
    check(nursery, tmp_path, seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SOAK))
def test_nothing_promised_is_lost_in_many_rounds(nursery, tmp_path, seed):
    check(nursery, tmp_path, seed)


def plan(mode, *acts, actors=1, learners=1, left_s=20.0):
    return Plan(0, mode, actors, learners, frozenset(), 3000, 4, 20, acts, left_s)


def test_acks_that_are_cut_off_leave_no_row_twice(nursery, tmp_path):
    assert judge(nursery, tmp_path, NO_ACKS) == []


@pytest.mark.parametrize("way", [UP, DOWN])
@pytest.mark.parametrize("after", [1, 70, 1500])
def test_a_message_cut_in_two_tears_no_row(nursery, tmp_path, way, after):
    cuts = [Act(0.1 * i, "weather", ("insert", "cut_after", (way, after * i))) for i in range(1, 6)]
    assert judge(nursery, tmp_path, plan("replay", *cuts)) == []


def test_rows_that_died_with_a_server_are_told(nursery, tmp_path):
    kills = [Act(at, "kill_server", (0,)) for at in (0.2, 0.4)]
    assert judge(nursery, tmp_path, plan("replay", *kills, actors=2)) == []


def test_what_a_killed_learner_had_is_delivered_again(nursery, tmp_path):
    kills = [Act(at, "kill_learner", (0,)) for at in (0.1, 0.3, 0.5)]
    assert judge(nursery, tmp_path, plan("queue", *kills, learners=2)) == []


@pytest.mark.parametrize("mode", ["replay", "queue"])
def test_a_learner_whose_batches_were_lost_under_way_gets_others(nursery, tmp_path, mode):
    lost = [Act(0.1, "weather", ("pull", "delay_s", 0.3)), Act(0.3, "cut", ("pull",)), Act(0.31, "heal", ("pull",))]
    assert judge(nursery, tmp_path, plan(mode, *lost)) == []


# -- controls: servers that break a promise, which the checks have to notice -----------------------------------------------


NO_ACKS = plan("replay", *(Act(0.05 * i, "weather", ("insert", "cut_acks", 1)) for i in range(1, 14)), actors=2)


def test_control_a_server_that_inserts_again_what_it_has_is_found_out(nursery, tmp_path):
    wrong = judge(nursery, tmp_path, NO_ACKS, ["applies_again"])
    assert any("rows twice" in one for one in wrong), wrong


def test_control_a_server_that_acknowledges_without_inserting_is_found_out(nursery, tmp_path):
    wrong = judge(nursery, tmp_path, plan("replay", Act(0.4, "heal")), ["applies_nothing_sometimes"])
    assert any("acknowledged rows missing" in one for one in wrong), wrong


def test_control_a_server_that_forgets_leases_is_found_out(nursery, tmp_path):
    kills = [Act(at, "kill_learner", (0,)) for at in (0.1, 0.3, 0.5)]
    wrong = judge(nursery, tmp_path, plan("queue", *kills, learners=2, left_s=2.0), ["forgets_leases"])
    assert any("never delivered" in one for one in wrong), wrong
