"""A feeder loses nothing that it promised to have, invents nothing, and no call waits for ever,
whatever befalls whom.

Each round is drawn from its seed; ``python tests/feeder/chaos/play.py SEED`` plays it by itself and
says what happens when. Processes run when they like, so that the same seed is the same faults at
the same moments, not the same bytes. Rounds are played several at a time, since they wait most of
theirs: as many tests as there are groups, not rounds. `scripts/bench soak` plays 500.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from plan import MODES, Act, Plan, plan_of
from proxy import DOWN, UP
from round import play_many

SEEDS, GROUP, TRIES = 20, 10, 5
# of a group; a round on an idle machine takes one or two seconds
pytestmark = pytest.mark.timeout(400)


def plan(name, mode, *acts, **more):
    return Plan(-1, mode, acts, name=name, **more)


def weather(at, *args):
    return Act(at, "weather", args)


def times(name, *moments, args=(0,)):
    return [Act(at, name, args) for at in moments]


def check(nursery, plans):
    wrong = [str(outcome) for outcome in play_many(nursery, plans) if outcome.wrong]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_nothing_promised_is_lost(nursery, first):
    check(nursery, [plan_of(seed) for seed in range(first, first + GROUP)])


NO_ACKS = plan(
    "acknowledgements that are cut off leave no row twice", "replay",
    *(weather(0.05 * i, "insert", "cut_acks", 1) for i in range(1, 10)), actors=2,
)  # fmt: skip
LATE_ACKS = plan(
    "acknowledgements that come late leave no row twice", "replay",
    weather(0.05, "insert", "dead", (DOWN,)), Act(0.4, "cut", ("insert",)),
    Act(0.65, "heal", ("insert",)), actors=2,
)  # fmt: skip
"""So late that the connection is cut, and the rows may be sent again before."""
CUTS = [
    plan(
        f"a message cut in two after {after} bytes {way} tears no row", "replay",
        *(weather(0.1 * i, "insert", "cut_after", (way, after * i)) for i in range(1, 6)),
    )
    for way in (UP, DOWN)
    for after in (1, 70, 1500)
]  # fmt: skip
LEARNERS_DIE = plan(
    "what a killed learner had is delivered again",
    "queue",
    *times("kill_learner", 0.1, 0.25, 0.4),
    learners=2,
)
FULL_HANDED_DIE = plan(
    "what a learner had and never came to",
    "queue",
    *(
        act
        for at in (0.1, 0.3, 0.5)
        for act in (Act(at, "stop_learner", (0,)), Act(at + 0.1, "kill_learner", (0,)))
    ),
    learners=2,
    left_s=1.0,
)
"""They are stopped first, so that batches come which they do not use."""
UNDER_WAY = (
    weather(0.1, "pull", "delay_s", 0.3),
    Act(0.3, "cut", ("pull",)),
    Act(0.31, "heal", ("pull",)),
)


@pytest.mark.slow
def test_a_message_cut_anywhere_tears_no_row_and_leaves_none_twice(nursery):
    check(nursery, [NO_ACKS, LATE_ACKS, *CUTS])


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_was_promised_to_others(nursery):
    plans = [
        LEARNERS_DIE,
        plan(
            "rows that died with a server are told",
            "replay",
            *times("kill_server", 0.2, 0.4),
            actors=2,
        ),
        plan(
            "their priorities stay theirs",
            "prioritized",
            *times("kill_server", 0.2, 0.4),
            actors=2,
            learners=2,
        ),
        plan(
            "a queue that died is filled again, and each item used",
            "queue",
            *times("kill_server", 0.2, 0.4),
            actors=2,
        ),
        plan(
            "also behind a lock",
            "queue",
            *times("kill_server", 0.2),
            *times("cut", 0.3, args=("pull",)),
            keyed=True,
        ),
    ]
    check(nursery, plans)


def test_learners_of_a_queue_that_come_and_go_in_good_order_use_each_item_once(nursery):
    leaving = times("leave_learner", 0.05, 0.15, 0.25, 0.35, 0.45)
    how = {"learners": 2, "actors": 2, "queue_size": 200}
    stopped = [Act(0.1, "stop_server", (0,)), *leaving[1:], Act(0.5, "continue_server")]
    plans = [
        plan("learners leave", "queue", *leaving, **how),
        plan("learners leave, in shared memory", "queue", *leaving, shared=True, batch=8, **how),
        plan("a server that is stopped meanwhile", "queue", *stopped, **how),
    ]
    check(nursery, plans)


@pytest.mark.slow
def test_a_killed_process_leaves_no_memory_mapped_and_no_batch_half_written(nursery):
    either = [*times("kill_server", 0.15, 0.4), *times("kill_learner", 0.1, 0.25, 0.35)]
    either.sort(key=lambda act: act.at)
    # so large that they are lent, not copied
    lent = {"shared": True, "batch": 40, "queue_size": 200}
    stops = [
        Act(0.1, "stop_learner", (0,)),
        *times("kill_server", 0.2),
        Act(0.3, "continue_learner"),
    ]
    plans = [
        *(
            plan(
                f"learners and a server that die ({mode})",
                mode,
                *either,
                actors=2,
                learners=2,
                **lent,
            )
            for mode in MODES
        ),
        plan(
            "killed learners of a queue",
            "queue",
            *times("kill_learner", 0.1, 0.25, 0.4),
            learners=2,
            **lent,
        ),
        plan(
            "a learner that slept while its feeder died",
            "queue",
            *stops,
            actors=2,
            learners=2,
            shared=True,
        ),
    ]
    check(nursery, plans)


@pytest.mark.slow
def test_connections_that_end_without_a_word_are_found_to_have_ended(nursery):
    plans = [
        *(
            plan(f"batches lost under way come again ({mode})", mode, *UNDER_WAY)
            for mode in ("replay", "queue")
        ),
        *(
            plan(
                f"the network forgets the {plane} connection ({mode})",
                mode,
                *times("forget", 0.2, args=(plane,)),
            )
            for plane, mode in (
                ("pull", "replay"),
                ("pull", "queue"),
                ("insert", "replay"),
                ("control", "queue"),
            )
        ),
    ]
    check(nursery, plans)


# -- controls: servers that break a promise, which the checks have to notice -----------------------


def found_out(nursery, plan, sabotage, text):
    """Sooner or later: on a machine that is busy with others nothing may befall what was broken.
    So each try is slower.
    """
    seen = []
    for i in range(TRIES):
        slower = replace(plan, acts=tuple(replace(act, at=act.at * 2**i) for act in plan.acts))
        (outcome,) = play_many(nursery, [slower], sabotage=[sabotage])
        seen += outcome.wrong
        if any(text in one for one in outcome.wrong):
            return
    raise AssertionError(f"{sabotage} was not found out: {seen}")


def test_control_a_server_that_inserts_again_what_it_has_is_found_out(nursery):
    found_out(nursery, LATE_ACKS, "applies_again", "rows twice")


@pytest.mark.slow
def test_control_a_server_that_forgets_leases_is_found_out(nursery):
    found_out(nursery, FULL_HANDED_DIE, "forgets_leases", "never delivered")


def test_control_a_server_that_acknowledges_without_inserting_is_found_out(nursery):
    calm = plan("calm", "replay", Act(0.4, "heal"))
    found_out(nursery, calm, "applies_nothing_sometimes", "acknowledged rows missing")


@pytest.mark.slow
def test_control_a_server_that_says_nothing_of_rows_that_come_again_is_found_out(nursery):
    deaths = [  # with batches that the server does not hear of having been used
        [
            weather(at, "pull", "dead", (UP,)),
            Act(at + 0.2, "kill_learner", (0,)),
            Act(at + 0.21, "cut", ("pull",)),
            Act(at + 0.22, "heal", ("pull",)),
        ]
        for at in (0.1, 0.6, 1.1)
    ]
    often = plan("learners die with used batches", "queue", *itertools.chain(*deaths), learners=2)
    found_out(nursery, often, "says_nothing_of_what_comes_again", "without the flag")


@pytest.mark.slow
def test_control_a_batch_that_counts_as_used_when_it_was_sent_is_found_out(nursery):
    found_out(
        nursery, FULL_HANDED_DIE, "takes_a_batch_for_used_when_it_was_sent", "never delivered"
    )
