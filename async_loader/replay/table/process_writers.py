"""What a table asks of the writers in other processes, which `replay.multiprocess` implements."""

from __future__ import annotations

from typing import Protocol

from async_loader.replay.limiter_state import LimiterState


class ProcessWriters(Protocol):
    """The writers of one table in other processes.

    Every method but `close` is called under the table's lock.
    """

    def commit(self) -> bool:
        """Commit the rows that writers have published. Return whether there were any."""

    def may_insert(self, limits: LimiterState, count: int) -> bool:
        """Return whether ``count`` steps fit beside those that writers may add at any moment."""

    def follow(self, limits: LimiterState | None) -> None:
        """Give credits by another limiter from now on."""

    def described(self) -> str:
        """Name the writers and the unopened handles; empty if the table has neither."""

    def close(self, timeout_s: float | None = None) -> bool:
        """Close all writers and join the thread that serves them. Return whether it has ended."""

    def forget(self) -> None:
        """Close this process's copies of descriptors, in a forked child. Change nothing shared."""
