"""New priorities through a reader: the PRIORITIES message, which version 2 of the wire has too."""

from __future__ import annotations

import contextlib

import numpy as np
import numpy.typing as npt

from async_loader.errors import AsyncLoaderError, Closed, ConfigError
from async_loader.feeder.client.batch_structure import local_ids, remote_ids
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.client.reader_channel import ReaderChannel
from async_loader.feeder.client.reader_state import ReaderPhase
from async_loader.feeder.wire import Applied as WireApplied
from async_loader.feeder.wire import Plane, Priorities
from async_loader.lifecycle import Deadline
from async_loader.replay.arguments import floats_of
from async_loader.replay.samplers import priority_rules
from async_loader.source import Applied


class ServerReplaced(AsyncLoaderError):
    """The rows were those of an earlier server."""


def update(
    connection: Connection,
    channel: ReaderChannel,
    index: npt.ArrayLike,
    priority: object,
    deadline: Deadline,
) -> Applied:
    """Send PRIORITIES and wait for the result.

    Ids that an earlier server gave count as stale: the present one has other rows by these ids.
    """
    ids = np.ascontiguousarray(index, np.int64).reshape(-1)
    values = floats_of(priority, "priority").reshape(-1)
    if ids.shape != values.shape:
        raise ConfigError(f"{len(ids)} ids and {len(values)} priorities: one for each")
    priority_rules.check_sent(values)
    if not len(ids):
        return Applied(0, 0)

    server = connection.servers
    here = local_ids(ids, server)
    total, ids, values = len(ids), remote_ids(ids[here], server), values[here]

    def ready() -> bool:
        if connection.servers != server:
            raise ServerReplaced("these rows are of an earlier server")
        if channel.failure is not None:
            raise channel.failure()
        if channel.phase is ReaderPhase.CLOSED:
            raise Closed("this source was closed meanwhile")
        return channel.phase is ReaderPhase.READY

    applied, most = 0, connection.limits.message_bytes // (ids.itemsize + values.itemsize)
    with contextlib.suppress(ServerReplaced):
        for at in range(0, len(ids), most):
            some = Priorities(ids[at : at + most].copy(), values[at : at + most])
            call = Call(some, Plane.PULL, channel.number, ready=ready)
            reply = connection.call(call, deadline).body
            assert isinstance(reply, WireApplied)
            applied += reply.applied
    return Applied(applied, total - applied)
