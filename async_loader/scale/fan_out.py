"""One call of several shards at the same time, and the answers of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Generic, TypeVar

from async_loader.errors import AsyncLoaderError, Closed
from async_loader.lifecycle import Deadline
from async_loader.scale.connections import Connections, ShardConnection

R = TypeVar("R")


class Answers(Generic[R]):
    """What shards have answered, by name.

    Attributes
    ----------
    found : dict of str
    failed : dict of str to AsyncLoaderError
    over : bool
        The call was given up.
    """

    def __init__(self) -> None:
        self.found: dict[str, R] = {}
        self.failed: dict[str, AsyncLoaderError] = {}
        self.over = False

    def check(self) -> None:
        """Raise the first error."""
        for error in self.failed.values():
            raise error


class ShardDeadline(Deadline):
    """Passes with another deadline, or when the shard no longer answers.

    So a shard that is killed or stopped during a call delays the call by a few heartbeats at most.

    Parameters
    ----------
    shard : ShardConnection
    deadline : Deadline
    answers : Answers, optional
        A silent shard is waited for until another one has answered.
    """

    __slots__ = ("_answers", "_deadline", "_shard")

    def __init__(
        self, shard: ShardConnection, deadline: Deadline, answers: Answers[R] | None = None
    ) -> None:
        super().__init__(None)
        self._shard, self._deadline, self._answers = shard, deadline, answers

    def left(self) -> float | None:
        """See `Deadline.left`. A sign of life makes it longer again."""
        left = self._deadline.left()
        if self._answers is not None:
            if self._answers.over:
                return 0.0
            if not self._answers.found:
                return left
        answers_s = self._shard.connection.answers_s
        return answers_s if left is None else min(left, answers_s)

    @property
    def expired(self) -> bool:
        return self.left() == 0.0


def ask_all(
    connections: Connections,
    shards: Sequence[ShardConnection],
    call: Callable[[ShardConnection, Deadline], R],
    deadline: Deadline,
    patient: bool = True,
) -> Answers[R]:
    """Call each shard, in threads; return the answers and the errors of all.

    Parameters
    ----------
    call : callable
        Called with the shard and the deadline of its call.
    patient : bool
        Wait for a silent shard as long as no other has answered.
    """
    answers: Answers[R] = Answers()

    def run(one: ShardConnection) -> None:
        limit = ShardDeadline(one, deadline, answers if patient else None)
        try:
            answers.found[one.name] = call(one, limit)
        except AsyncLoaderError as error:
            answers.failed[one.name] = error
            return
        if len(answers.found) == 1:
            wake()

    def wake() -> None:
        """Have those that wait look at their deadlines again."""
        for one in shards:
            one.connection.news.ring()

    if not shards:
        return answers
    for one in shards:
        one.connection.check_fork()  # in a fork there are no threads
    try:
        others = [connections.pool.submit(run, one) for one in shards[1:]]
    except RuntimeError:  # the pool is closed
        raise Closed("this client of a cluster is closed") from None
    try:
        run(shards[0])
        wait(others)
    finally:  # also after Ctrl-C
        answers.over = True
        if not all(other.done() for other in others):
            wake()
    for other in others:
        other.result()
    return answers
