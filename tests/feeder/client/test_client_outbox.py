"""Go-back-N against a feeder and a wire that lose, repeat and forget: each row is there once, in
order, or said to be gone.
"""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from async_loader.feeder.client.outbox import Entry, Outbox


def END():
    return Entry([], 1, 1, finals=1)


class Delivery(RuleBasedStateMachine):
    """The wire keeps the order of what it does not lose, as TCP does; a reconnect loses
    everything that was under way.
    """

    def __init__(self):
        super().__init__()
        self.counts = Counter()
        self.box = Outbox(40, lambda entry: None, lambda **more: self.counts.update(more))
        self.fresh = 0  # the next row
        self.to_server, self.to_client = deque(), deque()
        self.table, self.next = [], 0
        self.gone = set()  # rows that were said to be dropped or lost
        self.tables_lost = []
        self.connected = False
        self.reopen(True)

    # -- the writer --------------------------------------------------------------------------------

    @rule(rows=st.integers(1, 4))
    def put(self, rows):
        if not self.box.room(rows):
            return
        self.box.put(Entry(list(range(self.fresh, self.fresh + rows)), rows, rows))
        self.fresh += rows

    @rule()
    def drop(self):
        before, dropped = list(self.box.entries), self.counts["rows_dropped"]
        self.box.drop_oldest(lambda streams: END())
        gone = [row for one in before if one not in self.box.entries for row in one.payload]
        assert self.counts["rows_dropped"] - dropped == len(gone)
        self.gone.update(gone)

    @precondition(lambda self: self.connected)
    @rule(count=st.integers(1, 5))
    def send(self, count):
        for _ in range(count):
            found = self.box.next()
            if found is None:
                return
            self.to_server.append((found[0], found[1].payload))
            self.box.sent()

    @rule(nbytes=st.integers(0, 30), rows=st.integers(0, 10))
    def window(self, nbytes, rows):
        self.box.window_bytes, self.box.window_rows = nbytes, rows

    # -- the wire ----------------------------------------------------------------------------------

    @precondition(lambda self: self.to_client)
    @rule()
    def lose_answer(self):
        self.to_client.popleft()

    @precondition(lambda self: self.to_client)
    @rule()
    def answer_twice(self):
        self.to_client.append(self.to_client[0])

    # -- the feeder --------------------------------------------------------------------------------

    @precondition(lambda self: self.to_server)
    @rule(count=st.integers(1, 5))
    def receive(self, count):
        for _ in range(min(count, len(self.to_server))):
            sequence, rows = self.to_server.popleft()
            if sequence == self.next:
                self.table.append(rows)
                self.next += 1
            self.to_client.append(self.next)

    @precondition(lambda self: self.to_client)
    @rule(count=st.integers(1, 5))
    def hear(self, count):
        for _ in range(min(count, len(self.to_client))):
            self.box.acked(self.to_client.popleft())

    @rule(resumed=st.booleans())
    def reopen(self, resumed):
        """A reconnect; ``resumed``: to a feeder that still knows the writer."""
        self.to_server.clear()
        self.to_client.clear()
        self.connected = True
        if not resumed:
            self._forget(0)
        self._opened(resumed)

    @rule(back=st.integers(1, 3))
    def roll_back(self, back):
        """A feeder that was started from what it had on its disk."""
        self.to_server.clear()
        self.to_client.clear()
        self._forget(max(0, self.next - back))
        self._opened(True)

    def _forget(self, keep):
        self.lost_now = [row for rows in self.table[keep:] for row in rows]
        del self.table[keep:]
        self.next = keep

    def _opened(self, resumed):
        kept = {row for entry in self.box.entries for row in entry.payload}
        missing = [row for row in getattr(self, "lost_now", []) if row not in kept]
        self.lost_now = []
        said = self.box.reopened(self.next, resumed, END)
        assert said == len(missing)
        self.gone.update(missing)

    # -- what holds --------------------------------------------------------------------------------

    @invariant()
    def each_row_is_once_in_order_or_gone(self):
        applied = [row for rows in self.table for row in rows]
        assert applied == sorted(set(applied))
        kept = [row for entry in self.box.entries for row in entry.payload]
        assert kept == sorted(set(kept))
        assert set(applied) | set(kept) | self.gone == set(range(self.fresh))
        assert not self.gone & (set(applied) | set(kept))

    @invariant()
    def numbers_add_up(self):
        box = self.box
        assert box.nbytes == sum(entry.nbytes for entry in box.entries)
        assert len(box.entries) == box.put_total - box.done_total
        assert box._sent_bytes == sum(entry.nbytes for entry in list(box.entries)[: box.cursor])
        assert box._sent_rows == sum(entry.rows for entry in list(box.entries)[: box.cursor])
        assert 0 <= box.cursor <= box._high <= len(box.entries)
        assert self.counts["rows_dropped"] + self.counts["rows_lost"] == len(self.gone)

    def teardown(self):
        """However it stands: with a wire that loses nothing any more, everything arrives."""
        self.box.window_bytes, self.box.window_rows = 30, 10
        for _ in range(200):
            self.send(5)
            self.receive(5)
            self.hear(5)
            self.each_row_is_once_in_order_or_gone()
            if not self.box.entries:
                return
            self.reopen(True)
        raise AssertionError(f"{len(self.box.entries)} messages never arrive")


TestDelivery = Delivery.TestCase
TestDelivery.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@pytest.mark.parametrize(("resumed", "another"), [(True, False), (True, True), (False, True)])
def test_what_another_server_may_have_delivered_is_marked(resumed, another):
    box = Outbox(1 << 20, lambda entry: None, lambda **more: None)
    box.window_bytes, box.window_rows = 1 << 20, 100
    for i in range(3):
        box.put(Entry([i], 1, 1))
    for _ in "ab":
        box.sent()
    box.reopened(0, resumed, END, another)
    assert [one.elsewhere for one in box.entries] == [another, another, False]
