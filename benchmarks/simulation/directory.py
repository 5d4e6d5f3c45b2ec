"""The directory's load: clients that wait for a newer map, reports of losses, answers.

# NOTE [what is modelled]
As `scale/directory_actor.py`, `scale/ray_directory.py` and `scale/connections.py` have it. Each
client asks for a map that is newer than its own, and the directory holds the question for up to 60
s; then, or when there is news, it answers with the whole map, and the client asks again. At most
`CALLS` calls are inside the actor at once, those that wait for news among them; Ray lets the others
wait in order, reports too (tried on Ray 2.60: 30 calls and a report, 10 at once). A client that
sees a shard vanish reports it, and reports it again after each attempt of 10 s, unless its map
shows the loss by then. A killed process is told by its shard's actor as well; a lost host is not,
so that the directory asks its shards, with a limit of 2 s, at the first report.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from async_loader.feeder.client.session import HEARTBEAT_S, SILENCE_S
from async_loader.scale.connections import _MAP_S as POLL_S
from async_loader.scale.directory_actor import _VERIFY_S as VERIFY_S
from async_loader.scale.operations import _CALLS as CALLS
from async_loader.scale.ray_directory import _ANSWER_S as ANSWER_S
from async_loader.scale.shard_supervisor import FIRST_PAUSE_S
from benchmarks.simulation.costs import Assumed, Costs
from benchmarks.simulation.events import EventQueue
from benchmarks.simulation.fifo_server import FifoServer
from benchmarks.simulation.link import Link

SLOW_S = 5.0
"""A directory is saturated when a client has the news this much later."""
BEGIN_S, WATCH_S = 5.0, 55.0
_TRAIN_S = 0.05
"""Reports that come within this time are put together, as if they came at its end."""
_TOGETHER = 200
"""Reports that are one job: nothing that comes later is served between them."""

Scenario = Callable[["DirectoryModel"], None]


@dataclass
class Load:
    """What a run has shown.

    Attributes
    ----------
    shards, clients : int
    utilisation : float
        The share of the watched time that the directory's thread was busy.
    longest_wait_s : float
        Of a call for the directory's thread.
    news_s : float
        The longest time from a change of the map to a client that has it.
    reports, changes : int
    late : int
        Questions whose answer came after the client had given up.
    took_s : float
        Of a rolling restart, for each shard; else 0.
    """

    shards: int
    clients: int
    utilisation: float = 0.0
    longest_wait_s: float = 0.0
    news_s: float = 0.0
    reports: int = 0
    changes: int = 0
    late: int = 0
    took_s: float = 0.0

    @property
    def saturated(self) -> bool:
        """Whether the thread is never idle, news is too slow, or questions are given up."""
        return self.utilisation >= 0.99 or self.news_s > SLOW_S or self.late > 0


@dataclass
class _Calls:
    """The calls inside the actor, at most `CALLS`, and those that wait for their turn."""

    most: int
    inside: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)

    def enter(self, begin: Callable[[], None]) -> None:
        if self.inside < self.most:
            self.inside += 1
            begin()
        else:
            self.waiting.append(begin)

    def leave(self) -> None:
        if self.waiting:
            self.waiting.popleft()()
        else:
            self.inside -= 1


class DirectoryModel:
    """A directory, its shards and clients. See NOTE [what is modelled].

    Parameters
    ----------
    costs : Costs
    assumed : Assumed
    shards, clients : int
    seed : int
    calls : int
        The most calls inside the actor.
    """

    def __init__(
        self,
        costs: Costs,
        assumed: Assumed,
        shards: int,
        clients: int,
        seed: int = 0,
        calls: int = CALLS,
    ) -> None:
        self.costs, self.assumed = costs, assumed
        self.load = Load(shards, clients)
        self.rng = np.random.default_rng(seed)
        self.events = EventQueue()
        self.thread = FifoServer(self.events)
        self._link = Link(self.events, assumed.latency_s, assumed.bytes_per_s)
        self._calls = _Calls(calls)
        self._answer_s = costs.answer_s(shards)
        self._size = round(costs.map_shard_bytes * shards)
        self._changed_at = [0.0]  # by version
        self._losses: list[int] = []  # versions that began to show one
        self._seen = [0] * clients
        self._asked_at = [0.0] * clients
        self._holds = [0] * clients  # counts the holds of a client: an old timer is told by it
        self._held: dict[int, None] = {}
        for client, left in enumerate(self.rng.uniform(0.0, POLL_S, clients)):
            self._asked_at[client] = -float(POLL_S - left)
            self._calls.enter(partial(self._hold, client, float(left)))

    @property
    def version(self) -> int:
        """Of the map."""
        return len(self._changed_at) - 1

    # -- questions -------------------------------------------------------------------------------

    def _ask(self, client: int) -> None:
        self._asked_at[client] = self.events.now
        self.events.after(self.assumed.latency_s, self._calls.enter, partial(self._read, client))

    def _read(self, client: int) -> None:
        self.thread.serve(partial(self._cost, client), self._looked, client)

    def _cost(self, client: int) -> float:
        """Return the seconds that a question takes: with its answer, if there is news."""
        hold_s = self.costs.hold_us / 1e6
        return hold_s if self._seen[client] == self.version else hold_s + self._answer_s

    def _looked(self, client: int) -> None:
        if self._seen[client] == self.version:
            self._hold(client, POLL_S)
        else:
            self._answered(client, self.version)

    def _hold(self, client: int, left_s: float) -> None:
        self._holds[client] += 1
        self._held[client] = None
        self.events.after(left_s, self._expire, client, self._holds[client])

    def _expire(self, client: int, hold: int) -> None:
        if self._holds[client] == hold and client in self._held:
            del self._held[client]
            self._answer(client)

    def _answer(self, client: int) -> None:
        self.thread.serve(self._answer_s, self._answered, client, self.version)

    def _answered(self, client: int, version: int) -> None:
        self._calls.leave()
        self._link.send(self._size, self._learnt, client, version)

    def _learnt(self, client: int, version: int) -> None:
        now, before = self.events.now, self._seen[client]
        if version > before:
            self._seen[client] = version
            self.load.news_s = max(self.load.news_s, now - self._changed_at[before + 1])
        if now - self._asked_at[client] > POLL_S + ANSWER_S:
            self.load.late += 1
        self._ask(client)

    # -- news ------------------------------------------------------------------------------------

    def change(self) -> None:
        """Answer all held questions with a new map, in the order in which they came."""
        self._changed_at.append(self.events.now)
        self.load.changes += 1
        held, self._held = self._held, {}
        for client in held:
            self._answer(client)

    def lose(self) -> None:
        """A change by which the map shows one more shard as lost."""
        self.change()
        self._losses.append(self.version)

    def unaware(self, clients: Sequence[int], shards: int) -> int:
        """Return how many losses these clients report: of ``shards``, those not on their map."""
        return sum(
            max(0, shards - bisect_right(self._losses, self._seen[client])) for client in clients
        )

    def tell(self) -> None:
        """A shard's actor says what the shard is."""
        self.thread.serve(self.costs.report_us / 1e6, self.change)

    def report(self, count: int, done: Callable[[], None] | None = None) -> None:
        """Reports of a loss that come at the same moment; ``done`` follows the first of them."""
        if count:
            self.load.reports += count
            self._calls.enter(partial(self._check, count, done))

    def _check(self, count: int, done: Callable[[], None] | None) -> None:
        one_s = self.costs.report_us / 1e6
        if done is not None:
            self.thread.serve(one_s, done)
            count -= 1
        for begin in range(0, count, _TOGETHER):
            self.thread.serve(min(_TOGETHER, count - begin) * one_s)
        self.thread.serve(0.0, self._calls.leave)

    # -- the run ---------------------------------------------------------------------------------

    def run(self, scenario: Scenario) -> Load:
        """Run a scenario from `BEGIN_S` on, and watch for `WATCH_S` at least."""
        self.events.run(BEGIN_S)
        busy = self.thread.busy_s
        scenario(self)
        self.events.run(BEGIN_S + WATCH_S)
        missed = [one for one in self._seen if one < self.version]
        if missed:  # they have not heard yet: what is known is that it takes longer
            waits = self.events.now - self._changed_at[min(missed) + 1]
            self.load.news_s = max(self.load.news_s, waits)
        self.load.utilisation = (self.thread.busy_s - busy) / (self.events.now - BEGIN_S)
        self.load.longest_wait_s = self.thread.longest_wait_s
        return self.load


