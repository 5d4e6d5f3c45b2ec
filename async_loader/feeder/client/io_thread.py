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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from async_loader.feeder.client.forks import forks
from async_loader.feeder.client.notifier import Waker
from async_loader.feeder.client.reader_state import OldRows
from async_loader.feeder.client.session import Action, Session, SessionPhase
from async_loader.feeder.client.sockets import Sockets
from async_loader.feeder.curve_keys import ClientKeys
from async_loader.feeder.wire import (
    Control,
    Data,
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
from async_loader.feeder.wire.data import Buffer

if TYPE_CHECKING:
    from _typeshed import HasFileno

_LAST_ANSWERS_S = 0.25  # control is read for so long when another connection has ended
_LAST_WORDS_S = 1.0
"""After the session's END: the ends of its readers come over another connection, perhaps later."""
_AT_ONCE = 256
"""Messages of one plane that are read before the others have their turn."""


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
    servers : int
        Servers before the present one: ids of rows belong to one server.
    wake : callable
        Wakes the IO thread; does nothing in a fork, where finalizers may call it.
    yield_to_io : callable
        See NOTE [turns] in waker.py.
    old_rows : OldRows
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
        self.session = Session(clock(), wait_s, random.random)
        self._phases = self.session.phases
        self.limits = Limits()
        self.incarnation, self.servers, self._numbers = b"", 0, 0
        self._pid, self._generation = os.getpid(), forks.generation
        self.client = client or secrets.token_bytes(16)
        self.old_rows = OldRows(clock)
        self._waker, self._calls = Waker(), Calls()
        self.wake, self.yield_to_io = self._waker.wake, self._waker.yield_to_io
        self.news, self.sequence = self._calls.news, self._calls.sequence
        self._channels: dict[int, Channel] = {}
        self._failure: Failure | None = None
        self._parting: float | None = None  # when the sockets are closed after an END
        self._session_due = -math.inf  # when the session has to step, or earlier
        self._stop, self._refusal = False, ""
        self._followed: tuple[int, Failure] | None = None
        self._sockets: Sockets
        self._thread = threading.Thread(
            target=self._run, name="async-loader-feeder-client", daemon=True
        )
        self._thread.start()

    def watch(self, what: HasFileno) -> None:
        """Step channels when this is readable too, until its ``fileno()`` is -1."""
        self._sockets.watch(what)

    def forget(self, channel: Channel) -> None:
        """Step a channel no more. Any thread, finalizers too: it takes no lock."""
        self._channels.pop(channel.number, None)

    # -- what both sides speak ---------------------------------------------------------------------

    def state(self) -> str:
        """Return the state of the connection in words."""
        return state_of(self.session, self.clock(), self._refusal, self.address)

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._phases.state is SessionPhase.OPEN

    # -- the loop -----------------------------------------------------------------------------

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
            if self._followed is not None:
                os.close(self._followed[0])

    def _fail(self, failure: Failure) -> None:
        """End all channels and calls. The first reason counts, until the client is closed."""
        with self._calls.lock:
            self._failure = self._failure or failure
        for channel in list(self._channels.values()):
            channel.end(self._failure)
        self.news.ring()

    def _round(self) -> None:
        now = self.clock()
        if self._phases.state is not SessionPhase.OPEN and self.place != self.address:
            self._move(now)
        if now >= self._session_due:
            self._step_session(now)
        due = min(self._session_due, self._parting or math.inf)
        for channel in list(self._channels.values()):
            channel_due = guarded(channel, channel.step, now, self)
            if channel_due is not None and channel_due < due:
                due = channel_due
        self._waker.turned()
        if self._calls.unsent and self.is_open:
            self._send_calls()
        followed = self._followed
        if followed is not None:
            self._sockets.follow(followed[0])
        over = self._sockets.wait(None if due == math.inf else max(0.0, due - self.clock()))
        self._waker.clear(self._sockets.rang)
        cut, ended = self._sockets.cut(), self._sockets.ended  # before the last messages are read
        for plane in self._sockets.ready():
            for _ in range(_AT_ONCE):
                frames = self._sockets.receive(plane)
                if frames is None:
                    break
                self._read(plane, frames)
        if cut and self._phases.state in (SessionPhase.OPEN, SessionPhase.CONNECTING):
            if Plane.CONTROL not in ended:  # see NOTE [cut] in sockets.py
                self._parting = min(self._parting or math.inf, self.clock() + _LAST_ANSWERS_S)
            elif self._parting is None or Plane.PULL in ended:
                self._lose_session()
        elif self._parting is not None and self.clock() >= self._parting:
            self._lose_session()
        if self._sockets.refusal is not None:
            (self._refusal, for_good), self._sockets.refusal = self._sockets.refusal, None
            if for_good:
                raise ConfigError(f"the feeder at {self.address} {self._refusal}")
        if over and followed is not None:  # its last messages were read
            raise followed[1]()

    def _step_session(self, now: float) -> None:
        while (action := self.session.step(now)) is not None:
            self._act(action)
        due = self.session.due()
        self._session_due = math.inf if due is None else due

    def _act(self, action: Action) -> None:
        if action is Action.CONNECT:
            self.address = self.place
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
            self._sockets.leave()
            self.news.ring()
        elif action is Action.PING:
            self.send(Plane.CONTROL, Ping(), 0, self.sequence())
        else:
            self._fail(lambda: Broken(f"the feeder at {self.address} was lost: {self.state()}"))

    def send(
        self,
        plane: Plane,
        body: Control | Data,
        number: int,
        sequence: int,
        data: Buffer | None = None,
    ) -> None:
        """Send in order, as soon as possible. IO thread, while there is a session."""
        self.session.sent(self.clock())
        message = Message(body, self.session.number, sequence, number, data=data)
        self._sockets.send(plane, encode(message))

    def send_insert(self, body: Data, number: int, sequence: int, schema: int, flags: int) -> bool:
        """Send now; return False if the socket is full. IO thread, while there is a session."""
        frames = encode(Message(body, self.session.number, sequence, number, schema, flags))
        if not self._sockets.send_now(Plane.INSERT, frames):
            return False
        self.session.sent(self.clock())
        return True

    def _send_calls(self) -> None:
        unsent = self._calls.unsent
        for call in list(unsent.values()):
            try:
                if call.ready is not None and not call.ready():
                    continue
                unsent.pop(call.sequence, None)
                self.send(call.plane, call.body, call.number, call.sequence, call.data)
            except AsyncLoaderError as error:  # a peer would refuse it, or its reader failed
                self._calls.fail(call, error)

    # -- messages ----------------------------------------------------------------------------------

    def _read(self, plane: Plane, frames: list[Any]) -> None:
        connecting = self._phases.state is SessionPhase.CONNECTING
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
        elif self._phases.state is SessionPhase.OPEN and message.session == self.session.number:
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
            self._calls.answer(message, self.address, self._reopen)
        else:
            channel = self._channels.get(message.number)
            if channel is not None:
                guarded(channel, channel.take, message, self.clock())

    def _reopen(self, number: int) -> bool:
        channel = self._channels.get(number)
        if channel is None:
            return False
        channel.begin()
        return True

    def _move(self, now: float) -> None:
        """Connect to the server's new address soon: nothing answers at the old one."""
        self.address = self.place
        self.session.moved(now)
        self._session_due = -math.inf
        self._sockets.leave()

    def _lose_session(self) -> None:
        self._parting = None
        self.session.lost(self.clock())
        self._session_due = -math.inf
        self._sockets.leave()
        self.news.ring()  # for threads that wait only as long as there is a session
