"""What the shards say of one table. They are asked at once: none waits for another."""

from __future__ import annotations

from collections.abc import Sequence

from async_loader.errors import AsyncLoaderError, ConfigError, Unsupported
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.table_calls import TableCalls
from async_loader.feeder.wire import AboutReply
from async_loader.lifecycle import Deadline
from async_loader.scale.shard_connection import ShardConnection
from async_loader.scale.shard_deadline import ShardDeadline

Abouts = dict[str, AboutReply]
Errors = dict[str, AsyncLoaderError]


def abouts_of(
    shards: Sequence[ShardConnection], table: str, deadline: Deadline
) -> tuple[Abouts, Errors]:
    """Return the answers by shard, and the errors of the others that could be reached.

    A shard that no longer answers is waited for only if all others are silent too.

    Raises
    ------
    ConfigError, Unsupported
    """
    found, failed = _asked(shards, table, deadline, wait=False)
    if failed and not found and not deadline.expired:
        found, failed = _asked(shards, table, deadline, wait=True)
    return found, failed


def _asked(
    shards: Sequence[ShardConnection], table: str, deadline: Deadline, wait: bool
) -> tuple[Abouts, Errors]:
    found: Abouts = {}
    failed: Errors = {}
    asked: list[tuple[ShardConnection, TableCalls, Call]] = []
    try:
        for one in shards:
            if one.is_open:
                try:
                    calls = one.client.table(table)._calls
                    asked.append((one, calls, calls.ask_about()))
                except AsyncLoaderError as error:
                    failed[one.name] = error
        for one, calls, call in asked:
            try:
                limit = deadline if wait else ShardDeadline(one, deadline)
                found[one.name] = calls.about_of(call, limit)
            except (ConfigError, Unsupported):
                raise
            except AsyncLoaderError as error:
                failed[one.name] = error
    finally:  # also after Ctrl-C
        for one, _, call in asked:
            one.connection.forget_calls([call])
    return found, failed
