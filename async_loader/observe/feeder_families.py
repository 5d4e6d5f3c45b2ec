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


def feeder_families(status: Status, bounds: tuple[int, ...]) -> Iterator[Family]:
    """Return the metrics of a status.

    ``bounds``: of the histogram of policy lags, see `FeederStatus`.
    """
    yield from _feeder(status)
    yield from _columns(
        _TABLE, [({"table": name}, table) for name, table in status["tables"].items()]
    )
    yield _blocked(status)
    yield _stale(status)
    yield from _policies(status, bounds)
    yield from _weights(status)
    yield from _columns(_CLIENT, [(_client(one), one) for one in status["sessions"]])


def _feeder(status: Status) -> Iterator[Family]:
    info = Family("feeder_info", "gauge", "1; its labels say what the feeder is.")
    info.add(1, incarnation=status["incarnation"], wire_version=status["version"])
    yield info
    for name, help_, value in (
        ("feeder_uptime_seconds", "Time since the start.", status["uptime_s"]),
        ("feeder_draining", "1 while the feeder drains.", status["draining"]),
        ("feeder_clients", "Clients with an open session.", status["sessions_open"]),
    ):
        yield Family(name, "gauge", help_, [({}, float(value))])
    ended = Family("feeder_clients_ended", "counter", "Clients that left, died or were lost.")
    for how, count in status["sessions_ended"].items():
        ended.add(count, how=how)
    yield ended
    yield from _traffic(status["counters"])


def _traffic(counters: Mapping[str, int]) -> Iterator[Family]:
    messages = Family("feeder_messages", "counter", "Messages, by plane and direction.")
    nbytes = Family("feeder_message_bytes", "counter", "Bytes of messages.")
    refused = Family("feeder_refused_messages", "counter", "Messages refused, by reason.")
    for name, count in counters.items():
        what, _, rest = name.partition("_")
        if what == "refused":
            refused.add(count, reason=rest)
        elif what in ("messages", "bytes"):
            plane, _, way = rest.rpartition("_")
            (messages if what == "messages" else nbytes).add(count, plane=plane, direction=way)
    yield from (messages, nbytes, refused)
    faults = counters["faults"]
    yield Family("feeder_faults", "counter", "Errors of the feeder itself.", [({}, faults)])


def _columns(
    columns: tuple[tuple[str, Kind, str, str], ...],
    rows: list[tuple[dict[str, str], Mapping[str, Any]]],
) -> Iterator[Family]:
    for name, kind, key, help_ in columns:
        family = Family(name, kind, help_)
        for labels, values in rows:
            value = values[key] if key in values else values[key.removesuffix("_total")]
            if value is not None:  # a feeder of an older version has no totals
                family.add(float(value), **labels)
        yield family


def _blocked(status: Status) -> Family:
    family = Family(
        "table_blocked_seconds",
        "counter",
        "Time in which the table let no reader draw (too few items, or the limiter), or no writer "
        "insert (the limiter, or a full queue).",
    )
    for name, table in status["tables"].items():
        family.add(table["readers_blocked_s"], table=name, side="readers")
        family.add(table["writers_blocked_s"], table=name, side="writers")
    return family


def _stale(status: Status) -> Family:
    family = Family("table_stale_items", "counter", "Items left out by max_lag, by reason.")
    for name, table in status["tables"].items():
        for reason, count in table["stale"].items():
            family.add(count, table=name, reason=reason)
    return family


def _policies(status: Status, bounds: tuple[int, ...]) -> Iterator[Family]:
    lag = Family(
        "policy_lag_versions",
        "gauge",
        "Versions between the weights of the writer furthest behind and the published ones.",
    )
    lag_s = Family("policy_lag_seconds", "gauge", "Time between the publication of these two.")
    given = Family(
        "policy_lag_batch_versions",
        "gauge",
        "Versions between the oldest row of a queue's last batch and the published weights.",
    )
    steps = Family(
        "policy_lag_steps",
        "histogram",
        "Received steps by how many versions their weights were behind the published ones.",
    )
    for name, table in status["tables"].items():
        for policy, one in table["policies"].items():
            if "lag" in one:
                lag.add(one["lag"], table=name, policy=policy)
                lag_s.add(one["lag_s"], table=name, policy=policy)
            if "batch_lag" in one:
                given.add(one["batch_lag"], table=name, policy=policy)
        for policy, lags in table["policy_lags"].items():
            steps.add(Histogram(bounds, lags["counts"], lags["sum"]), table=name, policy=policy)
    yield from (lag, lag_s, given, steps)


def _weights(status: Status) -> Iterator[Family]:
    for name, key, help_ in (
        ("weights_version", "weights", "The newest version that was published."),
        ("weights_age_seconds", "weights_age_s", "Time since it was published."),
        ("weights_waiting_clients", "weights_waiting", "Clients that wait for a newer version."),
    ):
        family = Family(name, "gauge", help_)
        for policy, value in status[key].items():
            family.add(value, policy=policy)
        yield family
    stale = status["weights_stale"]
    yield Family(
        "weights_stale", "counter", "Published versions that were ignored as old.", [({}, stale)]
    )


def _client(session: Mapping[str, Any]) -> dict[str, str]:
    return {
        "client": client_name(session),
        "host": str(session["host"]),
        "pid": str(session["pid"]),
        "session": str(session["id"]),
    }
