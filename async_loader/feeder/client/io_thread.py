"""The IO thread of a client: it owns the sockets and talks to the server.

::

    user threads                          IO thread                                   server
    call() ──▶ Calls ─────────────┐
    append() ──▶ WriterChannel ───┼──▶ _round: session, channels, calls ──▶ Sockets ◀──▶ control,
    plan() ──▶ ReaderChannel ─────┘        │                                            insert, pull
         ▲                                 │ answers by sequence, the rest by channel number
         └──── Notifier, EventFd ◀─────────┘

The thread knows channels and calls, never the client: a client that is dropped ends it.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import socket as hosts
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import async_loader
from async_loader.errors import (
    AsyncLoaderError,
    Broken,
    Closed,
    ConfigError,
    Malformed,
    Unsupported,
)
from async_loader.feeder.client.calls import Calls
from async_loader.feeder.client.channel import Channel, Failure, failure_of, guarded
from async_loader.feeder.client.errors import error_of, state_of
from async_loader.feeder.client.notifier import Waker, forks
from async_loader.feeder.client.old_rows import OldRows
from async_loader.feeder.client.reconnecting import Action, Session
from async_loader.feeder.client.sockets import Sockets
from async_loader.feeder.curve_keys import ClientKeys
from async_loader.feeder.wire import (
    Body,
    End,
    Error,
    ErrorCode,
    Hello,
    Limits,
    Message,
    Ping,
    Plane,
    Type,
    Welcome,
    decode,
    encode,
)
from async_loader.feeder.wire.calls import Buffer

_LAST_ANSWERS_S = 0.25  # the others are read for so long when a connection has ended
_LAST_WORDS_S = 1.0
"""After the session's END: the ends of its readers come over another connection, perhaps later."""


