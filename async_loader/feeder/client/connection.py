"""The thread that talks to the server. It knows lines and calls, never the client, so that a client that is dropped ends it.

::

    user threads                       IO thread                                    server
    call() ──▶ calls ──────────┐
    append() ──▶ WriterChannel ───┼──▶ _round: session.step, lines.step, calls ──▶ Planes ◀──▶ control, insert, pull
    plan() ──▶ ReaderChannel ─────┘           │
         ▲                                 │ answers by sequence, everything else by number of the line
         └──── News, Bell ◀────────────────┘

NOTE [turns]. A thread that computes in Python keeps the GIL for 5 ms (sys.getswitchinterval) after another one wants it. A
learner takes a hundred small batches in that time: its stock would be over before the IO thread, long awake, could ask for
more. So a learner in a hurry waits until the IO thread has had its turn: some 0.1 ms every half stock, and 1 ms at most.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import socket as hosts
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import async_loader
from async_loader.errors import AsyncLoaderError, Broken, Closed, ConfigError, Malformed, Unsupported
from async_loader.feeder.client.errors import error_as, error_of
from async_loader.feeder.client.forks import forks
from async_loader.feeder.client.notifier import Notifier
from async_loader.feeder.client.session import Action, Session, SessionPhase
from async_loader.feeder.client.sockets import Plane, Sockets
from async_loader.feeder.curve_keys import ClientKeys
from async_loader.feeder.wire import (
    NEWEST,
    OLDEST,
    SINCE_3,
    Control,
    Data,
    End,
    Error,
    ErrorCode,
    Hello,
    Limits,
    Message,
    Ping,
    Type,
    Welcome,
    decode,
    encode,
)  # fmt: skip
from async_loader.lifecycle import AutoResetEvent, Deadline, EventFd, join

Failure = Callable[[], AsyncLoaderError]
"""Makes what to raise; a new one for each thread."""
_LAST_WORDS_S = 1.0
"""After the session's END: the ends of its readers come over another connection, and perhaps later."""
_TURN_S = 0.001
"""See NOTE [turns]."""
_ANSWERS = (Type.APPLIED, Type.SAMPLED, Type.GOT)
"""On the pull plane; what else comes there is of a reader."""
_NEVER_HEARD = "it was never heard of: does it run there? 'async-loader serve' starts one"
_AT_ONCE = 256
"""Messages of one plane that are read before the others have their turn."""


class Channel(Protocol):
    """A writer or a reader, as the IO thread sees it. Called by that thread only."""

    number: int

    def begin(self) -> None:
        """There is a new session: open again."""

    def step(self, now: float, port: Connection) -> float | None:
        """Do what is due, and say when the next thing is."""

    def take(self, message: Message, now: float) -> None:
        """What came for this line."""

    def end(self, failure: Failure) -> None:
        """Nothing comes any more: wake everybody up with this."""


class Call:
    """A request that somebody waits for. ``ready`` says whether it may be sent now; ``make`` makes the body for each sending."""

    __slots__ = ("body", "data", "error", "make", "number", "plane", "ready", "reply", "sequence", "where")

    def __init__(
        self, body: Control | Data, sequence: int, plane: Plane, number: int, data: Any, ready: Any, make: Any, where: str | None
    ) -> None:  # fmt: skip
        self.body, self.sequence, self.plane, self.number, self.data, self.ready = body, sequence, plane, number, data, ready
        self.make, self.where = make, where
        self.reply: Message | None = None
        self.error: AsyncLoaderError | OSError | None = None


