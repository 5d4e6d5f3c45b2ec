"""Batches in memory that a learner owns: filled only while it says so, and let go of with the
learner, whatever it sends.
"""

from __future__ import annotations

import contextlib
import select
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from server_rig import SCHEMA, Rig, rows_of

from async_loader import ReplayBuffer
from async_loader.batch_layout import BatchLayout
from async_loader.errors import Malformed
from async_loader.feeder.memory_offer import Offer
from async_loader.feeder.wire import (
    REDELIVERED,
    Ack,
    Error,
    ErrorCode,
    Plane,
    Pong,
    Pull,
    RowLayout,
    SlotBatches,
    SlotInsert,
    Writer,
    schema_of,
)
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo
from async_loader.schema import Schema
from async_loader.shm.segment import Segment
from tests.insert_rows import insert

SLOT = 4096


def queue() -> dict[str, ReplayBuffer]:
    return {"t": ReplayBuffer(100, SCHEMA, sampler=Fifo(), limiter=Queue(100), max_times_sampled=1)}


class Learner:
    """A peer with a reader and memory for it."""

    def __init__(self, rig, peer, slots=3, rows=4, number=1):
        self.rig, self.peer, self.number, self.sealed = rig, peer, number, False
        self.reader = peer.open_reader(number, rows, transport="shm")
        self.offer = Offer(peer.session, number, slots, SLOT)
        self.segment = Segment.create(slots * SLOT, "a learner in a test")
        self.layout = BatchLayout.contiguous(schema_of(self.reader.body.schema), rows)

    def give(self, offer=None, seal=True):
        """Offer the memory; raises what the server has against it."""
        if seal and not self.sealed:
            self.segment.seal()
            self.sealed = True
        memory_acceptor = self.rig.server._memory
        record, fd = offer or self.offer, self.segment.fileno()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(record.send, memory_acceptor.path, fd)
            while not asked.done():
                if select.select([memory_acceptor], [], [], 0.01)[0]:
                    memory_acceptor.handle()
        asked.result()

    def pull(self, granted, returned=()):
        self.peer.send(Plane.PULL, Pull(granted, tuple(returned)), self.number)

    def batches(self):
        """(sequence, place, values) of everything that came."""
        found = []
        while (message := self.peer.receive(Plane.PULL, wait=False)) is not None:
            if isinstance(message.body, Pong):
                continue
            assert isinstance(message.body, SlotBatches), message.body
            for i, place in enumerate(message.body.places):
                views = self.layout.views(self.segment.bytes(place.slot * SLOT, SLOT))
                found.append((message.sequence + i, place, views[0][: place.rows].tolist()))
        return found

    def error(self):
        return self.peer.receive(Plane.PULL).body


@contextlib.contextmanager
def learning(tmp_path, tables=None, rows=100, **settings):
    with Rig(tables, memory=str(tmp_path / "memory"), **settings) as rig:
        peer = rig.peer()
        peer.open_writer()
        peer.insert(0, range(rows))
        learner = Learner(rig, peer)
        try:
            yield rig, learner
        finally:
            learner.segment.close()


def mapped():
    with open("/proc/self/maps") as maps:
        return sum("memfd:async_loader" in line for line in maps)


def test_slots_are_filled_as_far_as_credit_and_slots_go_and_told_of_in_one_message(tmp_path):
    with learning(tmp_path) as (_, learner):
        assert learner.reader.body.transport == "shm"
        learner.pull(9)
        assert not learner.batches(), "it has no memory"
        learner.give()
        learner.pull(9, [2, 0])
        message = learner.peer.receive(Plane.PULL)
        assert [(place.slot, place.generation, place.rows) for place in message.body.places] == [
            (2, 1, 4),
            (0, 1, 4),
        ]
        assert message.sequence == 0
        learner.pull(9, [1])
        ((sequence, place, values),) = learner.batches()
        assert (sequence, place.slot) == (2, 1)
        index = learner.layout.views(learner.segment.bytes(SLOT, SLOT))[2].tolist()
        assert values == index, "row i has x = i"
        learner.pull(9, [0, 2])
        assert [
            (sequence, place.slot, place.generation) for sequence, place, _ in learner.batches()
        ] == [(3, 0, 2), (4, 2, 2)]
        learner.pull(3, [0])
        learner.pull(9)
        assert [sequence for sequence, _, _ in learner.batches()] == [5], "slots count, and credit"


