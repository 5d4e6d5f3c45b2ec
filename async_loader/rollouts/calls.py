"""The calls of a table of rollouts. What each takes, beside the table and the request, is the rest
of its signature; arrays come with the request.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.samplers import Sampler
from async_loader.rollouts.batches import pack
from async_loader.rollouts.requests import Answer, Found, Request, Requests
from async_loader.rollouts.slots import GroupSettings
from async_loader.rollouts.states import MEMBER_BITS


def about(calls: Requests, request: Request) -> Found:
    cursors = {name: cursor.next for name, cursor in calls.table.cursors.items()}
    where = {"version": calls.table.version, "step": calls.steps.number, "cursors": cursors}
    return calls.settings.plain() | where


def reserve(
    calls: Requests,
    request: Request,
    name: str,
    ticket: int,
    size: int | None = None,
    number: int | None = None,
    value: object = None,
    limit: int | None = None,
    over: bool = False,
    ahead: int = 0,
) -> Found | None:
    found = calls.table.reserve(
        (request.client, ticket), calls.clock(), name,
        size=size, number=number, value=value, limit=limit, over=over, ahead=ahead,
    )  # fmt: skip
    request.why = lambda: (
        f"prompts of {name!r} that are given back, as all are drawn: {calls.table.holding()}"
        if calls.table.room > 0
        else f"one of {calls.settings.slots} slots: {calls.table.holding()}"
    )
    return found


def put(
    calls: Requests,
    request: Request,
    groups: list[Any],
    sizes: list[Any],
    part: int = 0,
    last: bool = True,
    has: dict[str, Any] | None = None,
) -> Found:
    """``has``: by field, which members of this part have it, if not all. Of one group only."""
    arrays = dict(request.arrays)
    lengths = arrays.pop("lengths")
    members = {name: np.array(one, np.int64) for name, one in (has or {}).items()}
    columns = {name: (members.get(name), one) for name, one in arrays.items()}
    late = calls.table.put(request.client, groups, part, last, sizes, columns, lengths)
    return {"late": late}


def extend(
    calls: Requests, request: Request, name: str, ticket: int, prompts: list[Any]
) -> Found | None:
    arrays, of = dict(request.arrays), (request.client, ticket)
    sizes, lengths = arrays.pop("sizes"), arrays.pop("lengths")
    columns = {one: (None, values) for one, values in arrays.items()}
    found = calls.table.extend(of, calls.clock(), name, prompts, sizes, columns, lengths)
    slots = calls.settings.slots
    request.why = lambda: (
        f"{len(sizes)} of {slots} slots, {calls.table.room} are free: {calls.table.holding()}"
    )
    return None if found is None else {"groups": found}


def finish(calls: Requests, request: Request, name: str) -> Found:
    calls.table.note_limit(name, None, over=True)
    return {}


def abort(calls: Requests, request: Request, group: int, reason: str, begun: bool = True) -> Found:
    calls.table.abort(request.client, group, reason, begun)
    return {}


def claim(
    calls: Requests,
    request: Request,
    needs: list[Any],
    give: list[Any],
    name: str,
    most: int,
    done: list[Any],
    loop: int = 0,
    turn: int = 0,
) -> Answer | None:
    schema = calls.table.schema
    task = schema.named("needs", needs), schema.named("give", give), name
    lacks = ", ".join(give) or "a reader"
    request.why = lambda: f"a member with {', '.join(needs)} and without {lacks}"
    return calls.claims.claim(request.client, task, most, done, (loop, turn))


def unclaim(calls: Requests, request: Request, members: list[Any], done: list[Any]) -> Found:
    calls.claims.give_back(request.client, members, done)
    return {}


def update(calls: Requests, request: Request) -> Found:
    values = dict(request.arrays)
    index = values.pop("index")
    return _applied(calls.table.update(index, values), len(index))


def draw(
    calls: Requests, request: Request, part: int, after: int, rank: int, learner: dict[str, Any]
) -> Answer | None:
    wanted, sampler = calls.learner_of(learner)
    found = calls.steps.draw((request.client, part), after, rank, wanted, sampler)
    request.why = calls.steps.why
    return found


def waits(calls: Requests, request: Request, name: str = "draw") -> Found:
    """What the calls of this client, of a name, wait for."""
    mine = [one for one in calls.requests if one.client == request.client and one.name == name]
    return {"why": "; ".join(dict.fromkeys(one.why() for one in mine))}


def judge(calls: Requests, request: Request, kept: list[Any], dropped: list[Any]) -> Found:
    calls.steps.judge(kept, dropped)
    return {}


def settle(calls: Requests, request: Request, part: int, step: int, hold: bool = False) -> Found:
    act = calls.steps.hold if hold else calls.steps.settle
    act(step, (request.client, part))
    return {}


def release_hold(calls: Requests, request: Request) -> Found:
    calls.steps.release_holds(request.client)
    return {}


def give_back(calls: Requests, request: Request, part: int, after: int | None = None) -> Found:
    """``after``: what was drawn later, and more will be."""
    for one in list(calls.requests):  # a draw that was given up would take a step for good
        if (one.client, one.name, one.arguments.get("part")) == (request.client, "draw", part):
            calls.cancel(one)
    if after is None or calls.steps.number > after:
        calls.steps.give_back((request.client, part), leaves=after is None)
    return {}


def trained(calls: Requests, request: Request, keys: list[Any], version: int) -> Found:
    if version > calls.table.version:
        calls.publish(version)
    calls.table.skip({(str(name), int(number)) for name, number in keys})
    return {}


def publish(calls: Requests, request: Request, version: int) -> Found:
    calls.publish(version)
    return {}


def prioritize(calls: Requests, request: Request) -> Found:
    groups = request.arrays["index"] >> MEMBER_BITS
    applied = calls.steps.prioritize(groups, request.arrays["priority"])
    return _applied(applied, len(np.unique(groups)))


def delete(calls: Requests, request: Request, groups: list[Any]) -> Found:
    return _applied(calls.table.delete(groups), len(set(groups)))


def get(calls: Requests, request: Request, groups: list[Any]) -> Answer:
    there = calls.table.groups
    found = [there[one] for one in groups if one in there and len(there[one])]
    if not found:
        return {}, {}
    schema = calls.table.schema
    fields = [name for name in schema.fields if all(one.has((name,)) for one in found)]
    micro = [0, sum(map(len, found))]
    return {}, pack(schema, found, None, micro, fields, calls.table.version)


def clear(calls: Requests, request: Request) -> Found:
    """End all groups and forget all prompts."""
    version, step, next_id = calls.table.version, calls.steps.number, calls.table.next_id
    calls.begin_anew()
    calls.table.version, calls.steps.number, calls.table.next_id = version, step, next_id
    return {}


def status(calls: Requests, request: Request) -> Found:
    return calls.status()


CALLS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        about, reserve, put, extend, finish, abort, claim, unclaim, update, draw, waits, judge,
        settle, release_hold, give_back, trained, publish, prioritize, delete, get, clear, status,
    )
}  # fmt: skip


def _plain_kind(kind: Any) -> Any:
    """Return types that `isinstance` takes."""
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    return tuple(get_origin(one) or one for one in kinds)


_KINDS = {
    name: {arg: _plain_kind(kind) for arg, kind in list(get_type_hints(one).items())[2:-1]}
    for name, one in CALLS.items()
}


def rollout_calls(
    settings: GroupSettings,
    clock: Callable[[], float],
    make_sampler: Callable[[Any], Sampler | None] = lambda given: given,
) -> Requests:
    """Return a table with these calls. Parameters: see `Requests`."""
    return Requests(settings, clock, _do, make_sampler)


def _do(calls: Requests, request: Request) -> Any:
    """Do a call. Raises ConfigError for arguments that it does not take: any peer may ask."""
    name, kinds = request.name, _KINDS.get(request.name)
    if kinds is None:
        raise ConfigError(f"there is no call {name!r} of rollouts: {', '.join(CALLS)}")
    for one, value in request.arguments.items():
        if one not in kinds or not isinstance(value, kinds[one]):
            raise ConfigError(f"{name}({one}={value!r}): it takes {', '.join(kinds)}")
    return CALLS[name](calls, request, **request.arguments)


def _applied(applied: int, count: int) -> Found:
    return {"applied": applied, "stale": count - applied}
