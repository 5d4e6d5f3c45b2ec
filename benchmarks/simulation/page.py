"""The section of docs/operations.md, from the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from async_loader.scale.operations import _CALLS as CALLS
from async_loader.scale.shard_map import MOST_SHARDS
from benchmarks.readme import number
from benchmarks.simulation import directory, limiter, sizing
from benchmarks.simulation.costs import Costs
from benchmarks.simulation.sessions import LIMIT, WATCH_S

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BEGIN = "<!-- limits: written by ./scripts/bench simulation --record -->"
END = "<!-- end of limits -->"

Rows = Sequence[Sequence[object]]


def section(record: Mapping[str, Any]) -> str:
    """Return the section with its marks."""
    parts = [_head(record), _directory(record), _sessions(record), _limiter(record)]
    return "\n\n".join([BEGIN, *parts, _sizing(record), END])


def _table(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _head(record: Mapping[str, Any]) -> str:
    return (
        "## Limits of a cluster\n\n"
        "A cluster of hundreds of shards fits on no test machine, so these limits come from a "
        "simulation: `./scripts/bench simulation` plays the protocol event by event, for up to "
        "1,000 shards and 100,000 clients, with costs that were measured on one host of "
        f"{record['cpus']} shared cores ({record['date_of_run']}; `--measure` takes yours). "
        "The network is assumed: "
        f"{record['assumed']['latency_s'] * 1e3:g} ms and "
        f"{record['assumed']['bytes_per_s'] * 8e-9:g} Gbit/s. An actor's process is one client. "
        f"Rows above {MOST_SHARDS} shards are what would hold if that limit were raised."
    )


def most_text(clients: int) -> str:
    """Return a number of clients; the search ends at 128,000."""
    return "128,000 or more" if clients >= 128_000 else number(clients)


def _directory(record: Mapping[str, Any]) -> str:
    names = list(directory.SCENARIOS)
    rows = [
        [f"{one['shards']:,}", *(most_text(one[name]) for name in names)] for one in record["most"]
    ]
    at = next(one for one in record["most"] if one["shards"] == MOST_SHARDS)
    crowd = next(
        one
        for one in record["directory"]
        if (one["shards"], one["clients"], one["scenario"]) == (MOST_SHARDS, 100_000, "at rest")
    )
    return (
        "**Directory**: the most clients that have news of a change within "
        f"{directory.SLOW_S:g} s and whose questions are all answered in time.\n\n"
        + _table(["shards", *names], rows)
        + f"\n\nTo check the model: a real directory of {MOST_SHARDS} shards had answered 1,000 "
        f"questions {record['check']['measured_s']:.2g} s after a change, the model "
        f"{record['check']['simulated_s']:.2g} s.\n\n"
        "Each change of the map is an answer with the whole map to each client, and each "
        "client reports a loss that its map does not show yet. "
        f"With {MOST_SHARDS} shards the loss of a host saturates the "
        f"directory at {number(at['a host is lost'])} clients. At rest its thread is busy for "
        f"{crowd['utilisation']:.0%} with 100,000 clients; it holds {CALLS:,} questions at once. "
        "Clients go on with the map that they have "
        "meanwhile. Above it, let several actors share a process and its client, or use fewer "
        "and larger shards."
    )


def _sessions(record: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{one['clients']:,}",
            f"{one['resting']:.0%}",
            _back(one),
            f"{one['attempts']:.2g}",
            f"{one['memory_bytes'] / 2**20:.3g} MiB",
        ]
        for one in record["sessions"]
    ]
    most = record["most_sessions"]
    head = ["clients", "heartbeats take of a shard's core", "all back after a restart",
            "attempts of a client", "memory of a shard"]  # fmt: skip
    return (
        "**Sessions**: a client is connected to all shards, so more shards do not make the "
        "sessions of a shard fewer.\n\n"
        + _table(head, rows)
        + f"\n\nA shard takes {LIMIT:,} sessions by default (`limits.sessions`), which is the most "
        f"clients of a cluster of any size. Raise it up to {number(most['half'])} clients, where "
        f"heartbeats take half of each shard's core; it saturates at {number(most['all'])}, "
        "where they take all of it. A longer `heartbeat_s` makes them fewer in proportion (with "
        "`silence_s` of twice that or more)."
    )


def _back(one: Mapping[str, Any]) -> str:
    if one["open_s"] is None:
        return f"not within {WATCH_S:g} s"
    return f"{one['open_s']:.2g} s" + (", then lost again" if one["resting"] >= 1.0 else "")


def _limiter(record: Mapping[str, Any]) -> str:
    rows = [
        [
            f"{one['shards']:,}",
            f"{one['round_s']:.2g} s",
            f"{one['alone']['learner']:.0%}",
            f"{one['balanced']['learner']:.0%}",
            f"{one['balanced']['writers']:.0%}",
            f"{one['balanced']['whole']:.1%}",
            f"{one['least_window_s']:g} s{' or less' if one['least_window_s'] == 0.5 else ''}",
        ]
        for one in record["limiter"]
    ]
    work = limiter.Workload()
    head = ["shards", "round of the balance", "learner without it", "learner with it",
            "the slowest shard's writers", "ratio of the whole is off by",
            "error buffer for 97 %"]  # fmt: skip
    slow = [one["shards"] for one in record["limiter"] if one["balanced"]["learner"] < 0.97]
    outside = max(one["balanced"]["outside"] for one in record["limiter"])
    sums = (
        f"The sum of the cursors left the sum of the bounds by {number(outside)} samples at most."
        if outside > 0
        else "The sum of the cursors never left the sum of the bounds."
    )
    where = (
        f"It saturates at {slow[0]:,} shards: a shard earns more between two rounds than its error "
        "buffer holds"
        if slow
        else "It saturates at none of these sizes"
    )
    return (
        f"**Limiter**: writers of the busiest shard send {work.spread:g} times what those of the "
        "laziest send; each shard's error buffer is what its writers earn in "
        f"{work.window_s:g} s, and the learner wants {work.demand:g} times of what all earn. "
        "Shares are of what the writers' pace allows.\n\n"
        + _table(head, rows)
        + f"\n\n{sums} A single shard's own ratio "
        "does differ: batches take as many rows from each full table, whichever of them is "
        f"written faster. {where}. Give an `error_buffer` of "
        "`samples_per_insert * rows_per_s` of a shard, times the last column."
    )


def _sizing(record: Mapping[str, Any]) -> str:
    costs = Costs.of(record["measured"])
    rows = [
        [
            one["kind"],
            f"{one['memory_bytes'] / 2**30:.3g} GiB",
            f"{one['network_bytes_per_s'] / 1e6:,.3g} MB/s"
            if one["network_bytes_per_s"] < 1e9
            else f"{one['network_bytes_per_s'] / 1e9:.3g} GB/s",
            f"{one['learner']:.2g} cores",
            f"{number(one['inserts_per_s'])} or {number(one['samples_per_s'])} rows/s",
            number(one["on_link"]),
            one["on_host"],
        ]
        for one in record["sizing"]
    ]
    head = ["steps", "memory of 1,000,000", "network of a learner", "its shards' time",
            "a shard inserts or samples", "learners on a link", "shards on a host"]  # fmt: skip
    full = [one["kind"] for one in record["sizing"] if one["on_link"] < 1]
    link = (
        f"One learner with {full[0]} steps fills more than a link of 10 Gbit/s: put it on the "
        "shards' hosts, where batches are not sent, or spread the shards over several hosts."
        if full
        else "No learner fills a link of 10 Gbit/s."
    )
    return (
        f"**Sizing**: a learner takes {sizing.BATCHES_PER_S} batches of {sizing.BATCH} a second "
        f"from other hosts; writers send {sizing.CHUNK} rows in a message; {sizing.BUSY:.0%} of a "
        f"core and of a link are planned for. A host has {sizing.CORES} cores and "
        f"{sizing.MEMORY_BYTES >> 30} GiB, and each of its shards 1,000,000 steps.\n\n"
        + _table(head, rows)
        + f"\n\nShards on a host end at its cores or its memory. {link} A batch of "
        f"{sizing.BATCH} small rows takes {number(costs.learner_us)} us of the learner's process, "
        f"and {number(costs.learner_shard_us)} us for each shard, so that a learner saturates at "
        f"{number(sizing.most_batches_per_s(costs, MOST_SHARDS))} batches a second of "
        f"{MOST_SHARDS} shards, and at {number(sizing.most_batches_per_s(costs, 1_000))} of 1,000: "
        "use few shards that are full, larger batches, or more learners."
    )
