"""When a wait for one shard of several ends."""

from __future__ import annotations

from async_loader.lifecycle import Deadline
from async_loader.scale.shard_connection import ShardConnection


class ShardDeadline(Deadline):
    """Passes with another deadline, or at the moment from which on the shard no longer answers.

    So a shard that is killed or stopped during a call delays the call by a few heartbeats at most.

    Parameters
    ----------
    shard : ShardConnection
    deadline : Deadline

    Attributes
    ----------
    silent : bool
        The shard did not answer any more: this has passed for good, also when it is back.
    """

    __slots__ = ("_deadline", "_shard", "silent")

    def __init__(self, shard: ShardConnection, deadline: Deadline) -> None:
        super().__init__(None)
        self._shard, self._deadline, self.silent = shard, deadline, False

    def left(self) -> float | None:
        """See `Deadline.left`. A sign of life makes it longer again."""
        left = self._deadline.left()
        answers_s = 0.0 if self.silent else self._shard.answers_s
        return answers_s if left is None else min(left, answers_s)

    @property
    def expired(self) -> bool:
        self.silent = self.silent or not self._shard.answers
        return self.silent or self._deadline.expired
