"""Writers in other processes: the owner grants rows, they fill them, one aligned store publishes.
Imports no torch.

::

    writer's process                                                     owner's process
    Writer ──fields──▶ rows it was granted (the table's shared memory) ◀── Table (ids, links, items)
      │ └──records──▶ LANE (shared memory of these two): published ──────▶ Table.adopt ──▶ items, samplers, waiters
      └─ Supply ◀──── socket: rows, permits, answers ───────────────────── Service (a thread), InsertCredits

# NOTE [lane]
A lane is written by one writer and read by the owner. The writer fills a row's fields, then its
record (stream, flags, priority), and then stores how many records are complete: an aligned store
with release order, read with acquire. Up to there the row's head, which only the owner writes, says
that the row holds nothing. So a writer that is killed between any two instructions has either
published a row or has not; what it had not is given back to the order when the owner learns of the
death through a pidfd. No lock is shared, and nothing is ever reassigned because time has passed: a
writer that was stopped goes on with the rows that are still its own, and the ring goes around them
meanwhile.

# NOTE [old rows]
Ids are given when rows are granted, and a step leaves the table `capacity` ids later. A writer that
is slow beside fast ones would fill rows that are old at birth. Before each step it looks how far
the ids have come, and when its next row has used up half of its life it gives the extent back and
asks for another one.
"""

from async_loader.replay.multiprocess.writer_handle import WriterHandle

__all__ = ["WriterHandle"]
