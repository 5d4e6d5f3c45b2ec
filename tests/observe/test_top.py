"""The screen of ``top``: at most 24 lines of 80 columns, with what is wrong first."""

from __future__ import annotations

import io
import re

from rich.console import Console, Group
from status_rig import feeder_status, session_status, table_status

from async_loader.observe.terminal import screen as lines_of

TABLES = ("replay", "rollouts", "evaluation")


def screen(status, height=24, width=80):
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    console.print(Group(*lines_of(status, height)))
    text = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    assert "\x1b" not in text
    return text.splitlines()


def big_table(**changes):
    return table_status(
        size=10_000_000, capacity=10_000_000, samples_per_insert=8.0, nbytes=9 << 30,
        writers=64, readers=4, queued_rows=12_345,
        waiting=[f"reader {i}: 5 items, and a batch needs 32" for i in range(8)],
        policies={"policy": {"newest": 11, "oldest": 9, "lag": 3}},
        stale={"came_old": 12},
        **changes,
    )  # fmt: skip


def busy_feeder(wait=0.0, actors=64, number=0):
    """Three tables, 64 actors of which some are in trouble, four learners."""
    sessions = [session_status(i, rows_per_s=10_000.0) for i in range(actors)]
    sessions[17].update(connected=False, silent_s=4.0, state="died")
    sessions[30].update(silent_s=7.0, state="silent")
    sessions[41].update(in_flight_bytes=1 << 20)
    sessions[50].update(lag=12)
    sessions += [
        session_status(
            100 + i, name=f"learner-{i}", user_agent=f"learner-{i}", writers=0, readers=1
        )
        for i in range(4)
    ]
    tables = {
        name: big_table(
            inserts_per_s=123_456.0,
            samples_per_s=1_234_567.0,
            readers_wait=wait,
            writers_wait=wait,
        )
        for name in TABLES
    }
    return feeder_status(
        address=f"tcp://node{number}.cluster.example:5555",
        sessions=sessions,
        tables=tables,
        weights={"policy": 12},
        weights_age_s={"policy": 2.0},
        weights_waiting={"policy": 3, "critic": 1},
    )


def check_fits(lines, height=24, width=80):
    assert len(lines) <= height, "\n".join(lines)
    assert max(map(len, lines)) <= width, "\n".join(lines)


def clients_of(lines):
    begin = next(i for i, line in enumerate(lines) if line.startswith("client "))
    return [line.split()[0] for line in lines[begin + 1 :]]


def test_64_actors_fit_a_terminal_of_80_by_24_and_the_worst_come_first():
    lines = screen(busy_feeder(0.5))
    check_fits(lines)
    text = "\n".join(lines)
    assert clients_of(lines)[:3] == ["actor-17", "actor-30", "actor-41"]
    for said in ("died 4.0 s", "silent 7.0 s", "held back", "Learners wait for actors in replay"):
        assert said in text, text
    assert "68 clients" in text
    (left_out,) = re.findall(r"and (\d+) clients more", text)
    shown = len([one for one in clients_of(lines) if one.startswith("actor-")])
    assert int(left_out) == 68 - shown, text
