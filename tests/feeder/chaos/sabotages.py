"""Servers that break a promise, each in one way: what the checks have to notice."""

from __future__ import annotations

from collections import Counter

from async_loader.feeder.server.insert_queue import InsertQueue, Producer, Queued


def applies_again() -> None:
    """A writer that comes back is asked for an insert that is in the table."""
    opened = InsertQueue.open

    def careless(self, session, number, key, schema):
        producer, resumed = opened(self, session, number, key, schema)
        if producer.applied and not producer.queue:
            producer.applied = producer.received = producer.applied - 1
        return producer, resumed

    InsertQueue.open = careless


def applies_nothing_sometimes() -> None:
    """Every fifth insert of a producer is acknowledged, and is in no table."""
    advance, seen = InsertQueue._advance_one, Counter()

    def forgetful(self, producer: Producer):
        first: Queued = producer.queue[0]
        if not first.done:
            seen[producer.key] += 1
            if seen[producer.key] % 5 == 0:

                def skipping(steps, start, went_in):
                    went_in(len(steps))

                insert, self.table.insert = self.table.insert, skipping
                try:
                    return advance(self, producer)
                finally:
                    self.table.insert = insert
        return advance(self, producer)

    InsertQueue._advance_one = forgetful


def forgets_leases() -> None:
    """What a dead learner had is dropped."""
    from async_loader.feeder.server.batch_scheduler import BatchScheduler

    close = BatchScheduler.close

    def careless(self, reader):
        reader.leases.clear()
        close(self, reader)

    BatchScheduler.close = careless


def says_nothing_of_what_comes_again() -> None:
    """Rows that come back are delivered as if they were new."""
    from async_loader.feeder.server.reader_state import RequeuedRows

    put = RequeuedRows.put
    RequeuedRows.put = lambda self, schema, batch, seen=True, front=False: put(
        self, schema, batch, False, front
    )


def takes_a_batch_for_used_when_it_was_sent() -> None:
    """As if a learner gave each batch back when it arrives: what it has not come to is dropped."""
    from async_loader.feeder.server.batch_scheduler import BatchScheduler

    hand_over = BatchScheduler._hand_over

    def careless(self, reader, *more):
        done = hand_over(self, reader, *more)
        reader.leases.clear()
        return done

    BatchScheduler._hand_over = careless
