"""The answer to STATUS, in plain values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from async_loader.feeder.server.counters import Counters
from async_loader.feeder.server.policy_lag import lags
from async_loader.feeder.server.sessions import Session
from async_loader.feeder.server.state import ServerState, TableEntry

_SESSIONS, _WAITING, _NAMES = (
    128,
    8,
    32,
)  # more are counted only: a control message is small
_FEW = 16  # sessions, and names of weights, that stay while other lists can be shortened


def status_of(
    server_state: ServerState, counters: Counters, waiting: Mapping[Any, int]
) -> dict[str, Any]:
    """Return the answer to STATUS but for the process.

    ``waiting``: see `ControlHandler.waiting`.
    """
    return {
        "uptime_s": counters.uptime_s,
        "draining": server_state.draining,
        "tables": {
            name: _table(table, server_state, waiting.get(table, 0))
            for name, table in server_state.tables.items()
        },
        "sessions_open": len(server_state.sessions),
        "sessions_ended": counters.sessions_ended,
        "sessions": [
            _session(session, server_state)
            for session in itertools.islice(server_state.sessions, _SESSIONS)
        ],
        "weights_stale": server_state.weights.stale,
        "weights": server_state.weights.versions(),
        "weights_waiting": dict(itertools.islice(_names(waiting), _NAMES)),
        "weights_age_s": server_state.published.ages(server_state.clock()),
        "counters": counters.snapshot(),
    }


def fitting(status: dict[str, Any], most: int) -> dict[str, Any]:
    """Return a status that takes ``most`` bytes at most, with shorter lists where it has to be.

    At last it has fewer tables: ``tables_left_out`` says how many are missing. Clients that ask for
    a whole status have all of them.
    """
    over = _size(status) - most
    if over <= 0:
        return status
    tables = {name: {**one} for name, one in status["tables"].items()}
    status = {**status, "tables": tables}
    lists = [
        (status, "sessions", _FEW),
        *((one, "waiting", 1) for one in tables.values()),
        (status, "weights_age_s", _FEW),
        (status, "weights", _FEW),
        (status, "weights_waiting", 0),
        *((one, key, 0) for one in tables.values() for key in ("policy_lags", "policies")),
        (status, "sessions", 0),
        *((one, "waiting", 0) for one in tables.values()),
        (status, "weights_age_s", 0),
        (status, "weights", 0),
    ]
    for place, key, least in lists:
        was = place[key]
        kept = list(was.items() if isinstance(was, dict) else was)
        while over > 0 and len(kept) > least:
            over -= _size(kept.pop()) - isinstance(was, dict)  # an item is a key and a value
        place[key] = dict(kept) if isinstance(was, dict) else kept
    if over > 0:
        status["tables_left_out"] = 0
        over += _size("tables_left_out") + 5
        saves = status["checkpoints"] = {**status.get("checkpoints", {})}
        while over > 0 and tables:
            name, one = tables.popitem()
            over -= _size(name) + _size(one)
            if name in saves:
                over -= _size(name) + _size(saves.pop(name))
            status["tables_left_out"] += 1
    return status


def _size(value: object) -> int:
    return len(msgspec.msgpack.encode(value))


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
    rates, now = table.rates.now(stats.inserted, stats.sampled), server_state.clock()
    means = table.rates.mean(stats.inserted, stats.sampled)
    inserted_total, sampled_total, deleted_total = table.totals()
    queued_rows, queued_bytes, queued_since = insert_queue.queued()
    waits = (
        [f"{unopened} readers to be opened: it has no schema yet, the first writer brings it"]
        if unopened
        else []
    )
    return {
        "size": stats.size,
        "capacity": stats.capacity,
        "full": stats.full,
        "inserted": stats.inserted,
        "sampled": stats.sampled,
        "deleted": stats.deleted,
        "inserted_total": inserted_total,
        "sampled_total": sampled_total,
        "deleted_total": deleted_total,
        "nbytes": stats.nbytes,
        "inserts_per_s": rates[0],
        "samples_per_s": rates[1],
        "inserts_per_s_mean": means[0],
        "samples_per_s_mean": means[1],
        "samples_per_insert": stats.sampled / stats.inserted if stats.inserted else 0.0,
        "waiting": [*waits, *_waiting(table)][:_WAITING],
        "policy_lags": {} if insert_queue.lags is None else insert_queue.lags.snapshot(),
        "policies": lags(
            [one.producer.versions for one in writers], server_state.published, scheduler.given
        ),
        "writers": len(writers),
        "readers": sum(
            one.scheduler is scheduler for session in sessions for one in session.readers.values()
        ),
        "rows_in": insert_queue.rows,
        "duplicates": insert_queue.duplicates,
        "gaps": insert_queue.gaps,
        "queued_rows": queued_rows,
        "queued_bytes": queued_bytes,
        "queue_age_s": 0.0 if queued_since is None else now - queued_since,
        "writers_blocked_s": insert_queue.blocked_time.seconds(now),
        "batches_out": scheduler.batches,
        "rows_out": scheduler.rows,
        "readers_blocked_s": scheduler.blocked.seconds(now),
        "redelivered": scheduler.redelivered,
        "stale": {} if table.rests else table.table.stale_by_reason,
    }


def _waiting(table: TableEntry) -> list[str]:
    """Return what waits for the table, and why."""
    if table.rests:
        return ["everyone: it is being loaded"]
    return [text for text, _ in table.waiting()]


def _session(session: Session, server_state: ServerState) -> dict[str, Any]:
    now = server_state.clock()
    made = [one.producer.versions for one in session.writers.values()]
    behind = lags(made, server_state.published).values()
    return {
        "id": session.id,
        "pid": session.hello.pid,
        "host": session.hello.host[:64],
        "user": session.user,
        "user_agent": session.hello.user_agent[:64],
        "age_s": now - session.since,
        "silent_s": now - session.heard,
        "connected": session.connected,
        "writers": len(session.writers),
        "readers": len(session.readers),
        "rows_in": session.rows_in,
        "batches_out": session.batches_out,
        "in_flight_bytes": session.in_flight_bytes,
        "lag": max((one["lag"] for one in behind if "lag" in one), default=None),
    }
