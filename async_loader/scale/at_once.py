"""One call of several shards at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from async_loader.lifecycle import Deadline, EventFd, readable
from async_loader.scale.connections import Connections
from async_loader.scale.shard_connection import ShardConnection

R = TypeVar("R")
_WOKEN_S = 0.1
"""A thread whose call was given up ends within this time, unless the processor is busy."""


class CallDeadline(Deadline):
    """Passes with another deadline, or when its call is given up.

    Parameters
    ----------
    deadline : Deadline
    """

    __slots__ = ("_deadline", "_over")

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(None)
        self._deadline, self._over = deadline, False

    def left(self) -> float | None:
        """See `Deadline.left`."""
        return 0.0 if self._over else self._deadline.left()

    @property
    def expired(self) -> bool:
        return self._over or self._deadline.expired

    def end(self) -> None:
        """Let it pass now. Threads that wait have to be woken."""
        self._over = True


class ShardCall(Generic[R]):
    """The call of one shard, in a thread.

    Parameters
    ----------
    shard : ShardConnection
    call : callable
        Called with the shard and its deadline.
    deadline : Deadline
    bell : EventFd
        Rung at the end.

    Attributes
    ----------
    result : object
        What was returned, if anything was.
    error : Exception | None
        What was raised.
    """

    def __init__(
        self,
        shard: ShardConnection,
        call: Callable[[ShardConnection, Deadline], R],
        deadline: Deadline,
        bell: EventFd,
    ) -> None:
        self.shard = shard
        self.result: R | None = None
        self.error: Exception | None = None
        self._call, self._limit, self._bell = call, CallDeadline(deadline), bell
        self._over = False
        self._thread = threading.Thread(target=self._run, name="async-loader-cluster", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._over

    def give_up(self) -> None:
        """End the wait for an answer: Timeout is raised in the call."""
        self._limit.end()
        self.shard.connection.news.ring()

    def join(self) -> None:
        """Wait for the thread, which has ended or was given up."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self.result = self._call(self.shard, self._limit)
        except Exception as error:  # raised by the thread that waits for all
            self.error = error
        self._over = True
        self._bell.ring()


def called_at_once(
    connections: Connections,
    shards: Sequence[ShardConnection],
    call: Callable[[ShardConnection, Deadline], R],
    deadline: Deadline,
    first: bool = False,
) -> list[ShardCall[R]]:
    """Return the calls of all shards when they have ended.

    When one has ended well, those of shards that no longer answer are given up.

    Parameters
    ----------
    connections : Connections
        These ring when a shard is lost.
    first : bool
        Give up all others when one has returned something other than ``None``.
    """
    bell = EventFd()
    calls = [ShardCall(one, call, deadline, bell) for one in shards]
    connections.listen(bell)
    try:
        for one in calls:
            one.start()
        while pending := [one for one in calls if not one.over]:
            ended_well = [one for one in calls if one.over and one.error is None]
            if first and any(one.result is not None for one in ended_well):
                break
            left = None
            if ended_well:
                for one in pending:
                    if not one.shard.answers:
                        one.give_up()
                left = min(max(one.shard.answers_s, _WOKEN_S) for one in pending)
            readable([bell.fileno()], left)
            bell.clear()
    finally:  # also after Ctrl-C
        for one in calls:
            one.give_up()
        for one in calls:
            one.join()
        connections.unlisten(bell)
        bell.close()
    return calls