@pytest.mark.parametrize("returned", [[7], [2**32 - 1], [0, 0], [1]])
def test_slots_that_a_learner_cannot_give_are_refused_and_everybody_is_served_on(
    tmp_path, returned
):
    with learning(tmp_path) as (rig, learner):
        learner.give()
        learner.pull(0, [1])
        learner.pull(1, returned)
        error = learner.error()
        assert isinstance(error, Error)
        assert (error.code, error.retryable) == (ErrorCode.MALFORMED, False)
        other = Learner(rig, rig.peer())
        other.give()
        other.pull(1, [0])
        assert len(other.batches()) == 1
        other.segment.close()
        assert not rig.server.counters["faults"]


def test_memory_that_is_not_sealed_too_small_or_nobodys_is_refused(tmp_path):
    with learning(tmp_path) as (rig, learner):
        before = mapped()  # the learner's own
        with pytest.raises(Malformed, match="not sealed"):
            learner.give(seal=False)
        with pytest.raises(Malformed, match="no reader 2"):
            learner.give(Offer(learner.peer.session, 2, 3, SLOT))
        with pytest.raises(Malformed, match="begin again with HELLO"):
            learner.give(Offer(learner.peer.session + 2, 1, 3, SLOT))
        with pytest.raises(Malformed, match="were announced"):
            learner.give(Offer(learner.peer.session, 1, 4, SLOT))
        assert mapped() == before
        wide = Learner(rig, rig.peer(), rows=1000)
        with pytest.raises(Malformed, match="offer larger ones"):
            wide.give()
        wide.segment.close()
        assert not mapped() - before, "what was refused is not kept"
        learner.give()
        assert mapped() == before + 1
        with pytest.raises(Malformed, match="that takes memory: open it"):
            learner.give()


@pytest.mark.parametrize("how", ["closed", "opened again", "silent", "hello"])
def test_the_memory_of_a_client_that_is_gone_is_released(tmp_path, how):
    with learning(tmp_path) as (rig, learner):
        before = mapped()
        learner.give()
        learner.pull(2, [0, 1, 2])
        assert len(learner.batches()) == 2
        assert mapped() == before + 1
        if how == "closed":
            learner.peer.close_reader()
        elif how == "opened again":
            learner.peer.open_reader(transport="shm")
        elif how == "silent":
            rig.pass_time(11.0)
        else:
            learner.peer.hello()
        assert mapped() == before


