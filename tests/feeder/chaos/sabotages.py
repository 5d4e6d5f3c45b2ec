"""Servers that break a promise, each in one way: what the checks have to notice."""

from __future__ import annotations

from async_loader.feeder.server.insert_queue import InsertQueue


def applies_again() -> None:
    """What has come before is inserted once more."""
    receive = InsertQueue.receive

    def careless(self, writer, sequence, body, *more):
        producer = writer.producer
        if sequence >= producer.received:
            return receive(self, writer, sequence, body, *more)
        kept = producer.received
        producer.received = sequence
        told = receive(self, writer, sequence, body, *more)
        producer.received = kept
        producer.applied = min(producer.applied, kept)
        return told

    InsertQueue.receive = careless


def forgets_leases() -> None:
    """What a dead learner had is dropped."""
    from async_loader.feeder.server.batch_scheduler import BatchScheduler

    close = BatchScheduler.close

    def careless(self, reader):
        reader.leases.clear()
        close(self, reader)

    BatchScheduler.close = careless
