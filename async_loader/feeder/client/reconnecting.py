"""A client's session with its server: when to connect, to send PING, to give up. Arithmetic only.

::

    lost ──due──▶ CONNECT ──WELCOME──▶ open ──silence, UNKNOWN_SESSION, END, cut──▶ lost
                    └── no WELCOME: again                        too long lost ──▶ GIVE_UP
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from async_loader.feeder.wire import Welcome

BACKOFF_S, BACKOFF_MOST_S = 0.1, 5.0
HEARTBEAT_S, SILENCE_S = 1.0, 10.0
"""Until a WELCOME brings the server's."""


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
    is_open : bool
        Whether there is a session.
    opened : int
        Sessions so far.
    heartbeat_s, silence_s : float
        Seconds after which the client sends PING, and a silent server counts as lost.
    """

    def __init__(self, now: float, wait_s: float | None, jitter: Callable[[], float]) -> None:
        self._wait_s, self._jitter = math.inf if wait_s is None else wait_s, jitter
        self.is_open = False
        self.number = self.opened = self._attempts = 0
        self.welcome: Welcome | None = None
        self.heartbeat_s, self.silence_s = HEARTBEAT_S, SILENCE_S
        self.heard_at: float | None = None
        self._until, self._gives_up_at = now, math.inf
        self._sent_at = self._asked_at = now

    def due(self) -> float:
        """Return when `step` has to be called next."""
        if not self.is_open:
            return min(self._until, self._gives_up_at)
        assert self.heard_at is not None
        # a heartbeat after the last message sent; earlier if nothing has come back since
        silent_since = min(self._sent_at, max(self.heard_at, self._asked_at))
        return min(silent_since + self.heartbeat_s, self.heard_at + self.silence_s)

    def step(self, now: float) -> Action | None:
        """Return the next thing to do by now; call again until it is ``None``."""
        if now < self.due():
            return None
        if not self.is_open:
            if now >= self._gives_up_at:
                self._gives_up_at = math.inf
                return Action.GIVE_UP
            self._until = now + self.silence_s
            return Action.CONNECT
        assert self.heard_at is not None
        if now >= self.heard_at + self.silence_s:
            self.lost(now)
            return Action.LEAVE
        self._sent_at = self._asked_at = now
        return Action.PING

    def sent(self, now: float) -> None:
        """Note that something was sent, on any plane."""
        self._sent_at = now

    def heard(self, now: float) -> None:
        """Note that something was received, on any plane: a sign of life."""
        self.heard_at = now

    def welcomed(self, now: float, number: int, welcome: Welcome) -> bool:
        """Begin the session. Return False for a second WELCOME."""
        if self.is_open:
            return False
        self.is_open, self.number, self.welcome = True, number, welcome
        self.heartbeat_s, self.silence_s = welcome.heartbeat_s, welcome.silence_s
        self.heard_at = self._sent_at = self._asked_at = now
        self._gives_up_at, self._attempts = math.inf, 0
        self.opened += 1
        return True

    def lost(self, now: float, moved: bool = False) -> None:
        """End the session: the server is silent, forgot it, refused one, or has ``moved``.

        Plan the next attempt.
        """
        if self.is_open:
            self._gives_up_at = now + self._wait_s
        attempts = 0 if moved else self._attempts
        most = min(BACKOFF_MOST_S, BACKOFF_S * 2**attempts)
        self._attempts = min(attempts + 1, 16)
        self._until = now + most * (0.5 + 0.5 * self._jitter())
        self.is_open = False
