"""The sessions of one shard: heartbeats, and all clients that come back after a restart.

# NOTE [a session for each client and shard]
A client is connected to all shards, whichever its writers are bound to. So the number of sessions
of a shard is the number of clients of the cluster, and more shards do not make it smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from async_loader.feeder.client.session import BACKOFF_MOST_S, BACKOFF_S, HEARTBEAT_S, SILENCE_S
from async_loader.feeder.settings import LimitSettings
from benchmarks.simulation.costs import Assumed, Costs
from benchmarks.simulation.events import EventQueue
from benchmarks.simulation.fifo_server import FifoServer

WATCH_S = 60.0
LIMIT = LimitSettings().sessions
"""The default of ``limits.sessions``."""


@dataclass
class Reopening:
    """What a restart of a shard has shown.

    Attributes
    ----------
    clients : int
    resting : float
        The share of the shard's thread that heartbeats take when all sessions are open.
    open_s : float
        Until all sessions are open; infinite if that took more than `WATCH_S`.
    attempts : float
        HELLOs of a client, on average: more than 1 where some had no answer in time.
    """

    clients: int
    resting: float
    open_s: float = float("inf")
    attempts: float = 0.0


class ReopeningModel:
    """All clients open a session with a shard that was just started, within a moment.

    Parameters
    ----------
    costs : Costs
    assumed : Assumed
    clients : int
    seed : int
    """

    def __init__(self, costs: Costs, assumed: Assumed, clients: int, seed: int = 0) -> None:
        self._open_s, self._beat_s = costs.session_us / 1e6, costs.heartbeat_us / 1e6
        self._latency_s = assumed.latency_s
        self._rng = np.random.default_rng(seed)
        self.events = EventQueue()
        self.thread = FifoServer(self.events)
        self._attempt = [0] * clients
        self._is_open = [False] * clients
        self._missing = clients
        self.found = Reopening(clients, clients * self._beat_s / HEARTBEAT_S)

    def run(self) -> Reopening:
        """Run until all sessions are open, for `WATCH_S` at most."""
        for client, at in enumerate(self._rng.uniform(0.0, BACKOFF_S, len(self._is_open))):
            self.events.at(float(at), self._hello, client)
        while self._missing and self.events.now < WATCH_S:
            self.events.run(self.events.now + 0.5)
        self.found.attempts = sum(self._attempt) / max(1, len(self._attempt))
        return self.found

    def _hello(self, client: int) -> None:
        self._attempt[client] += 1
        attempt = self._attempt[client]
        self.events.after(self._latency_s, self._arrive, client, attempt)
        self.events.after(SILENCE_S, self._give_up, client, attempt)

    def _arrive(self, client: int, attempt: int) -> None:
        self.thread.serve(self._open_s, self._opened, client, attempt)

    def _opened(self, client: int, attempt: int) -> None:
        """Welcome a client, unless it has left meanwhile: then the work was for nothing."""
        if attempt != self._attempt[client] or self._is_open[client]:
            return
        self._is_open[client] = True
        self._missing -= 1
        if not self._missing:
            self.found.open_s = self.events.now + self._latency_s
        self.events.after(HEARTBEAT_S, self._beat)

    def _beat(self) -> None:
        self.thread.serve(self._beat_s)
        self.events.after(HEARTBEAT_S, self._beat)

    def _give_up(self, client: int, attempt: int) -> None:
        if self._is_open[client] or attempt != self._attempt[client]:
            return
        most_s = min(BACKOFF_MOST_S, BACKOFF_S * 2 ** (attempt - 1))
        self.events.after(most_s * (0.5 + 0.5 * float(self._rng.random())), self._hello, client)


def most_clients(costs: Costs, assumed: Assumed, share: float = 0.99, seed: int = 0) -> int:
    """Return the most clients whose sessions are all open again within one silence, while
    heartbeats take less than a share of the shard's thread; to 5 %.
    """

    def holds(clients: int) -> bool:
        if clients * costs.heartbeat_us / 1e6 / HEARTBEAT_S >= share:
            return False
        return ReopeningModel(costs, assumed, clients, seed).run().open_s <= SILENCE_S

    low, high = 0, 128
    while holds(high):
        low, high = high, 2 * high
    while high - low > max(10, 0.05 * low):
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
