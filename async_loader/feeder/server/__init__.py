"""The server: one process, one thread, which owns tables and says nothing to anybody who was not asked for.

::

    control ROUTER ─▶ Control ─▶ Sessions ─┬▶ InsertQueue ──▶ ServedTable ──▶ BatchScheduler ─▶ pull ROUTER
    insert ROUTER ──▶ InsertQueue               └▶ Weights
    pull ROUTER ────▶ BatchScheduler

The loop waits for all sockets at once. In every round control messages come first, then inserts and pulls, each up to a
budget, so that a flood of data delays a heartbeat by no more than that. What a table does not let in or out stays where it is, in
order, and is tried again whenever the table has changed.
"""

from __future__ import annotations

from async_loader.feeder.server.event_loop import Server

__all__ = ["Server"]
