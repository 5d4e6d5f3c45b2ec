"""async-loader inspect of a feeder's table: without a trace."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from async_loader import Field, Sequences, connect
from async_loader.cli import app

pytestmark = pytest.mark.usefixtures("near_feeders")

WIDE = {"COLUMNS": "200"}
SCHEMA = {"[red]obs": Field((2,), "float32", next="after"), "reward": "float32"}


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
    ):
        assert text in shown.output
    facts = json.loads(inspect(client.address, "replay", "--json").output)
    assert facts["schema"][0]["name"] == "[red]obs"
    assert (facts["table"], facts["steps"], facts["sampled"]) == ("replay", 11, 0)
    after = client.table("replay").stats()
    assert (after.size, after.sampled) == (before.size, before.sampled)
