"""The metrics of a feeder, from its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from async_loader.feeder.status_view import client_name
from async_loader.observe.families import Family, Histogram, Kind

Status = Mapping[str, Any]

_TABLE: tuple[tuple[str, Kind, str, str], ...] = (
    ("table_items", "gauge", "size", "Items that can be drawn."),
    ("table_capacity_steps", "gauge", "capacity", "Steps that the table keeps."),
    ("table_memory_bytes", "gauge", "nbytes", "Shared memory of the full table."),
    ("table_inserted_items", "counter", "inserted_total", "Items inserted."),
    ("table_sampled_items", "counter", "sampled_total", "Items sampled."),
    ("table_deleted_items", "counter", "deleted_total", "Items removed to make room, or deleted."),
    ("table_samples_per_insert", "gauge", "samples_per_insert", "Items sampled per item inserted."),
    ("table_writers", "gauge", "writers", "Writers that are open."),
    ("table_readers", "gauge", "readers", "Readers that are open."),
    ("table_received_rows", "counter", "rows_in", "Steps received and inserted."),
    ("table_sent_rows", "counter", "rows_out", "Rows of batches sent."),
    ("table_sent_batches", "counter", "batches_out", "Batches sent."),
    ("table_redelivered_batches", "counter", "redelivered", "Batches of returned rows."),
    ("table_duplicate_messages", "counter", "duplicates", "Inserts received twice, and dropped."),
    ("table_message_gaps", "counter", "gaps", "Inserts received after a missing one."),
    ("table_queued_rows", "gauge", "queued_rows", "Rows received that wait for the table."),
    ("table_queued_bytes", "gauge", "queued_bytes", "Bytes received that wait for the table."),
    ("table_queue_age_seconds", "gauge", "queue_age_s", "Time that the oldest of them waits."),
)
_CLIENT: tuple[tuple[str, Kind, str, str], ...] = (
    ("client_received_rows", "counter", "rows_in", "Steps received from its writers."),
    ("client_sent_batches", "counter", "batches_out", "Batches sent to its readers."),
    ("client_in_flight_bytes", "gauge", "in_flight_bytes", "Bytes received, and not in a table."),
    ("client_silent_seconds", "gauge", "silent_s", "Time since the client was last heard."),
    ("client_connected", "gauge", "connected", "1 while a connection of the client is open."),
)


_FEEDER = (
    ("feeder_uptime_seconds", "uptime_s", "Time since the start."),
    ("feeder_draining", "draining", "1 while the feeder drains."),
    ("feeder_clients", "sessions_open", "Clients with an open session."),
)
_TRAFFIC = {
    "messages": ("feeder_messages", "Messages, by plane and direction."),
    "bytes": ("feeder_message_bytes", "Bytes of messages."),
    "refused": ("feeder_refused_messages", "Messages refused, by reason."),
    "faults": ("feeder_faults", "Errors of the feeder itself."),
}
_LAGS = (
    (
        "policy_lag_versions",
        "lag",
        "Versions between the weights of the writer furthest behind and the published ones.",
    ),
    ("policy_lag_seconds", "lag_s", "Time between the publication of these two."),
    (
        "policy_lag_batch_versions",
        "batch_lag",
        "Versions between the oldest row of a queue's last batch and the published weights.",
    ),
)
_WEIGHTS = (
    ("weights_version", "weights", "The newest version that was published."),
    ("weights_age_seconds", "weights_age_s", "Time since it was published."),
    ("weights_waiting_clients", "weights_waiting", "Clients that wait for a newer version."),
)


def feeder_families(status: Status, bounds: tuple[int, ...]) -> Iterator[Family]:
    """Return the metrics of a status.

    ``bounds``: of the histogram of policy lags, see `FeederStatus`.
    """
    tables = status["tables"].items()
    info = Family("feeder_info", "gauge", "1; its labels say what the feeder is.")
    info.add(1, incarnation=status["incarnation"], wire_version=status["version"])
    yield info
    for name, key, help_ in _FEEDER:
        yield Family(name, "gauge", help_, [({}, float(status[key]))])
    ended = Family("feeder_clients_ended", "counter", "Clients that left, died or were lost.")
    for how, count in status["sessions_ended"].items():
        ended.add(count, how=how)
    yield ended
    traffic = {what: Family(name, "counter", help_) for what, (name, help_) in _TRAFFIC.items()}
    for name, count in status["counters"].items():
        what, _, rest = name.partition("_")
        plane, _, way = rest.rpartition("_")
        if what in traffic:
            labels = {"reason": rest} if what == "refused" else {"plane": plane, "direction": way}
            traffic[what].add(count, **({} if what == "faults" else labels))
    yield from traffic.values()
    yield from _columns(_TABLE, [({"table": name}, one) for name, one in tables])
    blocked = Family(
        "table_blocked_seconds",
        "counter",
        "Time in which the table let no reader draw (too few items, or the limiter), or no writer "
        "insert (the limiter, or a full queue).",
    )
    stale = Family("table_stale_items", "counter", "Items left out by max_lag, by reason.")
    steps = Family(
        "policy_lag_steps",
        "histogram",
        "Received steps by how many versions their weights were behind the published ones.",
    )
    lags = [(key, Family(name, "gauge", help_)) for name, key, help_ in _LAGS]
    for name, table in tables:
        for side in ("readers", "writers"):
            blocked.add(table[f"{side}_blocked_s"], table=name, side=side)
        for reason, count in table["stale"].items():
            stale.add(count, table=name, reason=reason)
        for policy, one in table["policies"].items():
            for key, family in lags:
                if key in one:
                    family.add(one[key], table=name, policy=policy)
        for policy, one in table["policy_lags"].items():
            steps.add(Histogram(bounds, one["counts"], one["sum"]), table=name, policy=policy)
    yield from (blocked, stale, *(family for _, family in lags), steps)
    for name, key, help_ in _WEIGHTS:
        family = Family(name, "gauge", help_)
        for policy, value in status[key].items():
            family.add(value, policy=policy)
        yield family
    text = "Published versions that were ignored as old."
    yield Family("weights_stale", "counter", text, [({}, status["weights_stale"])])
    yield from _columns(_CLIENT, [(_client(one), one) for one in status["sessions"]])


def _columns(
    columns: tuple[tuple[str, Kind, str, str], ...],
    rows: list[tuple[dict[str, str], Mapping[str, Any]]],
) -> Iterator[Family]:
    for name, kind, key, help_ in columns:
        found = [(labels, float(one[key])) for labels, one in rows if one[key] is not None]
        yield Family(name, kind, help_, [*found])


def _client(session: Mapping[str, Any]) -> dict[str, str]:
    return {
        "client": client_name(session),
        "host": str(session["host"]),
        "pid": str(session["pid"]),
        "session": str(session["id"]),
    }
