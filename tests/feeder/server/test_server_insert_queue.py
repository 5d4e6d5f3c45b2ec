"""Rows in a table are those that were acknowledged, in their order, once; whatever is sent
twice, lost, fenced off or held up.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from server_rig import SCHEMA, rows_of

from async_loader import ReplayBuffer
from async_loader.errors import Malformed
from async_loader.feeder.server.insert_queue import InsertQueue
from async_loader.feeder.wire import ErrorCode, RowLayout
from async_loader.replay.buffer import shared_table
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.table.nonblocking_table import NonblockingTable
from tests.insert_rows import insert
from tests.table_parts import debug_state

ID = RowLayout.of(SCHEMA).schema_id
KEYS = [bytes([i]) * 16 for i in range(3)]


def table_of(capacity: int = 5000, limited: bool = True) -> ReplayBuffer:
    return ReplayBuffer(
        capacity,
        SCHEMA,
        seed=0,
        limiter=RateLimiter(min_size_to_sample=4, samples_per_insert=1.0, error_buffer=(0.0, 12.0))
        if limited
        else None,
    )


def intake_of(buffer: ReplayBuffer, window_rows: int = 1000) -> InsertQueue:
    return InsertQueue("t", NonblockingTable(shared_table(buffer)), window_rows)


def message(values):
    layout, steps = rows_of(values)
    return insert(layout, steps)


def stored(buffer: ReplayBuffer) -> list[int]:
    """What is in the table, in the order in which it came."""
    table = debug_state(buffer).state.table
    ids = np.sort(table.ids[table.items.alive != 0])
    return table.storage.cell(0)[table.find(ids)].reshape(-1).tolist()


class ExactlyOnce(RuleBasedStateMachine):
    """Each insert of a producer holds the values (producer, sequence, row), as one number."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = table_of()
        self.insert_queue = intake_of(self.buffer)
        self.writers = {}
        self.received = {}

    def values(self, key: int, sequence: int) -> list[int]:
        return [(key * 10_000 + sequence) * 10 + i for i in range(1 + sequence % 4)]

    @rule(key=st.integers(0, 2), session=st.integers(1, 3))
    def open(self, key, session):
        known = self.writers.get(key)
        writer, resumed = self.insert_queue.open(session, key, KEYS[key], SCHEMA)
        assert resumed == (known is not None)
        assert writer.session == session
        self.received.setdefault(key, 0)
        self.writers[key] = writer

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), how=st.sampled_from(["next", "next", "next", "next", "again", "gap"]))
    def send(self, data, how):
        key = data.draw(st.sampled_from(sorted(self.writers)))
        writer, expected = self.writers[key], self.received[key]
        sequence = expected
        if how == "again":
            sequence = data.draw(st.integers(0, expected))
        elif how == "gap":
            sequence = expected + data.draw(st.integers(1, 3))
        body = message(self.values(key, sequence))
        if sequence > expected:
            with pytest.raises(Malformed) as caught:
                self.insert_queue.receive(writer, sequence, body, ID)
            refusal = caught.value.code, caught.value.expected
            assert refusal == (ErrorCode.UNKNOWN_WRITER, expected)
            return
        assert self.insert_queue.receive(writer, sequence, body, ID) == (sequence == expected)
        self.received[key] += sequence == expected

    @rule(count=st.integers(1, 8))
    def sample(self, count):
        drawing = self.insert_queue.table.drawing(None, 0, 1, None)
        count = min(count, drawing.most(count))
        if count:
            drawing.arrays(count)
        self.insert_queue.advance()

    @invariant()
    def the_table_holds_what_was_acknowledged_in_order_and_once(self):
        there = stored(self.buffer)
        assert len(set(there)) == len(there)
        for key, writer in self.writers.items():
            mine = [one for one in there if one // 100_000 == key]
            applied = [one for n in range(writer.applied) for one in self.values(key, n)]
            assert mine[: len(applied)] == applied
            half = self.values(key, writer.applied)
            assert mine[len(applied) :] == half[: len(mine) - len(applied)]
            assert len(mine) - len(applied) < len(half)
            assert writer.received == self.received[key]
            assert writer.queued_rows >= 0
            assert bool(writer.queue) == (writer.applied < writer.received)
            assert (writer in self.insert_queue._blocked) == bool(writer.queue)

    def teardown(self):
        for _ in range(10_000):
            if not self.insert_queue.blocked:
                break
            self.sample(8)
        assert not self.insert_queue.blocked
        for key, writer in self.writers.items():
            assert writer.applied == self.received[key]
        self.the_table_holds_what_was_acknowledged_in_order_and_once()


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_producers_that_are_held_up_take_turns():
    buffer = table_of()
    insert_queue = intake_of(buffer)
    writers = [insert_queue.open(1, i, KEYS[i], SCHEMA)[0] for i in range(2)]
    insert_queue.receive(writers[0], 0, message(range(12)), ID)
    for n in range(1, 6):
        insert_queue.receive(writers[0], n, message([100 + n]), ID)
    insert_queue.receive(writers[1], 0, message([200]), ID)
    buffer.sample(3, timeout_s=0)
    insert_queue.advance()
    assert stored(buffer)[12:] == [101, 200, 102]


@pytest.mark.parametrize("lie", ["schema", "flags", "final", "stream", "bool"])
def test_an_insert_that_lies_is_not_received(lie):
    buffer = table_of(limited=False)
    insert_queue = intake_of(buffer)
    writer, _ = insert_queue.open(1, 1, KEYS[0], SCHEMA)
    layout, steps = rows_of(
        [1, 2],
        flags=[0, 4] if lie == "final" else None,
        streams=[0, 1 << 20] if lie == "stream" else None,
    )
    body = insert(layout, steps)
    packed = bytearray(body.frames[0])
    if lie == "flags":
        packed[4] = 0x80
    if lie == "bool":
        packed[layout.offsets[1]] = 2
    body = type(body)(body.rows, [packed])
    with pytest.raises(Malformed) as caught:
        insert_queue.receive(writer, 0, body, ID ^ (lie == "schema"))
    assert caught.value.code == (ErrorCode.SCHEMA if lie == "schema" else ErrorCode.MALFORMED)
    assert (writer.received, stored(buffer), buffer.stats().streams) == (0, [], 0)


def test_inserts_that_a_checkpoint_has_are_not_stored_again(tmp_path):
    """The table was full: of the last insert two of three rows went in before it was saved."""
    buffer = ReplayBuffer.queue(5, SCHEMA)
    intake = intake_of(buffer)
    writer, _ = intake.open(1, 0, KEYS[0], SCHEMA)
    sent = [[1, 2], [3], [4, 5, 6]]
    for sequence, values in enumerate(sent):
        intake.receive(writer, sequence, message(values), ID)
    (position,) = intake.positions()
    assert position == (KEYS[0].hex(), 2, 2)
    buffer.save(tmp_path / "s")
    again = ReplayBuffer.queue(100, SCHEMA)
    again.load(tmp_path / "s")
    restored = intake_of(again)
    restored.restore([position])
    writer, resumed = restored.open(1, 0, KEYS[0], SCHEMA)
    assert (resumed, writer.applied) == (True, 2)
    assert not restored.receive(writer, 1, message(sent[1]), ID)
    assert restored.receive(writer, 2, message(sent[2]), ID)
    assert restored.receive(writer, 3, message([7]), ID)
    assert stored(again) == [1, 2, 3, 4, 5, 6, 7]
    buffer.close()
    again.close()