class IoThread:
    """The loop of one client, over all its sessions. Started by its constructor.

    Thread rule: the methods belong to the IO thread, unless they say otherwise.

    Parameters
    ----------
    address : str
        The server's control endpoint.
    wait_s : float | None
        How long a lost session may stay lost until everything is Broken; ``None``: for ever.
    clock : callable
        Monotonic seconds.
    keys : ClientKeys, optional
        For a server that has keys.
    name : str
        Of the client, for the server's status.
    client : bytes, optional
        16 bytes that identify it; drawn by default. A client of several servers has one for all.

    Attributes
    ----------
    place : str
        The endpoint of the next attempt to connect: see `Connection.move`.
    fate : callable
        Returns the error of a server that will not come back, or None. Asked while it is lost.
    old_rows : OldRows
    counts : Counter
        What was sent, lost and received so far, by the names of `ClientStats`.
    lost : Counter
        Acknowledged rows that were lost, by table and number of the server that had them.
    servers : int
        Servers before the present one: ids of rows belong to one server.
    drained : bool
        The server has ended at this client's wish.
    wake : callable
        Wakes the IO thread; does nothing in a fork, where finalizers may call it.
    yield_to_io : callable
        See `Waker.yield_to_io`.
    """

    def __init__(
        self,
        address: str,
        wait_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        keys: ClientKeys | None = None,
        name: str = "",
        client: bytes | None = None,
    ) -> None:
        self.place = self.address = address
        self.clock, self._keys, self._name = clock, keys, name
        self.fate: Callable[[], AsyncLoaderError | None] = lambda: None
        self.session = Session(clock(), wait_s, random.random)
        self.limits, self.old_rows = Limits(), OldRows(clock)
        self.incarnation, self.servers, self._numbers = b"", 0, 0
        self._pid, self._generation = os.getpid(), forks.generation
        self.client = client or secrets.token_bytes(16)
        self._waker, self._calls = Waker(), Calls()
        self.wake, self.yield_to_io = self._waker.wake, self._waker.yield_to_io
        self.news, self.sequence = self._calls.news, self._calls.sequence
        self._channels: dict[int, Channel] = {}
        self.counts: Counter[str] = Counter()
        self.lost: Counter[tuple[str, int]] = Counter()
        self._counting = threading.Lock()
        self._failure: Failure | None = None
        self._parting = math.inf  # when the sockets are closed after an END, or a cut
        self._session_due = -math.inf  # when the session has to step, or earlier
        self._stop, self._refusal, self.drained = False, "", False
        self._sockets: Sockets
        self._thread = threading.Thread(
            target=self._run, name="async-loader-feeder-client", daemon=True
        )
        self._thread.start()

    def forget(self, channel: Channel) -> None:
        """Step a channel no more. Any thread, finalizers too: it takes no lock."""
        self._channels.pop(channel.number, None)

    def count(self, **more: int) -> None:
        """Add to counts. Any thread."""
        with self._counting:
            for name, number in more.items():
                self.counts[name] += number

    # -- what both sides speak ---------------------------------------------------------------------

    def state(self) -> str:
        """Return the state of the connection in words."""
        return state_of(self.session, self.clock(), self._refusal)

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self.session.is_open

    @property
    def memory_endpoint(self) -> str | None:
        """Where the feeder takes and gives memory; ``None``: nowhere."""
        welcome = self.session.welcome
        return None if welcome is None else welcome.memory_endpoint

    # -- the loop ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._sockets = Sockets(self._waker.fileno(), self._keys)
            while not self._stop and self._failure is None:
                self._round()
        except AsyncLoaderError as error:
            self._fail(failure_of(error))
        except Exception as error:
            fault = error

            def failure() -> AsyncLoaderError:
                broken = Broken(f"the client of {self.address} failed inside: {fault!r}")
                broken.__cause__ = fault
                return broken

            self._fail(failure)
        finally:
            if hasattr(self, "_sockets"):
                if self.is_open:  # its place there is free at once
                    self._sockets.linger()
                    self.send(Plane.CONTROL, End(reason="closed", count=0), 0, self.sequence())
                self._sockets.close()
            self._waker.close()
            self._fail(lambda: Closed(f"this client of {self.address} is closed"))

    def _fail(self, failure: Failure) -> None:
        """End all channels and calls. The first reason counts, until the client is closed."""
        with self._calls.lock:
            self._failure = self._failure or failure
        for channel in list(self._channels.values()):
            channel.end(self._failure)
        for call in list(self._calls.pending.values()):
            call.done()  # its error is the failure
        self.news.ring()

    def _round(self) -> None:
        now, session, sockets = self.clock(), self.session, self._sockets
        if not self.is_open:
            if (error := self.fate()) is not None:
                raise error
            if self.place != self.address:
                self.address = self.place
                self._lose_session(moved=True)
        if now >= self._session_due:
            while (action := session.step(now)) is not None:
                self._act(action)
            self._session_due = session.due()
        due = min(self._session_due, self._parting)
        for channel in list(self._channels.values()):
            channel_due = guarded(channel, channel.step, now)
            if channel_due is not None and channel_due < due:
                due = channel_due
        self._waker.turned()
        if self._calls.unsent and self.is_open:
            due = min(due, self._send_calls())
        sockets.wait(due - self.clock())
        self._waker.clear(sockets.rang)
        if sockets.cut():  # see NOTE [cut] in sockets.py
            self._parting = min(self._parting, self.clock() + _LAST_ANSWERS_S)
        for plane, frames in sockets.messages():
            self._read(plane, frames)
        if self.clock() >= self._parting:
            self._lose_session()
        if sockets.refusal is not None:
            (self._refusal, for_good), sockets.refusal = sockets.refusal, None
            if for_good:
                raise ConfigError(f"the feeder at {self.address} {self._refusal}")

    def _act(self, action: Action) -> None:
        if action is Action.CONNECT:
            self._sockets.open_control(self.address)
            agent = f"{self._name} async_loader/{async_loader.__version__}".lstrip()
            hello = Hello(
                client=self.client,
                pid=self._pid,
                host=hosts.gethostname()[:256] or "?",
                user_agent=agent,
            )
            self._sockets.send(Plane.CONTROL, encode(Message(hello)))
        elif action is Action.LEAVE:
            self._leave()
        elif action is Action.PING:
            self.send(Plane.CONTROL, Ping(), 0, self.sequence())
        else:
            self._fail(lambda: Broken(f"the feeder at {self.address} was lost: {self.state()}"))

    def send(
        self,
        plane: Plane,
        body: Body,
        number: int,
        sequence: int,
        data: Buffer | None = None,
        schema: int = 0,
        flags: int = 0,
    ) -> None:
        """Send in order, as soon as possible. IO thread, while there is a session."""
        self.session.sent(self.clock())
        message = Message(body, self.session.number, sequence, number, schema, flags, data)
        self._sockets.send(plane, encode(message))

    def _send_calls(self) -> float:
        """Send what may be sent; return when the others are due."""
        unsent, now, due = self._calls.unsent, self.clock(), math.inf
        calls = list(unsent.values())
        while calls and calls[-1].due > now:
            due = min(due, calls.pop().due)
        for call in calls:
            try:
                if call.ready is not None and not call.ready(call):
                    continue
                unsent.pop(call.sequence, None)
                self.send(call.plane, call.body, call.number, call.sequence, call.data)
            except AsyncLoaderError as error:  # a peer would refuse it, or its reader failed
                self._calls.settle(call, error=error)
        return due

    # -- messages ----------------------------------------------------------------------------------

    def _read(self, plane: Plane, frames: list[Any]) -> None:
        connecting = not self.is_open
        try:
            message = decode(frames, self.limits)
        except Malformed as error:
            if plane is Plane.CONTROL and connecting:
                text = f"what answers at {self.address} is not a feeder of this version"
                raise Unsupported(f"{text}: {error}") from None
            return  # a peer whose messages cannot be read counts as silent
        if message.type is Type.WELCOME:
            self._welcomed(message)
        elif connecting and isinstance(message.body, Error):
            self._refused(message.body)
        elif self.is_open and message.session == self.session.number:
            self.session.heard(self.clock())
            self._dispatch(plane, message)

    def _welcomed(self, message: Message) -> None:
        welcome = message.body
        assert isinstance(welcome, Welcome)
        if not self.session.welcomed(self.clock(), message.session, welcome):
            return
        self._session_due, self._refusal = -math.inf, ""
        if self.incarnation not in (b"", welcome.incarnation):
            self.servers += 1
            self._calls.note_end(message)
        self.limits, self.incarnation = welcome.limits, welcome.incarnation
        self._sockets.open_data(welcome)
        for plane in (Plane.INSERT, Plane.PULL):
            self.send(plane, Ping(), 0, self.sequence())  # so that the server knows their routes
        self._calls.send_again()
        for channel in list(self._channels.values()):
            guarded(channel, channel.begin)
        self.news.ring()

    def _refused(self, error: Error) -> None:
        """Try again after a temporary refusal of HELLO; raise a permanent one."""
        if error.retryable:
            self._refusal = f"says: {error.text}"
            self._lose_session()
        else:
            raise error_of(error, self.address)

    def _dispatch(self, plane: Plane, message: Message) -> None:
        body = message.body
        if isinstance(body, Error) and body.code == ErrorCode.UNKNOWN_SESSION:
            self._lose_session()
        elif isinstance(body, End) and not message.number:
            self._parting = self.clock() + _LAST_WORDS_S
            self._calls.note_end(message)
        elif self._calls.is_answer(plane, message):
            self._calls.answer(message, self.address)
        else:
            channel = self._channels.get(message.number)
            if channel is not None:
                guarded(channel, channel.take, message, self.clock())

    def _lose_session(self, moved: bool = False) -> None:
        self.session.lost(self.clock(), moved)
        self._session_due = -math.inf
        self._leave()

    def _leave(self) -> None:
        self._parting = math.inf
        self._sockets.leave()
        self.news.ring()  # for threads that wait only as long as there is a session
