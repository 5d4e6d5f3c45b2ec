"""A session's life as a table of states: when to connect, to knock, to give up. Has no socket and no clock.

::

    WAITING ──due──▶ CONNECTING ──WELCOME──▶ OPEN
       ▲  ▲              │ no WELCOME          │ silence, UNKNOWN_SESSION, END
       │  └──────────────┘                     │
       └───────────────────────────────────────┘          any ──too long without a session──▶ ENDED
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from async_loader.feeder.wire import Welcome

BACKOFF_S, BACKOFF_MOST_S = 0.1, 5.0
SILENCE_S = 10.0
"""Until a WELCOME says otherwise."""


class SessionPhase(enum.Enum):
    WAITING = "waiting"
    CONNECTING = "connecting"
    OPEN = "open"
    ENDED = "ended"


class Action(enum.Enum):
    """What is to be done now."""

    CONNECT = "connect"
    """With new sockets; and say HELLO."""
    LEAVE = "leave"
    """Close the sockets: the session is no more."""
    PING = "ping"
    GIVE_UP = "give up"


class Session:
    """Where a client stands with its server.

    Parameters
    ----------
    now : float
        Seconds on a monotonic clock, here and everywhere.
    wait_s : float | None
        How long a lost session may stay lost; ``None``: for ever. The first one may take as long as it likes.
    jitter : callable
        Numbers from 0 to 1, so that a thousand clients do not come back in the same moment.
    """

    def __init__(self, now: float, wait_s: float | None, jitter: Callable[[], float]) -> None:
        self._wait_s, self._jitter = wait_s, jitter
        self.phase = SessionPhase.WAITING
        self.number = 0
        self.welcome: Welcome | None = None
        self.opened = 0
        """How many sessions there were."""
        self.heard_at: float | None = None
        self._until = now
        self._lost_at: float | None = None
        self._attempts = 0
        self._sent_at = self._asked_at = now

    @property
    def heartbeat_s(self) -> float:
        return self.welcome.heartbeat_s if self.welcome is not None else 1.0

    @property
    def silence_s(self) -> float:
        return self.welcome.silence_s if self.welcome is not None else SILENCE_S

    def due(self) -> float | None:
        """When `step` has something to say."""
        if self.phase is SessionPhase.ENDED:
            return None
        if self.phase is not SessionPhase.OPEN:
            gives_up_at = self._gives_up_at()
            return self._until if gives_up_at is None else min(self._until, gives_up_at)
        assert self.heard_at is not None
        return min(self._ping_at(), self.heard_at + self.silence_s)

    def step(self, now: float) -> Action | None:
        """What is to be done by now; ask until it is nothing."""
        if self.phase is SessionPhase.OPEN:
            assert self.heard_at is not None
            if now >= self.heard_at + self.silence_s:
                self.lost(now)
                return Action.LEAVE
            if now >= self._ping_at():
                self._sent_at = self._asked_at = now
                return Action.PING
            return None
        if self.phase is SessionPhase.ENDED:
            return None
        gives_up_at = self._gives_up_at()
        if gives_up_at is not None and now >= gives_up_at:
            self.phase = SessionPhase.ENDED
            return Action.GIVE_UP
        if now < self._until:
            return None
        if self.phase is SessionPhase.CONNECTING:
            self._wait(now)
            return Action.LEAVE
        self.phase, self._until = SessionPhase.CONNECTING, now + self.silence_s
        return Action.CONNECT

    def sent(self, now: float) -> None:
        """Something was sent, on any plane."""
        self._sent_at = now

    def heard(self, now: float) -> None:
        """Something came, on any plane: a sign of life."""
        if self.phase is SessionPhase.OPEN:
            self.heard_at = now

    def welcomed(self, now: float, number: int, welcome: Welcome) -> bool:
        """Whether that is the WELCOME that was waited for."""
        if self.phase is not SessionPhase.CONNECTING:
            return False
        self.phase, self.number, self.welcome = SessionPhase.OPEN, number, welcome
        self.heard_at = self._sent_at = self._asked_at = now
        self._lost_at = None
        self._attempts = 0
        self.opened += 1
        return True

    def lost(self, now: float) -> None:
        """The server is silent, has forgotten the session, or refuses one for now. The next attempt is made soon."""
        if self.phase is SessionPhase.OPEN:
            self._lost_at = now
        self._wait(now)

    def _wait(self, now: float) -> None:
        most = min(BACKOFF_MOST_S, BACKOFF_S * 2**self._attempts)
        self._attempts = min(self._attempts + 1, 16)
        self.phase, self._until = SessionPhase.WAITING, now + most * (0.5 + 0.5 * self._jitter())

    def _gives_up_at(self) -> float | None:
        return None if self._wait_s is None or self._lost_at is None else self._lost_at + self._wait_s

    def _ping_at(self) -> float:
        """Nothing was said for a heartbeat; or much was, and nothing came back."""
        assert self.heard_at is not None
        return min(self._sent_at, max(self.heard_at, self._asked_at)) + self.heartbeat_s
