"""The answer to STATUS, in plain values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from async_loader.feeder.server.policy_lag import lags
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry

_OF_STATS = ("size", "capacity", "full", "inserted", "sampled", "deleted", "nbytes")
_OF_SESSION = (
    "id", "user", "role", "connected", "rows_in", "batches_out", "in_flight_bytes"
)  # fmt: skip
_SILENT_S = 3.0  # a client that is heard sends something each second or two
_SESSIONS, _WAITING, _NAMES = 128, 8, 32  # more are counted only


def status_of(server_state: ServerState, waiting: Mapping[Any, int]) -> dict[str, Any]:
    """Return the answer to STATUS but for the process.

    ``waiting``: see `ControlHandler.waiting`.
    """
    now = server_state.clock()
    return {
        "uptime_s": now - server_state.since,
        "draining": server_state.draining,
        "tables": {
            name: _table(table, server_state, waiting.get(table, 0))
            for name, table in server_state.tables.items()
        },
        "sessions_open": len(server_state.sessions),
        "sessions_ended": dict(server_state.ended),
        "sessions": [
            session_status(session, server_state)
            for session in itertools.islice(server_state.sessions, _SESSIONS)
        ],
        "sessions_died": [
            {**one, "silent_s": now - heard} for heard, one in server_state.died.values()
        ],
        "weights_stale": server_state.weights.stale,
        "weights": server_state.weights.versions(),
        "weights_waiting": dict(itertools.islice(_names(waiting), _NAMES)),
        "weights_age_s": {name: now - at for name, at in server_state.published.items()},
        "counters": dict(server_state.counters),
    }


def _names(waiting: Mapping[Any, int]) -> Iterator[tuple[str, int]]:
    return ((what[:64], count) for what, count in waiting.items() if isinstance(what, str))


def _table(table: TableEntry, server_state: ServerState, unopened: int) -> dict[str, Any]:
    stats, insert_queue, scheduler = table.stats(), table.insert_queue, table.scheduler
    sessions = list(server_state.sessions)
    writers = [
        one
        for session in sessions
        for one in session.writers.values()
        if one.insert_queue is insert_queue
    ]
    now = server_state.clock()
    rows_in, rows_out, *waited = table.rates.of(now)
    writers_wait, readers_wait = (min(1.0, share) for share in waited)
    queued_rows, queued_bytes, queued_since = insert_queue.queued()
    waits = [one for one, _ in table.waiting()]
    if table.rests:
        waits = ["everyone: it is being loaded"]
    if unopened:
        waits.insert(0, f"{unopened} readers to be opened: the first writer brings its schema")
    return {
        **{name: getattr(stats, name) for name in _OF_STATS},
        "inserts_per_s": rows_in,
        "samples_per_s": rows_out,
        "samples_per_insert": stats.sampled / max(1, stats.inserted),
        "waiting": waits[:_WAITING],
        "policies": lags(
            [one.versions for one in writers], server_state.weights.versions(), scheduler.given
        ),
        "writers": len(writers),
        "readers": sum(
            one.table == table.name for session in sessions for one in session.readers.values()
        ),
        "rows_in": insert_queue.rows,
        "duplicates": insert_queue.duplicates,
        "queued_rows": queued_rows,
        "queued_bytes": queued_bytes,
        "queue_age_s": 0.0 if queued_since is None else now - queued_since,
        "writers_blocked_s": insert_queue.blocked_time.seconds(now),
        "writers_wait": writers_wait,
        "batches_out": scheduler.batches,
        "rows_out": scheduler.rows,
        "readers_blocked_s": scheduler.blocked.seconds(now),
        "readers_wait": readers_wait,
        "redelivered": scheduler.redelivered,
        "stale": {} if table.rests else table.table.stale_by_reason,
    }


def session_status(session: Session, server_state: ServerState) -> dict[str, Any]:
    now = server_state.clock()
    made = (one.versions for one in session.writers.values())
    behind = lags(made, server_state.weights.versions()).values()
    state = session.end if session.ended else "connected"
    if session.connected and now - session.heard >= _SILENT_S:
        state = "silent"
    rows_per_s, batches_per_s = session.rates.of(now)
    return {
        **{name: getattr(session, name) for name in _OF_SESSION},
        "pid": session.hello.pid,
        "host": session.hello.host[:64],
        "name": session.hello.user_agent.partition("async_loader/")[0].strip()[:64],
        "user_agent": session.hello.user_agent[:64],
        "state": state,
        "age_s": now - session.since,
        "silent_s": now - session.heard,
        "writers": len(session.writers),
        "readers": len(session.readers),
        "rows_per_s": rows_per_s,
        "batches_per_s": batches_per_s,
        "lag": max((one["lag"] for one in behind if "lag" in one), default=None),
    }
