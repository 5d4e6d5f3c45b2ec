"""The statuses of all shards, which are asked at once: none waits for another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from async_loader.errors import AsyncLoaderError
from async_loader.feeder.client.calls import Call
from async_loader.feeder.status import FeederStatus
from async_loader.feeder.wire import Status, StatusReply
from async_loader.lifecycle import Deadline
from async_loader.scale.shard_connection import ShardConnection
from async_loader.scale.stats import ShardStatus


def statuses_of(shards: Sequence[ShardConnection], deadline: Deadline) -> dict[str, ShardStatus]:
    """Return the statuses by name. A shard that gives none until the deadline has ``None``."""
    asked = [(one, _ask(one)) for one in shards]
    try:
        return {one.name: _described(one, _answer(one, call, deadline)) for one, call in asked}
    finally:  # also after Ctrl-C
        for one, call in asked:
            if call is not None:
                one.connection.forget_calls([call])


def _ask(one: ShardConnection) -> Call | None:
    if not one.is_open:
        return None
    try:
        return one.connection.ask(Call(Status()))
    except AsyncLoaderError:
        return None


def _answer(one: ShardConnection, call: Call | None, deadline: Deadline) -> FeederStatus | None:
    if call is None:
        return None
    try:
        reply = one.connection.answer(call, deadline)
    except AsyncLoaderError:
        return None
    assert isinstance(reply.body, StatusReply)
    status: Any = reply.body.status
    found: FeederStatus = status
    return found


def _described(one: ShardConnection, status: FeederStatus | None) -> ShardStatus:
    shard = one.shard
    return {
        "number": shard.number,
        "incarnation": shard.incarnation,
        "address": shard.address,
        "host": shard.host,
        "state": shard.state,
        "connected": one.is_open,
        "status": status,
    }
