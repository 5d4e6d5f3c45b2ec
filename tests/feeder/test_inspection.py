"""async-loader inspect of a feeder's table: against a list of episodes, and without a trace."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from async_loader import Field, ReplayBuffer, Sequences, connect
from async_loader.cli import app
from async_loader.replay.buffer import parts_of
from async_loader.replay.table.nonblocking_table import NonblockingTable
from tests.sequence_rig import LINKED, MOVES, PLAIN, Episodes, play

WIDE = {"COLUMNS": "200"}
SCHEMA = {"[red]obs": Field((2,), "float32", next="after"), "reward": "float32"}


def runs_of(model, most):
    """The steps of each episode that follow each other in the newest ids; which are a whole one."""
    oldest = model.cursor - min(most, model.table.capacity)
    for episode in [one for episodes in model.streams.values() for one in episodes]:
        run = []
        for step in (*episode.steps, None):
            if step is not None and step.name >= oldest and step.name not in model.deleted:
                run.append(step.name)
            elif run:
                yield run, len(run) == len(episode.steps) and episode.after is not None
                run = []


@settings(max_examples=60, deadline=None)
@given(moves=MOVES, linked=st.booleans(), most=st.integers(1, 60))
def test_the_newest_episodes_are_those_of_a_list_of_episodes(moves, linked, most):
    schema = {**(LINKED if linked else PLAIN), "reward": "float32"}
    buffer = ReplayBuffer(40, schema, seed=0)
    table = NonblockingTable(parts_of(buffer))

    def add(**step):
        return buffer.add(**step, reward=step["obs"])

    model = Episodes(buffer, linked, add, buffer.end_episode)
    play(model, moves)
    found = table.newest_episodes(most)
    runs = list(runs_of(model, most))
    assert found.ids.tolist() == sorted(name for run, _ in runs for name in run)
    whole = [run for run, is_whole in runs if is_whole]
    wanted = sorted((len(run), sum(run)) for run in whole)
    assert sorted(zip(found.lengths.tolist(), found.returns.tolist(), strict=True)) == wanted
    assert found.parts == len(runs) - len(whole)


@pytest.fixture
def client():
    tables = {
        "replay": {"capacity": 100, "schema": SCHEMA},
        "later": {"capacity": 100},
        "sequences": {"capacity": 100, "schema": {"x": "float32"}, "view": Sequences(3)},
    }
    with connect("embedded", tables=tables) as client:
        with client.table("replay").writer() as writer:
            for length in (3, 3, 5):
                for t in range(length):
                    ends = t == length - 1
                    obs = {"[red]obs": np.full(2, t)}
                    final = {"final_obs": np.zeros(2)} if ends else {}
                    writer.append(**obs, reward=0.5, terminated=ends, **final)
        with client.table("sequences").writer() as writer:
            writer.extend(x=np.arange(9))
        yield client


def inspect(*arguments):
    return CliRunner().invoke(app, ["inspect", *arguments], env=WIDE)


def test_inspect_shows_a_feeders_table_and_changes_nothing(client):
    before = client.table("replay").stats()
    shown = inspect(client.address, "replay")
    assert shown.exit_code == 0, shown.output
    for text in (
        "replay: 11 steps that can be drawn, capacity 100 in ",
        "11 inserted, 0 sampled, 0 deleted",
        "[red]obs",
        "the newest 11 steps: 3 whole episodes, and parts of 0 that began before or go on",
        "length of these episodes: mean 3.667, median 3",
        "return of these episodes: mean 1.833, median 1.5",
        "3 to 4          ######################################## 2",
    ):
        assert text in shown.output
    facts = json.loads(inspect(client.address, "replay", "--json").output)
    assert facts["schema"][0]["name"] == "[red]obs"
    assert (facts["table"], facts["steps"], facts["sampled"]) == ("replay", 11, 0)
    newest = facts["newest"]
    assert (newest["steps"], newest["episodes"], newest["parts"]) == (11, 3, 0)
    assert newest["return"] == {
        "min": 1.5,
        "mean": 5.5 / 3,
        "median": 1.5,
        "max": 2.5,
        "counts": [2, 1],
        "edges": [1.5, 2.0, 2.5],
    }
    after = client.table("replay").stats()
    assert (after.size, after.sampled) == (before.size, before.sampled)
