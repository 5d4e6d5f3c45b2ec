"""Keeps the process of a shard running, on a thread: starts it, watches it, starts it again."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable
from typing import Any

from async_loader.errors import AsyncLoaderError, Broken, ConfigError, Timeout
from async_loader.held_locks import held_lock, unheld
from async_loader.lifecycle import Deadline, EventFd, StateTable, readable
from async_loader.scale.hosts import own_host
from async_loader.scale.shard_losses import ShardLosses
from async_loader.scale.shard_plan import ShardPlan
from async_loader.scale.shard_process import About, ShardProcess

_log = logging.getLogger("async_loader.scale")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
"""Before a shard is started again that ended at once: doubled each time."""
_STEADY_S = 10.0
"""A process that ran for this long has not ended at once."""


class Phase(enum.Enum):
    """What a supervisor does."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    ENDED = "ended"


MOVES = {
    Phase.STARTING: {Phase.SERVING, Phase.DRAINING, Phase.ENDED},
    Phase.SERVING: {Phase.STARTING, Phase.DRAINING, Phase.ENDED},
    Phase.DRAINING: {Phase.ENDED},
    Phase.ENDED: set(),
}


class ShardSupervisor:
    """Runs the process of one shard until `drain` or `close`.

    Threads: any.

    Parameters
    ----------
    plan : ShardPlan
    host : str
        Address of this node.
    changed : callable
        Called on the supervisor's thread after each change of `describe`.
    """

    def __init__(self, plan: ShardPlan, host: str, changed: Callable[[], None]) -> None:
        self._plan, self._host, self._changed = plan, host, changed
        self._phases = StateTable(Phase.STARTING, MOVES)
        self._bell, self._lock = EventFd(), held_lock(while_waiting=True)
        self._process: ShardProcess | None = None
        self._about: About | None = None
        self._reason = "it is being started"
        self._starts = 0
        self._wants: ShardPlan | None = None  # a restart was asked for
        self._stop_s: float | None = None
        self.losses = ShardLosses(plan.place())
        self._thread = threading.Thread(target=self._run, name="async-loader-shard", daemon=True)
        self._thread.start()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._phases.state in (Phase.STARTING, Phase.SERVING):
            lived = Deadline(_STEADY_S)
            try:
                process = ShardProcess(self._plan, self._host)
            except (AsyncLoaderError, OSError) as error:
                self._say(f"{type(error).__name__}: {error}")
            else:
                self._serves(process)
                self._watch(process)
                process.close()
            if self._phases.state is Phase.SERVING:
                self._phases.to(Phase.STARTING)
                self._say(self._reason)
            pause_s = FIRST_PAUSE_S if lived.expired else min(2 * pause_s, LONGEST_PAUSE_S)
            if self._phases.state is Phase.STARTING and self._wants is None:
                readable([self._bell.fileno()], pause_s)
            self._take_wish()
        self._phases.to(Phase.ENDED)
        self._say(self._reason)

    def _serves(self, process: ShardProcess) -> None:
        with unheld(self._lock):
            self._process, self._about = process, process.about
            self._starts += 1
            self._reason = ""
        process.keep_address()
        self.losses.note(process.about)
        self._phases.to(Phase.SERVING)
        self._changed()

    def _watch(self, process: ShardProcess) -> None:
        """Wait until the process has ended, or is to end."""
        while not process.ended:
            readable([process.fileno(), self._bell.fileno()], None)
            self._bell.clear()
            if self._stop_s is not None and not process.ended:
                process.stop(self._stop_s)
        fate, ended = (
            process.fate,
            "its process has ended" if self._stop_s is None else "it was ended",
        )
        with unheld(self._lock):
            self._process = None
            self._reason = ended + fate
        if fate and self._stop_s is not None:
            _log.error("%s was ended%s", self._plan.name, fate)
        self._stop_s = None

    def _take_wish(self) -> None:
        self._bell.clear()
        with unheld(self._lock):
            if self._wants is not None:
                self._plan, self._wants = self._wants, None

    def _say(self, reason: str) -> None:
        with unheld(self._lock):
            self._reason = reason
        if reason and self._phases.state is not Phase.ENDED:
            _log.warning("%s does not serve: %s", self._plan.name, reason)
        self._changed()

    # -- any thread ------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return what the directory is told: plain values, without keys."""
        phase = self._phases.state
        with unheld(self._lock):
            about = self._about
            state = {Phase.SERVING: "serving", Phase.DRAINING: "draining"}.get(phase, "lost")
            return {
                "name": self._plan.name,
                "number": self._plan.number,
                "address": None if about is None else about.address,
                "host": own_host(),
                "incarnation": 0 if about is None else about.incarnation,
                "state": state,
                "pid": None if self._process is None or about is None else about.pid,
                "reason": self._reason,
                "starts": self._starts,
                "lost_rows": dict(self.losses.total),
            }

    @property
    def plan(self) -> ShardPlan:
        return self._plan

    def drain(self, timeout_s: float) -> None:
        """Say "draining", let the process end, and do not start it again.

        Raises
        ------
        Timeout
        """
        self._phases.to(Phase.DRAINING)
        self._changed()
        self._stop_s = timeout_s
        self._bell.ring()
        self._thread.join(timeout_s + 30.0)
        if self._thread.is_alive():
            raise Timeout(f"{self._plan.name} has not ended after {timeout_s:g} s")

    def restart(self, plan: ShardPlan, timeout_s: float) -> None:
        """Let the process drain, save and end, and start it with this plan.

        Raises
        ------
        ConfigError
            If the plan is of another shard.
        Broken
            If the shard drains.
        """
        if plan.name != self._plan.name:
            raise ConfigError(f"{plan.name} is not {self._plan.name}")
        if self._phases.state not in (Phase.STARTING, Phase.SERVING):
            raise Broken(f"{plan.name} is {self._phases.state.value}: it is not started again")
        with unheld(self._lock):
            self._wants = plan
        self._stop_s = timeout_s
        self._bell.ring()

    def close(self) -> None:
        """End the thread, and let go of the process."""
        self._phases.to(Phase.ENDED)
        with contextlib.suppress(OSError):
            self._stop_s = 0.0
            self._bell.ring()
