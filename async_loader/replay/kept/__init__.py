"""Tables whose memory is a named file, which outlives the process.

The folder is locked by the process that has the table.

::

    FOLDER/table        rows, and what `pages.py` lists behind them
    FOLDER/patch.npz    an update that is under way
    FOLDER/unused.npz   rows of a feeder's queue that learners have, and whose room is needed

# NOTE [what a kill leaves]
Stores of a process that is killed stay in the kernel's pages, in the order of the program. So a
file is at every moment what some part of the program has written, and `recovery.py` reads it.
A commit says up to which id rows count, and where the producer is that wrote them: it is one
record, so that a message is in the table with its number, or neither is. Rows above are dropped:
they were never acknowledged or drawn. Nothing is synced to a disk: a kill of the machine may leave
anything.
"""

from async_loader.replay.kept.file import KeptFile
from async_loader.replay.kept.pages import Contents, contents, tables_in
from async_loader.replay.kept.recovery import recover

__all__ = ["Contents", "KeptFile", "contents", "recover", "tables_in"]