def rest(model: DirectoryModel) -> None:
    """Nothing happens."""


def shard_lost(model: DirectoryModel) -> None:
    """A shard's process is killed, and started again by its supervisor."""
    model.report(model.load.clients)
    model.tell()
    model.events.after(FIRST_PAUSE_S + model.costs.shard_start_s, model.tell)


def host_lost(model: DirectoryModel) -> None:
    """A host vanishes with its shards, which are started elsewhere after some time."""
    events, assumed = model.events, model.assumed
    shards = min(assumed.shards_on_host, model.load.shards)
    noticed = SILENCE_S - model.rng.uniform(0.0, HEARTBEAT_S, model.load.clients)
    slots = (noticed / _TRAIN_S).astype(int)
    trains = {int(slot): np.flatnonzero(slots == slot).tolist() for slot in np.unique(slots)}
    begin, first = events.now, True

    def send(clients: Sequence[int], done: Callable[[], None] | None) -> None:
        model.report(model.unaware(clients, shards), done)

    while begin + SILENCE_S <= events.now + assumed.host_back_s:
        for slot, clients in trains.items():
            done = partial(_verify, model, shards) if first else None
            first = False
            events.at(begin + (slot + 1) * _TRAIN_S, send, clients, done)
        begin += SILENCE_S
    for number in range(shards):
        back_s = assumed.host_back_s + (number + 1) * model.costs.shard_start_s
        events.after(back_s, model.tell)


