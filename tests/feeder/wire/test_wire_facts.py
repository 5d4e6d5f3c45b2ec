"""Facts that two rooms state, because neither may import the other: they are equal."""

from __future__ import annotations

from async_loader.feeder import wire
from async_loader.feeder.wire import codes
from async_loader.replay.base import row_format
from async_loader.replay.table import nonblocking_table


def test_the_flags_of_a_row_are_the_tables():
    here = (wire.TERMINATED, wire.TRUNCATED, wire.FINAL, wire.SHOWN)
    there = (row_format.TERMINATED, row_format.TRUNCATED, row_format.FINAL, nonblocking_table.SHOWN)
    assert [*map(int, here)] == [*map(int, there)]


def test_row_flags_of_the_wire_and_flags_of_the_table_alone_never_meet():
    kept = wire.TERMINATED | wire.TRUNCATED | wire.FINAL
    assert not kept & (row_format.DELETED | row_format.AWAITS), (
        "SHOWN has DELETED's bit: it is not stored"
    )
    assert kept | wire.SHOWN == codes.ROW_FLAGS


def test_flags_of_a_header_do_not_meet_within_a_kind_of_message():
    assert not wire.ACK_NOW & wire.SENT_BEFORE
