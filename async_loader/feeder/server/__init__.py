"""The server: one process, one thread, which owns tables.

::

                       ┌─ control ─▶ ControlHandler ─▶ Sessions, WeightStore, CallHandler
    ServerSockets ─▶ Dispatcher ─ insert ─▶ InsertHandler ─▶ InsertQueue ─▶ NonblockingTable
                       └─ pull ────▶ PullHandler ◀── BatchScheduler ◀───────────────┘

`event_loop` waits for all sockets at once. In every round control messages come first, then inserts
and pulls, each up to a budget, so that a flood of data delays a heartbeat by no more than that.
Rows and batches that a table's limiter holds up stay in their queues, in order, and are tried again
when the table has changed.
"""

from __future__ import annotations

from async_loader.feeder.server.event_loop import Server

__all__ = ["Server"]
