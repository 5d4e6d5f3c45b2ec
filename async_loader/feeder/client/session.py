"""A client's session with its server: when to connect, to send PING, to give up. Arithmetic only.

::

    WAITING ──due──▶ CONNECTING ──WELCOME──▶ OPEN
       ▲  ▲              │ no WELCOME          │ silence, UNKNOWN_SESSION, END
       │  └──────────────┘                     │
       └───────────────────────────────────────┘     WAITING, CONNECTING ──too long lost──▶ ENDED
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from async_loader.feeder.wire import Welcome
from async_loader.lifecycle import StateTable

BACKOFF_S, BACKOFF_MOST_S = 0.1, 5.0
HEARTBEAT_S, SILENCE_S = 1.0, 10.0
"""Until a WELCOME brings the server's."""


class SessionPhase(enum.Enum):
    """Where a session is. `MOVES` holds the legal moves."""

    WAITING = "waiting"
    CONNECTING = "connecting"
    OPEN = "open"
    ENDED = "ended"


_BEFORE = {SessionPhase.WAITING, SessionPhase.CONNECTING, SessionPhase.ENDED}
MOVES = {
    SessionPhase.WAITING: _BEFORE,
    SessionPhase.CONNECTING: {SessionPhase.WAITING, SessionPhase.OPEN, SessionPhase.ENDED},
    SessionPhase.OPEN: {SessionPhase.WAITING},
    SessionPhase.ENDED: set[SessionPhase](),
}


class Action(enum.Enum):
    """What the IO thread has to do now."""

    CONNECT = "connect"
    """Open new sockets and send HELLO."""
    LEAVE = "leave"
    """Close the sockets: the session is over."""
    PING = "ping"
    GIVE_UP = "give up"


class Session:
    """Where a client stands with its server. Belongs to the IO thread; other threads may read.

    Parameters
    ----------
    now : float
        Monotonic seconds, here and everywhere.
    wait_s : float | None
        How long a lost session may stay lost; ``None``: for ever. The first one may take any time.
    jitter : callable
        Returns numbers from 0 to 1, which spread the reconnects of many clients.

    Attributes
    ----------
    phases : StateTable
        Moved by this class alone; hot paths read its ``state``.
    """

    def __init__(self, now: float, wait_s: float | None, jitter: Callable[[], float]) -> None:
        self._wait_s, self._jitter = wait_s, jitter
        self.phases = StateTable(SessionPhase.WAITING, MOVES)
        self.number = 0
        self.welcome: Welcome | None = None
        self.opened = 0
        """Sessions so far."""
        self.heard_at: float | None = None
        self._until = now
        self._lost_at: float | None = None
        self._attempts = 0
        self._sent_at = self._asked_at = now

    @property
    def phase(self) -> SessionPhase:
        """Where the session is."""
        return self.phases.state

    @property
    def heartbeat_s(self) -> float:
        """Seconds after which the client sends PING."""
        return HEARTBEAT_S if self.welcome is None else self.welcome.heartbeat_s

    @property
    def silence_s(self) -> float:
        """Seconds after which a silent server counts as lost."""
        return SILENCE_S if self.welcome is None else self.welcome.silence_s

    def due(self) -> float | None:
        """Return when `step` has to be called next."""
        if self.phase is SessionPhase.ENDED:
            return None
        if self.phase is not SessionPhase.OPEN:
            gives_up_at = self._gives_up_at()
            return self._until if gives_up_at is None else min(self._until, gives_up_at)
        assert self.heard_at is not None
        return min(self._ping_at(), self.heard_at + self.silence_s)

    def step(self, now: float) -> Action | None:
        """Return the next thing to do by now; call again until it is ``None``."""
        if self.phase is SessionPhase.OPEN:
            assert self.heard_at is not None
            if now >= self.heard_at + self.silence_s:
                self.lost(now)
                return Action.LEAVE
            if now >= self._ping_at():
                self._sent_at = self._asked_at = now
                return Action.PING
            return None
        gives_up_at = self._gives_up_at()
        if gives_up_at is not None and now >= gives_up_at and self.phases.to(SessionPhase.ENDED):
            return Action.GIVE_UP
        if self.phase is SessionPhase.ENDED or now < self._until:
            return None
        if self.phase is SessionPhase.CONNECTING:
            self._wait(now)
            return Action.LEAVE
        self.phases.to(SessionPhase.CONNECTING)
        self._until = now + self.silence_s
        return Action.CONNECT

    def sent(self, now: float) -> None:
        """Note that something was sent, on any plane."""
        self._sent_at = now

    def heard(self, now: float) -> None:
        """Note that something was received, on any plane: a sign of life."""
        if self.phases.state is SessionPhase.OPEN:
            self.heard_at = now

    def welcomed(self, now: float, number: int, welcome: Welcome) -> bool:
        """Begin the session. Return False for a WELCOME that answers no HELLO of this attempt."""
        if not self.phases.to(SessionPhase.OPEN):
            return False
        self.number, self.welcome = number, welcome
        self.heard_at = self._sent_at = self._asked_at = now
        self._lost_at = None
        self._attempts = 0
        self.opened += 1
        return True

    def lost(self, now: float) -> None:
        """End the session: the server is silent, forgot it, or refused one.

        Plan the next attempt.
        """
        if self.phase is SessionPhase.OPEN:
            self._lost_at = now
        self._wait(now)

    def moved(self, now: float) -> None:
        """Begin anew with the attempts to connect: the server is at another address."""
        self._attempts = 0
        self._wait(now)

    def _wait(self, now: float) -> None:
        if self.phases.to(SessionPhase.WAITING):
            most = min(BACKOFF_MOST_S, BACKOFF_S * 2**self._attempts)
            self._attempts = min(self._attempts + 1, 16)
            self._until = now + most * (0.5 + 0.5 * self._jitter())

    def _gives_up_at(self) -> float | None:
        if self._wait_s is None or self._lost_at is None:
            return None
        return self._lost_at + self._wait_s

    def _ping_at(self) -> float:
        """A heartbeat after the last message sent; earlier if nothing has come back since."""
        assert self.heard_at is not None
        return min(self._sent_at, max(self.heard_at, self._asked_at)) + self.heartbeat_s
