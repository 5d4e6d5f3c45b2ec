"""A call by id that is under way: asked of a feeder, and not answered yet."""

from __future__ import annotations

from collections.abc import Iterator

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.wire import Applied as WireApplied
from async_loader.lifecycle import Deadline
from async_loader.source import Applied


class ServerReplaced(AsyncLoaderError):
    """The rows were those of an earlier server."""


class AskedById:
    """Sends its first message at once, and each further one after an answer.

    So calls of several feeders can be under way at the same time. Threads: one.

    Parameters
    ----------
    connection : Connection
    calls : iterator of Call
        The messages, in order.
    total : int
        Rows of the whole call.
    """

    def __init__(self, connection: Connection, calls: Iterator[Call], total: int) -> None:
        self._connection, self._calls = connection, calls
        self._total, self._applied = total, 0
        self._call: Call | None = None
        self._ask_next()

    def answer(self, deadline: Deadline) -> Applied:
        """Wait for all answers. Raises as `Connection.call`."""
        try:
            while self._call is not None:
                reply = self._connection.answer(self._call, deadline).body
                assert isinstance(reply, WireApplied)
                self._applied += reply.applied
                self._ask_next()
        except ServerReplaced:  # the rest are rows of an earlier server: stale
            pass
        finally:
            self.forget()
        return self.so_far

    @property
    def so_far(self) -> Applied:
        """What was applied by now; all other rows count as stale."""
        return Applied(self._applied, self._total - self._applied)

    def forget(self) -> None:
        """Wait for no answer. May be called again."""
        call, self._call = self._call, None
        if call is not None:
            self._connection.forget_calls([call])

    def _ask_next(self) -> None:
        call = next(self._calls, None)
        self._call = None if call is None else self._connection.ask(call)
