"""Sessions: how their clients are reached, and when they were last heard.

# NOTE [whose session]
The number of a session, 63 random bits, lets a message act for it. So only its client learns it:
STATUS, logs and errors name the session's ``id``. With keys the number is not enough: each message,
on each plane, has to come over a connection of the user that sent HELLO.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from async_loader.errors import Malformed
from async_loader.feeder.server.counters import Rates
from async_loader.feeder.server.insert_queue import Producer
from async_loader.feeder.server.peer_connection import PeerConnection
from async_loader.feeder.server.reader_state import ReaderState
from async_loader.feeder.server.shared_memory import CallSlots
from async_loader.feeder.wire import ErrorCode, Hello, Plane, Type

_ROLES = {
    Type.OPEN_WRITER: "actor",
    Type.OPEN_READER: "learner",
    Type.PUBLISH: "learner",
    Type.LATEST: "evaluator",
    Type.STATUS: "watcher",
}


@dataclass(slots=True, eq=False)
class Session:
    """One client, from its HELLO until it has left, is silent for too long, or sends HELLO again.

    One that died is listed until then, unless another needs its place.

    Attributes
    ----------
    number : int
        In all its messages. Secret, see NOTE [whose session].
    id : int
        Its name in STATUS.
    routes : dict
        By plane: the connection that it was last heard on.
    user : str | None
        The owner of its client's key; ``None`` without keys.
    heard, since : float
        On the server's clock.
    writers, readers : dict
        Open ones, by number. `close_writer` and `close_reader` take them out.
    replaced : bool
        Whether its client has begun another session.
    call_slots : CallSlots | None
        Memory that its client has offered for arrays of calls.
    asked : set of Type
        Kinds of its messages.
    rates : Rates
        Of ``rows_in`` and ``batches_out``.
    """

    number: int = field(repr=False)
    id: int
    hello: Hello = field(repr=False)
    since: float
    heard: float
    user: str | None = None
    routes: dict[Plane, PeerConnection] = field(default_factory=dict, repr=False)
    writers: dict[int, Producer] = field(default_factory=dict, repr=False)
    readers: dict[int, ReaderState] = field(default_factory=dict, repr=False)
    replaced: bool = False
    call_slots: CallSlots | None = field(default=None, repr=False)
    asked: set[Type] = field(default_factory=set, repr=False)
    _rows_before: int = field(default=0, repr=False)  # of closed writers: a count never falls
    _batches_before: int = field(default=0, repr=False)
    rates: Rates = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rates = Rates(lambda now: (self.rows_in, self.batches_out), self.since)

    @property
    def connected(self) -> bool:
        """Whether a connection of it is open: the end of a process ends its connections at once, a
        cut network does not.
        """
        return any(not route.ended for route in self.routes.values())

    @property
    def ended(self) -> bool:
        """Whether its connections have ended."""
        return bool(self.routes) and not self.connected

    @property
    def role(self) -> str:
        """What its client is by what it asked for; see `SessionStatus`."""
        return next((role for kind, role in _ROLES.items() if kind in self.asked), "other")

    @property
    def all_taken(self) -> bool:
        """Whether no message waits on its connections."""
        return not any(route.listed for route in self.routes.values())

    @property
    def end(self) -> str:
        """How a session has ended that is over: its client has ``left``, as it said, or with no
        writer and reader open; it ``died`` with some; or it is ``lost``: its connection is open,
        and nothing comes, as of a cut network or a stopped machine.
        """
        has_any = self.writers or self.readers or Type.ROLLOUTS in self.asked
        if Type.END not in self.asked and (self.connected or has_any):
            return "lost" if self.connected else "died"
        return "left"

    @property
    def rows_in(self) -> int:
        """Steps received from its writers, closed ones too."""
        return self._rows_before + sum(writer.rows for writer in self.writers.values())

    @property
    def batches_out(self) -> int:
        """Batches sent to its readers, closed ones too."""
        return self._batches_before + sum(
            reader.sent - reader.refused for reader in self.readers.values()
        )

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of its inserts that wait for a table."""
        return sum(writer.queued_bytes for writer in self.writers.values())

    def close_writer(self, number: int) -> None:
        """Close a writer, if there is one of this number."""
        writer = self.writers.pop(number, None)
        if writer is not None:
            self._rows_before += writer.rows
            writer.insert_queue.leave(writer, self.number)

    def close_reader(self, number: int) -> ReaderState | None:
        """Take a reader out; return it, or ``None`` for an unknown number."""
        reader = self.readers.pop(number, None)
        self._batches_before += 0 if reader is None else reader.sent - reader.refused
        return reader


class Sessions:
    """All sessions of a server.

    Parameters
    ----------
    most : int
        At the same time.
    silence_s : float
        After which a session ends.
    clock : callable
        Monotonic seconds.
    """

    def __init__(self, most: int, silence_s: float, clock: Callable[[], float]) -> None:
        self._most, self._silence_s, self._clock = most, silence_s, clock
        self._by_number: dict[int, Session] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_number.values()))

    def get(self, number: int) -> Session | None:
        """Return a session by number. O(1)."""
        return self._by_number.get(number)

    def known(self, number: int) -> Session:
        """Return a session by number. Raises Malformed, UNKNOWN_SESSION."""
        session = self._by_number.get(number)
        if session is None:
            raise _unknown()
        return session

    def before(self, hello: Hello, user: str | None) -> Session | None:
        """Return the session of the same client and user, which a new one replaces."""
        client = user, hello.client
        return next((one for one in self if (one.user, one.hello.client) == client), None)

    def open(self, hello: Hello, user: str | None) -> Session:
        """Open a session. An earlier one of the same client was dropped.

        Raises
        ------
        Malformed
            LIMIT, if there are too many.
        """
        if len(self) >= self._most:
            raise Malformed(
                f"{len(self)} sessions are open, which is the limit of this server: close clients, "
                "or raise its limits.sessions",
                ErrorCode.LIMIT,
            )
        now = self._clock()
        session = Session(secrets.randbits(63) | 1, next(self._ids), hello, now, now, user)
        self._by_number[session.number] = session
        return session

    def heard(self, number: int, plane: Plane, route: PeerConnection, user: str | None) -> Session:
        """Return the session of a message from a connection of ``user``; note that it was heard.

        Raises
        ------
        Malformed
            UNKNOWN_SESSION; with the same text for the session of another user.
        """
        session = self.known(number)
        if session.user != user:
            raise _unknown()
        session.heard = self._clock()
        session.routes[plane] = route
        return session

    def drop(self, session: Session) -> None:
        """Remove a session."""
        self._by_number.pop(session.number, None)

    def routes(self) -> set[PeerConnection]:
        """Return the connections of all sessions."""
        return {route for session in self for route in session.routes.values()}

    def over(self, place_needed: bool = False) -> list[Session]:
        """Return the sessions to end: silent ones, those whose clients have left, and dead ones if
        another client needs a place that there is not. O(sessions).
        """
        now, dead_too = self._clock(), place_needed and len(self) >= self._most
        return [
            one
            for one in self
            if one.heard + self._silence_s <= now
            or (one.ended and one.all_taken and (dead_too or one.end == "left"))
        ]


def _unknown() -> Malformed:
    text = "this session is not known here: begin again with HELLO"
    return Malformed(text, ErrorCode.UNKNOWN_SESSION)
