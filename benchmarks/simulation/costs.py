"""What the simulation takes from measurement, and what it assumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Measured costs, by `benchmarks.simulation.measure`; in microseconds and bytes as named.

    Parameters
    ----------
    report_us, hold_us, answer_us, answer_shard_us : float
        The directory's processor time: for a report of a loss, for a question that waits, for an
        answer with the map, and for each shard in it.
    map_shard_bytes : float
        Of each shard in an answer.
    ray_us : float
        A call of an actor and its answer, to and from an idle one.
    session_us, heartbeat_us : float
        A shard's processor time for a new session, and for a PING and its answer.
    round_trip_us, call_us : float
        A small call of a shard and its answer; and each of many calls that are sent at once.
    shard_start_s : float
        Until a process of a shard answers.
    session_bytes : float
        A shard's memory for a session.
    learner_us, learner_shard_us : float
        A learner's processor time for a batch of 256 small rows, and for each shard it draws from.
    small_insert_us, small_insert_row_us, ... : float
        A shard's processor time for a message of rows, and for each row in it; for sampling the
        same of a batch. ``*_step_bytes`` is a step in a table, ``*_row_bytes`` a row of a batch.
    """

    report_us: float
    hold_us: float
    answer_us: float
    answer_shard_us: float
    map_shard_bytes: float
    ray_us: float
    session_us: float
    heartbeat_us: float
    round_trip_us: float
    call_us: float
    shard_start_s: float
    session_bytes: float
    learner_us: float
    learner_shard_us: float
    small_insert_us: float
    small_insert_row_us: float
    small_sample_us: float
    small_sample_row_us: float
    small_step_bytes: float
    small_row_bytes: float
    atari_insert_us: float
    atari_insert_row_us: float
    atari_sample_us: float
    atari_sample_row_us: float
    atari_step_bytes: float
    atari_row_bytes: float

    @classmethod
    def of(cls, measured: Mapping[str, Mapping[str, Any]]) -> Costs:
        """Return the costs of a record: ``{name: {"value": ..., "how": ...}}``."""
        return cls(**{field.name: float(measured[field.name]["value"]) for field in fields(cls)})

    def answer_s(self, shards: int) -> float:
        """Return the directory's seconds for an answer with a map."""
        return (self.answer_us + self.answer_shard_us * shards) / 1e6


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What cannot be measured on one host. Each is an ordinary data centre's.

    Parameters
    ----------
    latency_s, bytes_per_s : float
        Of the network: 0.2 ms, and 10 Gbit/s.
    shards_on_host : int
        What a lost host takes with it.
    host_back_s : float
        Until the shards of a lost host are started elsewhere.
    drain_s : float
        For a shard to save and end, in a rolling restart.
    rolled : int
        Shards that a simulated rolling restart goes through. All others would take as long each.
    """

    latency_s: float = 0.0002
    bytes_per_s: float = 1.25e9
    shards_on_host: int = 8
    host_back_s: float = 30.0
    drain_s: float = 1.0
    rolled: int = 4

    def plain(self) -> dict[str, Any]:
        """Return plain values for the record."""
        return asdict(self)
