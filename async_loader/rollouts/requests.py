"""One table of rollouts, and the requests that wait for it.

# NOTE [one list of waits]
All that waits for a table is a request in one list, with a reason in words and a time that ends it.
A change tries the others again. So there is no polling: the driver of a table calls `advance` after
each change, and at `due` at the latest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from async_loader.errors import Timeout
from async_loader.replay.samplers import Sampler
from async_loader.rollouts.claims import Claims
from async_loader.rollouts.group_table import GroupTable
from async_loader.rollouts.learner import Learner
from async_loader.rollouts.schema import Array
from async_loader.rollouts.slots import GroupSettings
from async_loader.rollouts.states import State
from async_loader.rollouts.steps import Steps

Found = dict[str, Any]
Answer = tuple[Found, dict[str, Any]]
"""Arrays, or `Pieces`."""
Arrays = Mapping[str, Array]


@dataclass(slots=True, eq=False)
class Request:
    """One call that is not done yet, or its outcome.

    Attributes
    ----------
    client : hashable
        Whose it is.
    until : float
        When its time is over, on the clock of the table.
    why : callable
        Returns what it waits for, in words. Called when a program asks.
    done : callable
        Called with it when it has an answer or an error.
    """

    client: Hashable
    name: str
    arguments: Mapping[str, Any]
    arrays: Arrays
    since: float
    until: float = math.inf
    why: Callable[[], str] = str
    done: Callable[[Request], object] = id
    answer: Answer | None = None
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.answer is not None or self.error is not None


Do = Callable[["Requests", Request], Answer | Found | None]


class Requests:
    """One table of rollouts, for any number of clients. It has no lock.

    Parameters
    ----------
    settings : GroupSettings
    clock : callable
        Monotonic seconds.
    do : callable
        Returns the answer of a request; ``None``: not yet. Raises what is wrong with it.
    make_sampler : callable
        Makes the sampler of a draw's arguments.
    """

    def __init__(
        self,
        settings: GroupSettings,
        clock: Callable[[], float],
        do: Do,
        make_sampler: Callable[[Any], Sampler | None],
    ) -> None:
        self.settings, self.clock, self._do = settings, clock, do
        self._make_sampler = make_sampler
        self._samplers: dict[str, Sampler | None] = {}
        self.requests: list[Request] = []
        self.table = GroupTable(settings)
        self.steps, self.claims = Steps(self.table), Claims(self.table)

    def begin_anew(self) -> None:
        """Forget all groups and prompts; requests go on."""
        bound = self.steps.bound
        self.table = GroupTable(self.settings)
        self.steps, self.claims = Steps(self.table), Claims(self.table)
        self.steps.bound, self.table.changed = bound, True

    def ask(
        self,
        client: Hashable,
        name: str,
        arguments: Mapping[str, Any],
        arrays: Arrays,
        wait_s: float | None = None,
        done: Callable[[Request], object] = id,
    ) -> Request:
        """Do a call now, or when it can be done, until ``wait_s`` have passed."""
        now = self.clock()
        until = math.inf if wait_s is None else now + wait_s
        request = Request(client, name, arguments, arrays, now, until, done=done)
        self.requests.append(request)
        self.advance(request)
        return request

    def advance(self, first: Request | None = None) -> None:
        """Try all requests again: time has passed, or there was a change; else the first alone."""
        now = self.clock()
        self.table.expire(now)
        if first is not None and not self.table.changed:
            self._try(first, first)
        elif first is None:
            self.table.changed = True
        while self.table.changed:
            self.table.changed = False
            for request in list(self.requests):
                self._try(request, first)
            self.table.expire(now)
        if first is not None and first.over:  # last: others wait for what it has changed
            self._over(first)
        for request in [one for one in self.requests if one.until <= now]:
            seconds = request.until - request.since
            request.error = Timeout(f"{seconds:g} s have passed while waiting for {request.why()}")
            self._over(request)

    def due(self) -> float | None:
        """Return when `advance` has something to do without a change."""
        ends = [one.until for one in self.requests if one.until < math.inf]
        moments = [one for one in (self.table.due(), *ends) if one is not None]
        return min(moments, default=None)

    def cancel(self, request: Request) -> None:
        if request in self.requests:
            self.requests.remove(request)

    def _try(self, request: Request, first: Request | None) -> None:
        if request.over:
            return
        try:
            found = self._do(self, request)
        except Exception as error:
            request.error = error
        else:
            request.answer = (found, {}) if isinstance(found, dict) else found
        if request.over and request is not first:
            self._over(request)

    def _over(self, request: Request) -> None:
        self.cancel(request)
        request.done(request)

    # -- clients and versions ----------------------------------------------------------------------

    def leave(self, client: Hashable, reason: str) -> None:
        """Give back all that a client has: it is gone."""
        self.requests = [one for one in self.requests if one.client != client]
        self.table.leave(client, reason)
        self.claims.give_back(client)
        self.steps.release_holds(client)
        for owner in [one for one in self.steps.users if one[0] == client]:
            self.steps.give_back(owner)
        self.advance()

    def publish(self, version: int) -> None:
        """There is a newer policy."""
        self.table.publish(version)
        self.steps.release_holds()

    def learner_of(self, given: Mapping[str, Any]) -> tuple[Learner, Sampler | None]:
        """Return what a learner wants, of plain values, and its sampler: one for the same text."""
        plain, schema = dict(given), self.table.schema
        text = repr(sampler := plain.pop("sampler", None))
        if text not in self._samplers:
            self._samplers[text] = self._make_sampler(sampler)
        for name in ("needs", "fields"):
            if plain.get(name) is not None:
                plain[name] = schema.named(name, plain[name])
        plain["needs"] = plain.get("needs") or tuple(schema.fields)
        plain["cost"] = tuple(plain["cost"])
        return Learner(**plain, sampler=text), self._samplers[text]

    # -- what there is -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the values of `RolloutStats`."""
        table, counts, now = self.table, self.table.counts, self.clock()
        begun = [one.deadline - self.settings.deadline_s for one in table.holders.values()]
        return {
            "states": {one.value: table.count(one) for one in State if one is not State.ENDED},
            "slots": self.settings.slots, "free": table.free,
            "prompts_waiting": len(table.waiting), "version": table.version,
            "step": self.steps.number, "drawn": counts.drawn, "trained": counts.trained,
            "ended": dict(counts.ended), "given_back": dict(counts.given_back),
            "late": counts.late, "oldest_s": max((now - one for one in begun), default=0.0),
            "lags": list(self.steps.lags), "exhausted": table.exhausted, "nbytes": table.nbytes,
            "waiting": [
                (one.name, why, now - one.since) for one in self.requests if (why := one.why())
            ],
        }  # fmt: skip
