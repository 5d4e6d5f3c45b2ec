"""Requests that user threads wait for, matched with their answers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.errors import error_of
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.wire import Body, Error, ErrorCode, Message, Plane, Type
from async_loader.lifecycle import Deadline


class AnswerDeadline(Deadline):
    """Passes with a call's own time, or later where the feeder lives: its answer is on its way.

    Parameters
    ----------
    connection : Connection
    own_s : float | None
        How long the feeder may wait; 0: it answers at once, and has ``grace_s``.
    grace_s : float
        How long the answer may take on top, as long as the feeder answers.
    """

    def __init__(self, connection: Any, own_s: float | None, grace_s: float) -> None:
        super().__init__(own_s or (None if own_s is None else grace_s))
        self._last = Deadline(None if own_s is None else own_s + grace_s)
        self._connection = connection

    def left(self) -> float | None:
        """See `Deadline.left`. A sign of life makes it longer."""
        own = super().left()
        return own if own is None or own > 0 else self._late_s()

    def _late_s(self) -> float:
        return float(min(self._last.left_or_inf(), self._connection.answers_s))

    @property
    def expired(self) -> bool:
        return super().expired and self._late_s() <= 0.0


_ANSWERS = (Type.APPLIED, Type.GOT, Type.TOTALS_REPLY, Type.ROLLOUTS_REPLY)
"""Answers on the pull plane; all other messages there are for a reader."""


@dataclass(slots=True, eq=False)
class Call:
    """One request.

    Attributes
    ----------
    ready : callable | None
        Is given the call, and returns whether it may be sent now; raises what ends it.
    done : callable
        Called when it is answered.
    due : float
        When it is sent at the latest, on the connection's clock: before, if another one follows.
    stays : bool
        Whether it is made even if its caller waits no longer.
    sequence : int
        Given when the request is queued.
    """

    body: Body
    plane: Plane = Plane.CONTROL
    number: int = 0
    data: Any = None
    ready: Callable[[Call], bool] | None = None
    done: Callable[[], object] = bool
    due: float = 0.0
    stays: bool = False
    sequence: int = 0
    reply: Message | None = None
    error: AsyncLoaderError | OSError | None = None


class Calls:
    """The requests of one client.

    Attributes
    ----------
    lock : Lock
        Under which requests come and go.
    news : Notifier
        Rung when one is answered.
    pending, unsent : dict of int to Call
        By sequence: not answered; not sent in this session.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.news = Notifier(self.lock)
        self.pending: dict[int, Call] = {}
        self.unsent: dict[int, Call] = {}
        self._sequences = itertools.count(1)

    def sequence(self) -> int:
        """Return a number for a request. Without the lock: the IO thread may hold a channel's."""
        return next(self._sequences)

    def add(self, call: Call, wake: Callable[[], object]) -> None:
        """Queue a request."""
        with self.lock:
            self.pending[call.sequence] = self.unsent[call.sequence] = call
        wake()

    def forget(self, call: Call) -> None:
        """Drop a request that no thread waits for."""
        with self.lock:
            self.pending.pop(call.sequence, None)
            self.unsent.pop(call.sequence, None)

    def settle(
        self,
        call: Call,
        reply: Message | None = None,
        error: AsyncLoaderError | OSError | None = None,
    ) -> None:
        """End a request, with its answer or an error."""
        call.reply, call.error, call.ready = reply, error, None
        self.forget(call)
        self.news.ring()
        call.done()

    def send_again(self) -> None:
        """There is a new session: send all that is not answered."""
        with self.lock:
            self.unsent = dict(self.pending)

    def note_end(self, message: Message) -> None:
        """The server has ended: answer what asked it to, whose answer was lost.

        The process that takes its place is not asked.
        """
        with self.lock:
            asked = [
                one
                for one in self.pending.values()
                if one.body.TYPE is Type.DRAIN and one.sequence not in self.unsent
            ]
        for call in asked:
            self.settle(call, message)

    def is_answer(self, plane: Plane, message: Message) -> bool:
        """Return whether the sequence is that of a request.

        Sequences of INSERTs and BATCHes, and of a reader's TIMEOUTs, are other numbers.
        """
        body, call = message.body, self.pending.get(message.sequence)
        if call is None or plane is Plane.INSERT:
            return False
        if plane is Plane.CONTROL:
            return True
        if message.number not in (0, call.number):  # for another reader
            return False
        if isinstance(body, Error):
            return body.code != ErrorCode.TIMEOUT or call.body.TYPE is Type.ROLLOUTS
        return message.type in _ANSWERS

    def answer(self, message: Message, address: str) -> None:
        """Answer a request."""
        body, call = message.body, self.pending.get(message.sequence)
        if call is None:
            return  # it was given up meanwhile
        if isinstance(body, Error):
            self.settle(call, error=error_of(body, address))
        else:
            self.settle(call, message)
