"""Phases of sessions, writers and readers make the moves of a table, and are set in one place
each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from async_loader.feeder.client import reader_channel, reader_state, session, writer_channel
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.reader_state import ReaderOptions, ReaderPhase
from async_loader.feeder.client.row_queue import WriterOptions
from async_loader.feeder.client.session import SessionPhase
from async_loader.feeder.client.writer_channel import WriterChannel, WriterPhase
from async_loader.feeder.wire import OpenReader
from async_loader.lifecycle import StateTable

TABLES = {
    SessionPhase: (session.MOVES, SessionPhase.WAITING, {SessionPhase.ENDED}),
    WriterPhase: (writer_channel.MOVES, WriterPhase.WANTED, {WriterPhase.CLOSED}),
    ReaderPhase: (reader_state.MOVES, ReaderPhase.WANTED, {ReaderPhase.CLOSED}),
}


@pytest.mark.parametrize("phases", TABLES)
def test_every_phase_is_in_the_table_can_be_reached_and_can_end(phases):
    moves, first, final = TABLES[phases]
    assert set(moves) == set(phases)
    reached, before = {first}, set()
    while reached != before:
        before, reached = reached, reached | {to for one in reached for to in moves[one]}
    assert reached == set(phases)
    assert {one for one in phases if not moves[one]} == final


@pytest.mark.parametrize("phases", TABLES)
def test_a_move_that_is_not_in_the_table_is_refused_and_changes_nothing(phases):
    moves = TABLES[phases][0]
    for one in phases:
        for to in phases:
            table = StateTable(one, moves)
            assert table.to(to) is (to in moves[one])
            assert table.state is (to if to in moves[one] else one)


def test_phases_are_moved_by_their_own_class_only():
    folder = Path(session.__file__).parent
    owners = {Path(one.__file__).name for one in (session, writer_channel, reader_channel)}
    for path in folder.glob("*.py"):
        moves = re.search(r"phases\.to\(|\.phase = ", path.read_text())
        assert not moves or path.name in owners, path.name


def test_a_channel_has_at_most_15_attributes():
    writer = WriterChannel(1, "t", None, WriterOptions())
    reader = ReaderChannel(1, OpenReader(table="t", batch_size=4), ReaderOptions(None))
    for channel in (writer, reader, writer.queue, reader.deliveries):
        assert len(vars(channel)) <= 15, sorted(vars(channel))
