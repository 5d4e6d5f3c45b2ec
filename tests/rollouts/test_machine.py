"""Random histories of a table of rollouts; and faults that are planted, which they find."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import RolloutMachine

from async_loader.rollouts import saving
from async_loader.rollouts.group_table import GroupTable
from async_loader.rollouts.steps import Steps

pytestmark = pytest.mark.timeout(1200)
EXAMPLES = int(os.environ.get("ROLLOUT_HISTORIES", "200"))


def run(examples=EXAMPLES, steps=50, phases=tuple(Phase)):
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=False,
        phases=phases,
    )  # fmt: skip
    run_state_machine_as_test(RolloutMachine, settings=chosen)


def test_no_group_is_lost_doubled_split_over_stale_or_stuck():
    run()


def test_a_slot_that_a_filter_keeps_is_found(monkeypatch):
    end = GroupTable.end

    def ended(self, group, reason, give_back=False):
        end(self, group, reason, give_back)
        if reason == "filtered":
            self.holders[group.id] = group

    monkeypatch.setattr(GroupTable, "end", ended)
    with pytest.raises(AssertionError, match="slot"):
        run(400, phases=[Phase.generate])


def test_a_save_without_the_prompts_under_way_is_found(monkeypatch):
    restore = saving.restore

    def restored(calls, state):
        restore(calls, {**state, "meta": {**state["meta"], "prompts": []}})

    monkeypatch.setattr("machine.restore", restored)
    with pytest.raises(AssertionError, match=r"ledger|lost"):
        run(400, phases=[Phase.generate])


def test_a_due_group_that_is_passed_over_is_found(monkeypatch):
    def newest_first(self, ready):
        return sorted(ready, key=lambda one: -one.id)

    monkeypatch.setattr(Steps, "_order", newest_first)
    run(30)  # any order is within the bound

    monkeypatch.setattr(Steps, "_due", lambda self, order, chosen: True)
    monkeypatch.setattr(GroupTable, "over_stale", lambda self, group: False)
    with pytest.raises(AssertionError, match="over-stale"):
        run(1000, phases=[Phase.generate])
