"""Any interleaving of puts, urgent failures, nudges, END and close: in order, each once, and
no thread left waiting.
"""

from __future__ import annotations

import threading

import pytest
from fault_rig import SLACK_S
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader.errors import Closed
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.source import END

kinds = st.sampled_from(["good", "good", "good", "failed", "urgent"])


@st.composite
def histories(draw):
    """Outcomes by job, the order in which they are put, and where END and nudges come in
    between.
    """
    outcomes = draw(st.lists(kinds, max_size=12))
    moves = [("put", seq) for seq in range(len(outcomes))] + [("end", len(outcomes))]
    moves += [("nudge", None)] * draw(st.integers(0, 3))
    return outcomes, draw(st.permutations(moves)), draw(st.booleans())


def play(queue, outcomes, moves):
    for move, seq in moves:
        if move == "put":
            kind = outcomes[seq]
            queue.put(
                seq,
                Batch(tree=seq)
                if kind == "good"
                else Failure(ValueError(seq), urgent=kind == "urgent"),
            )
        elif move == "end":
            queue.end(seq)
        else:
            queue.wake()


def drain(queue):
    """What a consumer gets until END, nudges left out: job numbers of the urgent, and of the
    others.
    """
    urgent, ordinary = [], []
    while (item := queue.get(Deadline(SLACK_S))) is not END:
        if isinstance(item, Failure):
            (urgent if item.urgent else ordinary).append(item.error.args[0])
        elif item is not None:
            ordinary.append(item.tree)
    return urgent, ordinary


@settings(deadline=None, max_examples=200)
@given(histories())
def test_every_outcome_is_delivered_once_and_in_order_whatever_the_order_of_the_puts(history):
    outcomes, moves, in_order = history
    queue = TrainQueue(in_order)
    play(queue, outcomes, moves)
    urgent, ordinary = drain(queue)
    assert sorted(urgent) == [n for n, kind in enumerate(outcomes) if kind == "urgent"]
    expected = [n for n, kind in enumerate(outcomes) if kind != "urgent"]
    assert (ordinary if in_order else sorted(ordinary)) == expected
    assert queue.get(Deadline(0.0)) is END
    assert queue.depth == 0


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(0, 16), st.integers(1, 3))
def test_close_at_any_moment_wakes_every_waiter_and_keeps_nothing(history, at, waiters):
    outcomes, moves, in_order = history
    queue = TrainQueue(in_order)
    results = []

    def consume():
        try:
            results.append(drain(queue))
        except Closed as error:
            results.append(error)

    threads = [threading.Thread(target=consume) for _ in range(waiters)]
    for one in threads:
        one.start()
    play(queue, outcomes, moves[:at])
    queue.close()
    play(queue, outcomes, moves[at:])
    for one in threads:
        one.join(SLACK_S)
    assert len(results) == waiters
    assert queue.depth == 0
    with pytest.raises(Closed):
        queue.get(Deadline(None))