def _verify(model: DirectoryModel, shards: int) -> None:
    """Ask the shards of a lost host, which do not answer, and mark all of them lost."""
    for _ in range(shards):
        model.events.after(VERIFY_S, model.lose)


def rolling_restart(model: DirectoryModel) -> None:
    """Restart some shards, each when the directory says that the one before it serves."""
    events, began = model.events, model.events.now
    left = min(model.assumed.rolled, model.load.shards)
    total, ended = left, False

    def restart() -> None:
        events.after(model.assumed.drain_s, end)

    def end() -> None:
        model.report(model.load.clients)
        model.tell()
        events.after(model.costs.shard_start_s, start)

    def start() -> None:
        model.tell()
        model.thread.serve(model.costs.answer_s(model.load.shards), serves)

    def serves() -> None:
        nonlocal left, ended
        left -= 1
        if left:
            restart()
        else:
            ended = True
            model.load.took_s = (events.now - began) / total

    restart()
    while not ended and events.now < BEGIN_S + 20 * WATCH_S:
        events.run(events.now + 1.0)


SCENARIOS: dict[str, Scenario] = {
    "at rest": rest,
    "a shard is lost": shard_lost,
    "a host is lost": host_lost,
    "rolling restart": rolling_restart,
}


def most_clients(
    costs: Costs,
    assumed: Assumed,
    shards: int,
    scenario: Scenario,
    seed: int = 0,
    calls: int = CALLS,
) -> int:
    """Return the most clients that do not saturate the directory, to 5 %, up to 128,000."""

    def holds(clients: int) -> bool:
        model = DirectoryModel(costs, assumed, shards, clients, seed, calls)
        return not model.run(scenario).saturated

    low, high = 0, 250
    while high < 128_000 and holds(high):
        low, high = high, 2 * high
    if high >= 128_000 and holds(high):
        return high
    while high - low > max(10, 0.05 * low):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