class Connection:
    """One client's connection, over all its sessions. Any thread, but for what says otherwise.

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
    """

    def __init__(
        self,
        address: str,
        wait_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        keys: ClientKeys | None = None,
        name: str = "",
    ) -> None:
        self.address, self.clock, self._keys, self._name = address, clock, keys, name
        self.lock = threading.Lock()
        self.news = Notifier(self.lock)
        self.session = Session(clock(), wait_s, random.random)
        self.limits = Limits()
        self.incarnation = b""
        self.servers = 0
        """How many servers there were before this one: ids of rows are those of one server."""
        self._pid, self._generation = os.getpid(), forks.generation
        self.client = secrets.token_bytes(16)
        self._bell, self._rung = EventFd(), False
        self._bell_lock = threading.RLock()  # finalizers ring too
        self._turned = AutoResetEvent()
        self._calls: dict[int, Call] = {}
        self._unsent: dict[int, Call] = {}
        self._lines: dict[int, Channel] = {}
        self._numbers = self._sequences = 0
        self._failure: Failure | None = None
        self._parting: float | None = None
        self._session_due = -math.inf  # when the session has something to say, or earlier: signs of life put it off
        self._stop = False
        self._refusal = ""
        self._followed: tuple[int, Failure] | None = None
        self._planes: Sockets
        self._thread = threading.Thread(target=self._run, name="async-loader-feeder-client", daemon=True)
        self._thread.start()

    # -- user threads ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises Unsupported in a forked process, Closed, Broken, or whatever ended the connection."""
        self.check_fork()
        if self._failure is not None:
            raise self._failure()

    def check_fork(self) -> None:
        """Raises Unsupported in a forked process, where there is no IO thread."""
        if forks.generation != self._generation:
            raise Unsupported(
                f"this client of {self.address} was made in process {self._pid}, this is a fork of it: connect() here too"
            )

    def wake(self) -> None:
        """There is something to do for the IO thread. Does nothing in a fork, where finalizers may call it too."""
        self._wake()

    def _wake(self) -> bool:
        """Whether it was not about to wake up already."""
        if not self._rung and forks.generation == self._generation:
            with self._bell_lock:
                if not self._rung:
                    self._rung = True
                    try:
                        self._bell.ring()
                    except BaseException:  # after Ctrl-C it may not have rung, and stay so
                        self._rung = False
                        self._bell.ring()
                        raise
                    return True
        return False

    def yield_to_io(self) -> None:
        """As `wake`, and let the IO thread have its turn now. See NOTE [turns]."""
        self._turned.pass_through(0.0)
        if self._wake():
            self._turned.pass_through(_TURN_S)

    def add(self, make: Callable[[int], Any]) -> Any:
        """A line, made with a number that no other line of this client had."""
        self.check()  # before the lock: in a fork nobody would ever let go of it
        with self.lock:
            self.check()
            self._numbers += 1
            line = self._lines[self._numbers] = make(self._numbers)
        self.wake()
        return line

    def watch(self, what: Any) -> None:
        """Let a line step when this is readable, too, until its ``fileno()`` is -1. IO thread."""
        self._planes.watch(what)

    def forget(self, line: Channel) -> None:
        """Nothing is to be done for it any more. Also from finalizers, so it takes no lock."""
        self._lines.pop(line.number, None)

    def call(
        self, body: Control | Data, deadline: Deadline, *, plane: Plane = Plane.CONTROL, number: int = 0, data: Any = None,
        ready: Callable[[], bool] | None = None, make: Callable[[], Control | Data] | None = None, where: str | None = None,
    ) -> Message:  # fmt: skip
        """Ask, and wait for the answer; it is asked again after a reconnect.

        Raises
        ------
        Timeout
            The answer may still change something there.
        Closed, Broken, Unsupported, ...
            As `check`, and as `refusals` makes of the server's ERROR.
        """
        return self.answer(self.ask(body, plane=plane, number=number, data=data, ready=ready, make=make, where=where), deadline)

    def ask(
        self, body: Control | Data, *, plane: Plane = Plane.CONTROL, number: int = 0, data: Any = None,
        ready: Callable[[], bool] | None = None, make: Callable[[], Control | Data] | None = None, where: str | None = None,
    ) -> Call:  # fmt: skip
        """As `call`, without waiting: either `answer` or `forget_calls` has to follow.

        Requests are sent in their order. A call that Ctrl-C interrupts leaves no request behind,
        or one that is forgotten with its answer.
        """
        self.check()
        with self.lock:
            self._sequences += 1
            call = Call(body, self._sequences, plane, number, data, ready, make, where)
        try:
            with self.lock:
                self._calls[call.sequence] = self._unsent[call.sequence] = call
            self.wake()
        except BaseException:
            self.forget_calls([call])
            raise
        return call

    def forget_calls(self, calls: Iterable[Call]) -> None:
        """Nobody waits for these any more."""
        with self.lock:
            for call in calls:
                self._calls.pop(call.sequence, None)
                self._unsent.pop(call.sequence, None)

    def answer(self, call: Call, deadline: Deadline) -> Message:
        """What came of `ask`. Raises as `call`."""
        try:
            self.news.until(lambda: self._answered(call), deadline, lambda: self.no_answer(call.body.TYPE.name))
        finally:
            self.forget_calls([call])
        if call.error is not None:
            raise call.error
        assert call.reply is not None
        return call.reply

    def no_answer(self, what: str) -> str:
        """In words, for a Timeout."""
        return f"the feeder at {self.address} did not answer {what} in time ({self.state()}): the call may be made again"

    def state(self) -> str:
        """Where the connection stands, in words."""
        heard = self.session.heard_at
        if heard is None:
            return f"it {self._refusal}" if self._refusal else _NEVER_HEARD
        return f"{self.session.phase.value}, last heard {self.clock() - heard:.1f} s ago"

    def wait_open(self, deadline: Deadline) -> None:
        """Until there is a session.

        Raises
        ------
        Timeout, Unsupported, ConfigError, Broken
        """
        self.news.until(self._greeted, deadline, lambda: self.no_answer("HELLO"))

    def follow(self, fd: int, failure: Failure) -> None:
        """End like this when the descriptor is readable, which belongs to the connection from here on: a pidfd of the server."""
        with self.lock:
            if self._failure is not None:
                os.close(fd)
                return
            self._followed = fd, failure
        self.wake()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the IO thread; whether it has ended. Twice does no harm; in a fork it does nothing."""
        if forks.generation != self._generation:
            return True
        self._stop = True
        self.wake()
        return join(self._thread, timeout_s)

    def _answered(self, call: Call) -> bool:
        if call.reply is None and call.error is None and self._failure is not None:
            call.error = self._failure()
        return call.reply is not None or call.error is not None

    def _greeted(self) -> bool:
        if self._failure is not None:
            raise self._failure()
        return self.session.opened > 0

    # -- the IO thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._planes = Sockets(self.address, self._bell.fileno(), self._keys)
            while not self._stop and self._failure is None:
                self._round()
        except AsyncLoaderError as error:
            kind, text = type(error), str(error)
            self._fail(lambda: kind(text))
        except Exception as error:
            fault = error

            def failure() -> AsyncLoaderError:
                broken = Broken(f"the client of {self.address} failed inside: {fault!r}")
                broken.__cause__ = fault
                return broken

            self._fail(failure)
        finally:
            if hasattr(self, "_planes"):
                self._planes.close()
            with self._bell_lock:
                self._rung = True  # so that nobody rings it any more
                self._bell.close()
            self._fail(lambda: Closed(f"this client of {self.address} is closed"))
            if self._followed is not None:
                os.close(self._followed[0])

    def _fail(self, failure: Failure) -> None:
        """The first reason counts, until it is closed."""
        with self.lock:
            self._failure = self._failure or failure
        for line in list(self._lines.values()):
            line.end(self._failure)
        self.news.ring()

    def _round(self) -> None:
        now = self.clock()
        if now >= self._session_due:
            self._step_session(now)
        due = self._session_due if self._parting is None else min(self._session_due, self._parting)
        for line in list(self._lines.values()):
            lines_due = line.step(now, self)
            if lines_due is not None and lines_due < due:
                due = lines_due
        self._turned.open()
        if self._unsent and self.is_open:
            self._send_calls()
        followed = self._followed
        if followed is not None:
            self._planes.follow(followed[0])
        over = self._planes.wait(None if due == math.inf else max(0.0, due - self.clock()))
        if self._planes.rang:
            self._bell.clear()
            self._rung = False  # before looking: what comes from here on rings again
        cut = self._planes.cut()  # before reading: what came before the end of a connection is read then
        for plane in self._planes.ready():
            for _ in range(_AT_ONCE):
                frames = self._planes.receive(plane)
                if frames is None:
                    break
                self._read(plane, frames)
        if cut and self.session.phase in (SessionPhase.OPEN, SessionPhase.CONNECTING):  # see NOTE [cut] in planes
            if self._parting is None or Plane.PULL in cut:
                self._leave()
        elif self._parting is not None and self.clock() >= self._parting:
            self._leave()
        if self._planes.refusal is not None:
            (self._refusal, for_good), self._planes.refusal = self._planes.refusal, None
            if for_good:
                raise ConfigError(f"the feeder at {self.address} {self._refusal}")
        if over and followed is not None:  # what it had said before was read
            raise followed[1]()

    def _step_session(self, now: float) -> None:
        while (act := self.session.step(now)) is not None:
            self._act(act)
        due = self.session.due()
        self._session_due = math.inf if due is None else due

    def _act(self, act: Action) -> None:
        if act is Action.CONNECT:
            self._planes.open_control()
            hello = Hello(
                client=self.client, pid=self._pid, host=hosts.gethostname()[:256] or "?", oldest=OLDEST, newest=NEWEST,
                user_agent=f"{self._name} async_loader/{async_loader.__version__}".lstrip(),
            )  # fmt: skip
            self._planes.send(Plane.CONTROL, encode(Message(hello, version=OLDEST)))
        elif act is Action.LEAVE:
            self._planes.leave()
        elif act is Action.PING:
            self.send(Plane.CONTROL, Ping(), 0, self.sequence())
        else:
            self._fail(lambda: Broken(f"the feeder at {self.address} was lost: {self.state()}"))

    @property
    def version(self) -> int:
        """What both sides speak. There is a session, or was."""
        return OLDEST if self.session.welcome is None else self.session.welcome.version

    def check_version(self, what: str, needed: int = 3) -> None:
        """Raise Unsupported for what the session's version does not have."""
        if self.version < needed:
            raise self._too_old(what, needed)

    def _too_old(self, what: Type | str, needed: int = 3) -> Unsupported:
        name = what.name if isinstance(what, Type) else what
        text = f"{name} is of version {needed} of the wire, and the feeder at {self.address} speaks version {self.version}"
        return Unsupported(f"{text}: update the feeder")

    def sequence(self) -> int:
        """A number for a request that a line makes. IO thread."""
        with self.lock:
            self._sequences += 1
            return self._sequences

    @property
    def is_open(self) -> bool:
        return self.session.phase is SessionPhase.OPEN

    def send(self, plane: Plane, body: Control | Data, number: int, sequence: int, data: Any = None) -> None:
        """In order, as soon as it can be. IO thread, while there is a session."""
        self.session.sent(self.clock())
        message = Message(body, self.session.number, sequence, number, version=self.version, data=data)
        self._planes.send(plane, encode(message))

    def send_insert(self, body: Data, number: int, sequence: int, schema: int, flags: int) -> bool:
        """Whether it could be sent. IO thread, while there is a session."""
        frames = encode(Message(body, self.session.number, sequence, number, schema, flags, self.version))
        if not self._planes.send_now(Plane.INSERT, frames):
            return False
        self.session.sent(self.clock())
        return True

    def _send_calls(self) -> None:
        for call in list(self._unsent.values()):
            try:
                if call.ready is not None and not call.ready():
                    continue
                self._unsent.pop(call.sequence, None)
                if call.body.TYPE in SINCE_3 and self.version < 3:
                    raise self._too_old(call.body.TYPE)
                body = call.body if call.make is None else call.make()
                self.send(call.plane, body, call.number, call.sequence, call.data)
            except AsyncLoaderError as error:  # what a peer would refuse; what its reader failed with
                self.forget_calls([call])
                call.error = error
                self.news.ring()

    # -- what comes ------------------------------------------------------------------------------------------------------

    def _read(self, plane: Plane, frames: list[Any]) -> None:
        try:
            message = decode(frames, self.limits)
        except Malformed as error:
            if plane is Plane.CONTROL and self.session.phase is SessionPhase.CONNECTING:
                raise Unsupported(f"what answers at {self.address} is no feeder of this version: {error}") from None
            return  # a peer that sends what cannot be read says nothing: its silence ends the session
        if message.type is Type.WELCOME:
            self._welcomed(message)
        elif self.session.phase is SessionPhase.CONNECTING and isinstance(message.body, Error):
            self._refused(message.body)
        elif self.session.phase is SessionPhase.OPEN and message.session == self.session.number:
            self.session.heard(self.clock())
            self._dispatch(plane, message)

    def _welcomed(self, message: Message) -> None:
        welcome = message.body
        assert isinstance(welcome, Welcome)
        if not self.session.welcomed(self.clock(), message.session, welcome):
            return
        self._session_due = -math.inf
        self.servers += self.incarnation not in (b"", welcome.incarnation)
        self.limits, self.incarnation = welcome.limits, welcome.incarnation
        self._planes.open_data(
            welcome.insert_endpoint, welcome.pull_endpoint, welcome.limits.message_bytes, welcome.heartbeat_s, welcome.silence_s
        )
        for plane in (Plane.INSERT, Plane.PULL):
            self.send(plane, Ping(), 0, self.sequence())  # so that the server knows their routes
        with self.lock:
            self._unsent = dict(self._calls)
        for line in list(self._lines.values()):
            line.begin()
        self.news.ring()

    def _refused(self, error: Error) -> None:
        """A HELLO was. What passes by itself is asked for again."""
        if error.retryable:
            self._lose_session()
        else:
            raise error_of(error, self.address)

    def _dispatch(self, plane: Plane, message: Message) -> None:
        body = message.body
        if isinstance(body, Error) and body.code == ErrorCode.UNKNOWN_SESSION:
            self._leave()
        elif isinstance(body, End) and not message.number:
            self._parting = self.clock() + _LAST_WORDS_S
        elif self._is_answer(plane, message):
            self._answer(self._calls.get(message.sequence), message)
        else:
            line = self._lines.get(message.number)
            if line is not None:
                line.take(message, self.clock())

    def _leave(self) -> None:
        self._parting = None
        self._lose_session()

    def _lose_session(self) -> None:
        self.session.lost(self.clock())
        self._session_due = -math.inf
        self._planes.leave()

    def _is_answer(self, plane: Plane, message: Message) -> bool:
        """Whether the sequence is that of a call: those of INSERTs, BATCHes and TIMEOUTs of a reader are other numbers."""
        body, call = message.body, self._calls.get(message.sequence)
        if call is None or plane is Plane.INSERT:
            return False
        if plane is Plane.CONTROL:
            return True
        if message.number not in (0, call.number):  # what is said of another reader
            return False
        if isinstance(body, Error):
            return body.code != ErrorCode.TIMEOUT or call.body.TYPE is Type.SAMPLE
        return message.type in _ANSWERS

    def _answer(self, call: Call | None, message: Message) -> None:
        body = message.body
        if call is None:
            return  # it was given up meanwhile
        if isinstance(body, Error):
            if body.code == ErrorCode.UNKNOWN_READER and (line := self._lines.get(call.number)) is not None:
                line.begin()
                self._unsent[call.sequence] = call
                return
            needed = getattr(call.body, "batch_size", 0)
            call.error = error_of(body, self.address) if call.where is None else error_as(body, call.where, needed)
        else:
            call.reply = message
        self.forget_calls([call])  # also where the thread that asked was interrupted, and does not
        self.news.ring()
