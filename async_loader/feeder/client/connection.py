"""What user threads ask of a client's IO thread: channels, calls, and how the connection stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from async_loader.errors import Unsupported
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.channel import Failure
from async_loader.feeder.client.io_thread import IoThread
from async_loader.feeder.client.notifier import forks
from async_loader.feeder.reach import HINT
from async_loader.feeder.wire import Message
from async_loader.lifecycle import Deadline, join

C = TypeVar("C")
_SILENT_BEATS = 3
"""Heartbeats without a sign of life: a call waits no longer than its own time, and a shard's rows
are left out of batches."""


class Connection(IoThread):
    """One client's connection, over all its sessions. Any thread.

    Parameters and attributes are those of `IoThread`.
    """

    def check(self) -> None:
        """Raise Unsupported in a forked process, Closed, Broken, or what ended the connection."""
        self.check_fork()
        if self._failure is not None:
            raise self._failure()

    def check_fork(self) -> None:
        """Raise Unsupported in a forked process, where there is no IO thread."""
        if forks.generation != self._generation:
            text = f"this client of {self.address} was made in process {self._pid}"
            raise Unsupported(f"{text}, this is a fork of it: connect() here too")

    @property
    def answers_s(self) -> float:
        """Seconds after which the server counts as silent, without another sign of life."""
        session = self.session
        if not self.is_open or session.heard_at is None:
            return 0.0
        until = session.heard_at + _SILENT_BEATS * max(1.0, session.heartbeat_s)
        return max(0.0, until - self.clock())

    def add(self, make: Callable[[int], Any]) -> Any:
        """Add a channel, made with a number that no other channel of this client had."""
        self.check()  # before the lock: in a fork its holder may not exist
        with self._calls.lock:
            self.check()
            self._numbers += 1
            channel = self._channels[self._numbers] = make(self._numbers)
        self.wake()
        return channel

    def channels(self, kind: type[C]) -> list[C]:
        """Return the writers or the readers that are not over."""
        return [one for one in tuple(self._channels.values()) if isinstance(one, kind)]

    def call(self, call: Call, deadline: Deadline) -> Message:
        """Send a request and wait for its answer; it is sent again after a reconnect.

        Raises
        ------
        Timeout
            The request may still have an effect there.
        Closed, Broken, Unsupported, ...
            As `check`, and as errors.py makes of the server's ERROR.
        """
        return self.answer(self.ask(call), deadline)

    def ask(self, call: Call) -> Call:
        """As `call`, without waiting: `answer` or `forget_call` has to follow.

        Requests are sent in their order.
        """
        self.check()
        call.sequence = self.sequence()
        self._calls.add(call, self.wake)
        return call

    @property
    def asking(self) -> bool:
        """Whether a thread, perhaps this one, is in the middle of a request."""
        return self._calls.lock.locked()

    def send_first(self, call: Call) -> None:
        """Send a request at once, whose answer is of no interest. In the IO thread."""
        self.send(call.plane, call.body, call.number, self.sequence(), call.data)

    def forget_call(self, call: Call) -> None:
        """Drop a request that no thread waits for."""
        self._calls.forget(call)

    def answer(self, call: Call, deadline: Deadline) -> Message:
        """Wait for the answer to `ask`. Raises as `call`."""
        try:
            self.news.until(
                lambda: self.answered(call), deadline, lambda: self.no_answer(call.body.TYPE.name)
            )
        finally:
            if not call.stays:
                self._calls.forget(call)
        if call.error is not None:
            raise call.error
        assert call.reply is not None
        return call.reply

    def no_answer(self, what: str, absent: str = "") -> str:
        """Return the text of a Timeout. ``absent``: why no feeder was there at the beginning."""
        unseen = absent and not self.session.opened and not self._refusal
        state = f"it {absent}: {HINT}" if unseen else self.state()
        text = f"the feeder at {self.address} did not answer {what} in time ({state})"
        return f"{text}: the call may be made again"

    def wait_open(self, deadline: Deadline, absent: str = "") -> None:
        """Wait for a session. ``absent``: see `no_answer`.

        Raises
        ------
        Timeout, Unsupported, ConfigError, Broken
        """
        self.news.until(self._greeted, deadline, lambda: self.no_answer("HELLO", absent))

    def give_up(self, failure: Failure) -> None:
        """End with this failure."""
        self._failure = self._failure or failure
        self.wake()

    def move(self, address: str) -> None:
        """Go where the server is now, unless it is still where it was."""
        if address != self.place:
            self.place = address
            self.wake()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the IO thread; return whether it has ended.

        Twice does no harm; in a fork it does nothing.
        """
        if forks.generation != self._generation:
            return True
        self._stop = True
        self.wake()
        return join(self._thread, timeout_s)

    def answered(self, call: Call) -> bool:
        """Return whether a call has an answer, or will have none."""
        if call.reply is None and call.error is None and self._failure is not None:
            call.error = self._failure()
        return call.reply is not None or call.error is not None

    def _greeted(self) -> bool:
        if self._failure is not None:
            raise self._failure()
        return self.session.opened > 0