def test_what_a_queue_put_into_a_dead_learners_memory_goes_to_another(tmp_path):
    with learning(tmp_path, queue(), rows=10) as (rig, learner):
        learner.give()
        learner.pull(2, [0, 1, 2])
        assert [values for _, _, values in learner.batches()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        learner.segment.bytes()[:] = 255  # what lies there is the learner's to change
        learner.peer.give_back([0])
        rig.turn()
        other = Learner(rig, rig.peer(), rows=3)
        other.give()
        learner.peer.close_reader(arrived=2, seen=[1])
        other.pull(2, [0, 1])
        found = other.batches()
        assert [values for _, _, values in found] == [[4, 5, 6], [7, 8, 9]]
        assert [place.flags for _, place, _ in found] == [REDELIVERED, REDELIVERED]
        other.segment.close()


# -- rows in memory of a writer --------------------------------------------------------------------

FRAMES = Schema.of({"x": np.int64, "obs": ((2000,), np.uint8), "mask": ((1500,), np.bool_)})
INSERT_SLOT = 64 << 10


class Actor:
    """A peer with a writer and memory for its rows."""

    def __init__(self, rig, slots=2, number=1):
        self.rig, self.peer, self.number, self.sent = rig, rig.peer(), number, 0
        assert isinstance(self.peer.open_writer(number, schema=FRAMES).body, Writer)
        self.offer = Offer(self.peer.session, number, slots, INSERT_SLOT, "writer")
        self.segment = Segment.create(slots * INSERT_SLOT, "an actor in a test")
        self.segment.seal()

    give = Learner.give
    sealed = True

    def put(self, slot, values, capacity=None, **others):
        """Write rows into a slot."""
        layout, steps = rows_of(values, FRAMES, **others)
        steps.columns[1][:] = np.asarray(values)[:, None]
        frames = insert(layout, steps).frames
        places, _ = layout.slot_places(capacity or len(values))
        for place, frame in zip(places, frames, strict=True):
            data = memoryview(frame).cast("B")
            at = slot * INSERT_SLOT + place
            self.segment.view(at, len(data))[:] = data

    def send(self, slot, rows, sequence=None, capacity=None):
        sequence = self.sent if sequence is None else sequence
        self.sent = sequence + 1
        schema_id = RowLayout.of(FRAMES).schema_id
        self.peer.send(
            Plane.INSERT,
            SlotInsert(rows, slot, capacity or rows),
            self.number,
            sequence,
            schema=schema_id,
        )

    def answer(self):
        return self.peer.receive(Plane.INSERT).body


@contextlib.contextmanager
def acting(tmp_path, capacity=100, **settings):
    tables = {"t": ReplayBuffer(capacity, seed=0, **settings)}
    with Rig(tables, memory=str(tmp_path / "memory")) as rig:
        actor = Actor(rig)
        try:
            yield rig, actor, tables["t"]
        finally:
            actor.segment.close()


def stored(table):
    return np.sort(table.get(np.arange(len(table)))["x"]).tolist()


def test_rows_in_a_slot_are_inserted_and_the_slot_may_be_filled_again(tmp_path):
    with acting(tmp_path) as (_, actor, table):
        actor.give()
        for i in range(5):
            actor.put(i % 2, [10 * i, 10 * i + 1])
            actor.send(i % 2, 2)
            answer = actor.answer()
            assert (type(answer), answer.applied) == (Ack, i + 1)
        assert stored(table) == [10 * i + k for i in range(5) for k in range(2)]
        rows = table.get(np.arange(10))
        assert (rows["obs"] == rows["x"][:, None]).all()


def test_rows_that_wait_for_their_table_lie_in_the_slot_and_outlive_the_writer(tmp_path):
    limits = {"limiter": Queue(4), "sampler": Fifo(), "max_times_sampled": 1}
    with acting(tmp_path, 4, **limits) as (rig, actor, table):
        actor.give()
        for slot in range(2):
            actor.put(slot, range(4 * slot, 4 * slot + 4))
            actor.send(slot, 4)
        rig.turn()
        assert rig.server_state.tables["t"].insert_queue.blocked
        before = mapped()
        actor.peer.close()
        rig.pass_time(rig.server._settings.silence_s + 1)
        assert len(rig.server_state.sessions) == 0
        learner = rig.peer()
        learner.open_reader(1, 4)
        learner.pull(2)
        rig.turn()
        assert table.stats().inserted == 8
        del table
        rig.turn()
        assert mapped() == before - 1, "the memory went with the last of its rows"


def test_rows_that_change_after_they_were_checked_do_no_harm(tmp_path):
    limits = {"limiter": Queue(4), "sampler": Fifo(), "max_times_sampled": 1}
    with acting(tmp_path, 4, **limits) as (rig, actor, table):
        actor.give()
        for slot in range(2):
            actor.put(slot, range(4), flags=[0, 0, 0, 2])
            actor.send(slot, 4)
        rig.turn()
        actor.segment.view()[:] = b"\xff" * (2 * INSERT_SLOT)
        learner = rig.peer()
        reader = learner.open_reader(1, 4)
        learner.pull(2)
        rig.turn()
        values = [learner.values(learner.receive(Plane.PULL), reader) for _ in range(2)]
        assert values == [[0, 1, 2, 3]] * 2, "small fields were copied"
        assert table.stats().inserted == 8
        assert rig.server.counters["faults"] == 0
