"""The calls of a table of rollouts. What each takes is its signature."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.samplers import Sampler
from async_loader.rollouts.batches import pack
from async_loader.rollouts.claims import Claims
from async_loader.rollouts.group_table import GroupTable
from async_loader.rollouts.learner import Learner
from async_loader.rollouts.requests import Answer, Found, Request, Requests
from async_loader.rollouts.slots import GroupSettings
from async_loader.rollouts.states import MEMBER_BITS, State
from async_loader.rollouts.steps import Steps


class RolloutCalls(Requests):
    """One table of rollouts, for any number of clients.

    Parameters
    ----------
    settings : GroupSettings
    clock : callable
        Monotonic seconds.
    make_sampler : callable
        Makes the sampler of a draw's arguments.
    """

    def __init__(
        self,
        settings: GroupSettings,
        clock: Callable[[], float],
        make_sampler: Callable[[Any], Sampler | None] = lambda given: given,
    ) -> None:
        super().__init__(clock)
        self.settings, self._make_sampler = settings, make_sampler
        self.table = GroupTable(settings)
        self.steps, self.claims = Steps(self.table), Claims(self.table)
        self._samplers: dict[str, Sampler | None] = {}

    def begin_anew(self) -> None:
        """Forget all groups and prompts; requests go on."""
        bound = self.steps.bound
        self.table = GroupTable(self.settings)
        self.steps, self.claims = Steps(self.table), Claims(self.table)
        self.steps.bound, self.table.changed = bound, True

    @property
    def changed(self) -> bool:
        """See `Requests`."""
        return self.table.changed

    @changed.setter
    def changed(self, changed: bool) -> None:
        self.table.changed = changed

    def expire(self, now: float) -> None:
        """See `Requests`."""
        self.table.expire(now)

    def next_deadline(self) -> float | None:
        """See `Requests`."""
        return self.table.due()

    def do(self, request: Request) -> Answer | Found | None:
        """See `Requests`."""
        found: Answer | Found | None = _method(request)(self, request, **request.arguments)
        return found

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

    # -- for the calls -----------------------------------------------------------------------------

    def learner_of(self, given: Mapping[str, Any]) -> tuple[Learner, Sampler | None]:
        """Return what a learner wants, of plain values, and its sampler: one for the same text."""
        plain = dict(given)
        sampler, schema = plain.pop("sampler", None), self.table.schema
        text = repr(sampler)
        if text not in self._samplers:
            self._samplers[text] = self._make_sampler(sampler)
        for name in ("needs", "fields"):
            if plain.get(name) is not None:
                plain[name] = schema.named(name, plain[name])
        if plain.get("needs") is None:
            plain["needs"] = tuple(schema.fields)
        plain["cost"] = tuple(plain["cost"])
        return Learner(**plain, sampler=text), self._samplers[text]

    def signature(self) -> tuple[Any, ...]:
        """Return what differs after a change that is saved."""
        table, counts = self.table, self.table.counts
        given_back = counts.given_back.total(), counts.ended.total()
        return (
            table.next_id, table.version, self.steps.number, counts.drawn, counts.trained,
            counts.updates, len(table.waiting), given_back, table.count(State.READY),
        )  # fmt: skip

    def by_state(self) -> dict[str, int]:
        """Return how many groups are in each state."""
        found = {one.value: 0 for one in State if one is not State.ENDED}
        for group in self.table.groups.values():
            found[group.state.value] += 1
        return found

    def status(self, asking: Request | None = None) -> dict[str, Any]:
        """Return the values of `RolloutStats`."""
        table, counts, now = self.table, self.table.counts, self.clock()
        begun = [one.deadline - self.settings.deadline_s for one in table.holders.values()]
        return {
            "states": self.by_state(), "slots": self.settings.slots, "free": table.free,
            "prompts_waiting": len(table.waiting), "version": table.version,
            "step": self.steps.number, "drawn": counts.drawn, "trained": counts.trained,
            "ended": dict(counts.ended), "given_back": dict(counts.given_back),
            "late": counts.late, "oldest_s": max((now - one for one in begun), default=0.0),
            "lags": list(self.steps.lags), "exhausted": table.exhausted, "nbytes": table.nbytes,
            "waiting": [
                (one.name, one.why, now - one.since) for one in self.requests if one is not asking
            ],
        }  # fmt: skip


# -- the calls: what each takes is its signature ---------------------------------------------------


def about(calls: RolloutCalls, request: Request) -> Found:
    """Return the settings, and where the table stands."""
    table = calls.table
    return {
        **calls.settings.plain(),
        "version": table.version, "step": calls.steps.number,
        "cursors": {name: cursor.next for name, cursor in table.cursors.items()},
    }  # fmt: skip


def reserve(
    calls: RolloutCalls,
    request: Request,
    name: str,
    ticket: int,
    size: int | None = None,
    number: int | None = None,
    value: object = None,
    limit: int | None = None,
    over: bool = False,
) -> Found | None:
    """See `GroupTable.reserve`."""
    table = calls.table
    found = table.reserve(
        request.client, calls.clock(), name=name, ticket=ticket, size=size, number=number,
        value=value, limit=limit, over=over,
    )  # fmt: skip
    if found is None:
        held = ", ".join(f"{count} {state}" for state, count in calls.by_state().items() if count)
        wanted = (
            f"a prompt of {name!r}" if table.free > 0 else f"one of {table.settings.slots} slots"
        )
        request.why = f"{wanted}: {held} groups"
    return found


def put(
    calls: RolloutCalls,
    request: Request,
    group: int,
    part: int,
    last: bool,
    has: dict[str, Any] | None = None,
) -> Found:
    """See `GroupTable.put`. ``has``: by field, which members of this part have it, if not all."""
    members = {name: np.array(one, np.int64) for name, one in (has or {}).items()}
    columns = {
        name: (members.get(name), one) for name, one in request.arrays.items() if name != "lengths"
    }
    lengths = np.asarray(request.arrays["lengths"])
    return {"late": calls.table.put(request.client, group, part, last, columns, lengths)}


def extend(
    calls: RolloutCalls, request: Request, name: str, ticket: int, prompts: list[Any]
) -> Found | None:
    """See `GroupTable.extend`."""
    arrays = {one: (None, values) for one, values in request.arrays.items()}
    (_, sizes), (_, lengths) = arrays.pop("sizes"), arrays.pop("lengths")
    of = request.client, ticket
    if len(prompts) != len(sizes) or int(sizes.sum()) != len(lengths):
        raise ConfigError(f"{len(prompts)} prompts, {len(sizes)} groups, {len(lengths)} members")
    found = calls.table.extend(of, calls.clock(), name, prompts, sizes, arrays, lengths)
    request.why = f"{len(sizes)} of {calls.settings.slots} slots, {calls.table.free} are free"
    return None if found is None else {"groups": found}


def finish(calls: RolloutCalls, request: Request, name: str) -> Found:
    """See `PromptLedger.note_limit`."""
    calls.table.note_limit(name, None, over=True)
    return {}


def abort(calls: RolloutCalls, request: Request, group: int, reason: str) -> Found:
    """See `GroupTable.abort`."""
    calls.table.abort(request.client, group, reason)
    return {}


def claim(
    calls: RolloutCalls,
    request: Request,
    needs: list[Any],
    give: list[Any],
    name: str,
    most: int,
    done: list[Any],
    loop: int = 0,
    turn: int = 0,
) -> Answer | None:
    """See `Claims.claim`."""
    schema = calls.table.schema
    task = schema.named("needs", needs), schema.named("give", give), name
    request.why = f"a member with {', '.join(needs)} and without {', '.join(give) or 'a reader'}"
    return calls.claims.claim(request.client, task, most, done, (loop, turn))


def unclaim(calls: RolloutCalls, request: Request, members: list[Any]) -> Found:
    """See `Claims.give_back`."""
    calls.claims.give_back(request.client, members)
    return {}


def update(calls: RolloutCalls, request: Request, member: int | None = None) -> Found:
    """Set fields, of one member or by the ids ``index``."""
    values = {name: one for name, one in request.arrays.items() if name != "index"}
    calls.table.schema.named("update", values)
    if member is not None:
        return _applied(int(calls.table.update_member(member, values)), 1)
    index = request.arrays["index"]
    return _applied(calls.table.update(index, values), len(index))


def draw(
    calls: RolloutCalls,
    request: Request,
    part: int,
    after: int,
    rank: int,
    learner: dict[str, Any],
) -> Answer | None:
    """See `Steps.draw`."""
    wanted, sampler = calls.learner_of(learner)
    found = calls.steps.draw((request.client, part), after, rank, wanted, sampler)
    request.why = calls.steps.why
    return found


def judge(calls: RolloutCalls, request: Request, kept: list[Any], dropped: list[Any]) -> Found:
    """See `Steps.judge`."""
    calls.steps.judge(kept, dropped)
    return {}


def settle(
    calls: RolloutCalls, request: Request, part: int, step: int, hold: bool = False
) -> Found:
    """See `Steps.settle` and `Steps.hold`."""
    act = calls.steps.hold if hold else calls.steps.settle
    act(step, (request.client, part))
    return {}


def release_hold(calls: RolloutCalls, request: Request) -> Found:
    """See `Steps.release_holds`."""
    calls.steps.release_holds(request.client)
    return {}


def give_back(calls: RolloutCalls, request: Request, part: int, after: int | None = None) -> Found:
    """See `Steps.give_back`. ``after``: what was drawn later, and more will be."""
    if after is None or calls.steps.number > after:
        calls.steps.give_back((request.client, part), leaves=after is None)
    return {}


def trained(calls: RolloutCalls, request: Request, keys: list[Any], version: int) -> Found:
    """See `GroupTable.skip`."""
    if version > calls.table.version:
        calls.publish(version)
    calls.table.skip({(str(name), int(number)) for name, number in keys})
    return {}


def publish(calls: RolloutCalls, request: Request, version: int) -> Found:
    """See `RolloutCalls.publish`."""
    calls.publish(version)
    return {}


def prioritize(calls: RolloutCalls, request: Request) -> Found:
    """Set ``priority`` of the groups of ``index``."""
    groups = request.arrays["index"] >> MEMBER_BITS
    applied = calls.steps.prioritize(groups, request.arrays["priority"])
    return _applied(applied, len(np.unique(groups)))


def delete(calls: RolloutCalls, request: Request, groups: list[Any]) -> Found:
    """See `GroupTable.delete`."""
    return _applied(calls.table.delete(groups), len(set(groups)))


def get(calls: RolloutCalls, request: Request, groups: list[Any]) -> Answer:
    """Return groups as a batch."""
    there = calls.table.groups
    found = [there[one] for one in groups if one in there and len(there[one])]
    if not found:
        return {}, {}
    schema = calls.table.schema
    fields = [name for name in schema.fields if all(one.has((name,)) for one in found)]
    order = [(i, m) for i, one in enumerate(found) for m in range(len(one))]
    return {}, pack(schema, found, order, [0, len(order)], fields, calls.table.version)


def clear(calls: RolloutCalls, request: Request) -> Found:
    """End all groups and forget all prompts."""
    version, step, next_id = calls.table.version, calls.steps.number, calls.table.next_id
    calls.begin_anew()
    calls.table.version, calls.steps.number, calls.table.next_id = version, step, next_id
    return {}


def waits(calls: RolloutCalls, request: Request) -> Found:
    """Return what the draws of this client wait for."""
    mine = [one for one in calls.requests if one.client == request.client and one.name == "draw"]
    return {"why": "; ".join(dict.fromkeys(one.why for one in mine))}


def status(calls: RolloutCalls, request: Request) -> Found:
    """Return the values of `RolloutStats`."""
    return calls.status(request)


CALLS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        about, reserve, put, extend, finish, abort, claim, unclaim, update, draw, judge, settle,
        release_hold, give_back, trained, publish, prioritize, delete, get, clear, status, waits,
    )
}  # fmt: skip
_HINTS = {name: get_type_hints(one) for name, one in CALLS.items()}


def _applied(applied: int, count: int) -> Found:
    return {"applied": applied, "stale": count - applied}


def _method(request: Request) -> Callable[..., Any]:
    """Return what does a call. Raises ConfigError for arguments that it does not take."""
    name, hints = request.name, _HINTS.get(request.name)
    if hints is None:
        raise ConfigError(f"there is no call {name!r} of rollouts: {', '.join(CALLS)}")
    for one, value in request.arguments.items():
        kind = hints.get(one)
        hidden = one in ("calls", "request") or kind is None
        if hidden or not isinstance(value, _plain_kind(kind)):
            raise ConfigError(f"{name}({one}={value!r}): it takes {', '.join(list(hints)[2:-1])}")
    return CALLS[name]


def _plain_kind(kind: Any) -> Any:
    """Return a type that `isinstance` takes."""
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    return tuple(get_origin(one) or one for one in kinds)
