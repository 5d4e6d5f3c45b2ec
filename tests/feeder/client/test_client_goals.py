"""Hindsight goals through a feeder, against a list of episodes and a table of this process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_rig import serving

from async_loader import (
    AsyncDataLoader,
    Hindsight,
    Prioritized,
    ReplayBuffer,
    Uniform,
    tree,
)
from async_loader.lifecycle import Deadline, Patience
from tests.goal_rig import LINKED, MOVES, STORED, VIEWS, Episodes, ended_at, play, reward_of


def arrays_of(batch):
    structure = tree.structure_of(batch)
    return {
        name: np.asarray(leaf)
        for name, leaf in zip(tree.names(structure), tree.leaves(batch, structure), strict=True)
    }


def planned(source, batch_size):
    return source.plan(batch_size, Patience(deadline=Deadline(60.0))).batch


@settings(max_examples=15)
@given(
    view=VIEWS,
    moves=MOVES,
    linked=st.booleans(),
    memory=st.booleans(),
    sampler=st.sampled_from([Uniform, Prioritized]),
)
def test_draws_show_the_goals_of_a_list_of_episodes(view, moves, linked, memory, sampler):
    schema = LINKED if linked else STORED
    buffer = ReplayBuffer(300, schema, sampler=sampler(), seed=0)
    with serving(buffer, memory) as client, client.table("t").writer() as writer:
        table = client.table("t")
        model = Episodes(table, linked, writer.append, writer.end_episode, writer.flush)
        play(model, moves)
        ids = [step.name for episode in model.all for step in episode.steps]
        got = table.get(ids, view=view)
        model.check(got, view)
        if not len(table):
            return
        for _ in range(2):  # over the socket, then in memory where that is taken
            model.check(table.sample(30, view=view), view)
        source = table.source(view=view, transport="auto" if memory else "tcp")
        model.check(planned(source, 30), view)
        source.close()


def episodes_of(add, lengths, linked=True):
    model = Episodes(None, linked, add, None)
    for length in lengths:
        for t in range(length):
            model.add(0, "no" if t < length - 1 else "seen")


@pytest.mark.parametrize("sampler", [Uniform, Prioritized])
@pytest.mark.parametrize(("transport", "num_workers"), [("shm", 0), ("tcp", 2)])
@pytest.mark.parametrize("compute_terminated", [None, ended_at])
def test_the_first_batch_of_a_seed_is_that_of_a_table_here(
    sampler, transport, num_workers, compute_terminated
):
    view = Hindsight(
        reward_of, info="action", n_steps=3, compute_terminated=compute_terminated, gamma=0.9
    )
    here = ReplayBuffer(100, LINKED, sampler=sampler(), seed=0)
    there = ReplayBuffer(100, LINKED, sampler=sampler(), seed=0)
    for buffer in (here, there):
        episodes_of(buffer.add, [9, 17, 4])
    with serving(there) as client:
        sources = (
            here.source(view=view, seed=7),
            client.table("t").source(view=view, seed=7, transport=transport),
        )
        loaders = [AsyncDataLoader(sources[0], 192, prefetch=1)]
        loaders.append(AsyncDataLoader(sources[1], 192, num_workers=num_workers))
        with loaders[0], loaders[1]:
            wanted, found = (arrays_of(next(loader)) for loader in loaders)
            assert list(wanted) == list(found)
            for name, array in wanted.items():
                assert array.dtype == found[name].dtype
                assert (array == found[name]).all(), name
            assert found["relabelled"].mean() > 0.5
            if sampler is Prioritized:
                done = loaders[1].update_priorities(found["index"], np.ones(192))
                assert (done.applied, done.stale) == (192, 0)
        assert sources[1].transport == transport


def test_the_functions_stay_in_the_learners_process_and_see_relabelled_steps_alone():
    seen = []

    def reward(achieved, desired, info):
        seen.append((achieved, desired, info))
        return np.zeros(len(achieved))

    buffer = ReplayBuffer(100, LINKED, seed=0)
    episodes_of(buffer.add, [20])
    with serving(buffer) as client:
        view = Hindsight(reward, n_steps=2, info=("action", "observation"))
        batch = client.table("t").sample(50, view=view)
        ((achieved, desired, info),) = seen
        steps = np.minimum(2, 20 - batch["index"][batch["relabelled"]])
        assert achieved.shape == desired.shape == (steps.sum(), 2)
        assert list(info) == ["action", "observation"]
        assert (achieved[:, 0] == 2 * (info["action"] + 1)).all()
        assert not any(name.startswith("hindsight") for name in batch)
        none = Hindsight(reward, relabel_fraction=0.0)
        assert not client.table("t").sample(50, view=none)["relabelled"].any()
        assert len(seen) == 1  # it is not called for no goal at all
