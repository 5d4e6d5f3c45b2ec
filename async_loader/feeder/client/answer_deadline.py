"""When the wait for a call that the feeder waits with ends."""

from __future__ import annotations

from typing import Protocol

from async_loader.lifecycle import Deadline


class Answering(Protocol):
    """A connection, as far as `AnswerDeadline` needs it."""

    @property
    def answers_s(self) -> float:
        """Seconds after which the other side no longer answers, without a sign of life."""


class AnswerDeadline(Deadline):
    """Passes with a call's own time, or later where the feeder lives: its answer is on its way.

    Parameters
    ----------
    connection : Answering
    own_s : float | None
        How long the feeder may wait; 0: it answers at once, and has ``grace_s``.
    grace_s : float
        How long the answer may take on top, as long as the feeder answers.
    """

    __slots__ = ("_connection", "_last")

    def __init__(self, connection: Answering, own_s: float | None, grace_s: float) -> None:
        super().__init__(own_s or (None if own_s is None else grace_s))
        self._last = Deadline(None if own_s is None else own_s + grace_s)
        self._connection = connection

    def left(self) -> float | None:
        """See `Deadline.left`. A sign of life makes it longer."""
        own = super().left()
        return own if own is None or own > 0 else self._late_s()

    def _late_s(self) -> float:
        return min(self._last.left_or_inf(), self._connection.answers_s)

    @property
    def expired(self) -> bool:
        return super().expired and self._late_s() <= 0.0
