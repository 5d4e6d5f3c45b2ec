"""Writers in other processes: they fill rows that the table's process grants, without a lock.

::

    writer's process                             table's process
    ProcessWriter ──fields──▶ granted rows (the table's shared memory)
      │ └──records──▶ PublishRing (shared memory of both) ──▶ Table.commit ──▶ items, samplers
      └─ RowGrants ◀── socket: rows, credits, answers ── WriterService (a thread), InsertCredits

# NOTE [publish ring]
A ring has one writer and one reader, the table's process. The writer fills a row's fields, then its
record (stream, flags, priority), and then stores the number of complete records: an aligned store
with release order, read with acquire. Until the table's process commits the record, the row's head,
which only that process writes, says that the row is empty. So a writer that is killed between any
two instructions has either published a row or has not. Rows that it has not published are given
back to the order when the table's process learns of the death through a pidfd. No lock is shared,
and a row is never reassigned after a timeout: a writer that was stopped continues with the rows
that it holds, and the order skips them meanwhile.

# NOTE [old rows]
Ids are assigned when rows are granted, and a step leaves the table `capacity` ids later. The rows
of a slow writer beside fast ones would be old when they are filled. So a writer compares its next
id with the table's before each step, and when half of the row's lifetime has passed it gives the
extent back and asks for another. Not where no item may be lost: nothing is written beyond a row
that is still to be filled.
"""

from async_loader.replay.multiprocess.writer_handle import WriterHandle

__all__ = ["WriterHandle"]
