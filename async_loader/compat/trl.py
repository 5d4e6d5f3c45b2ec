"""TRL's rollout worker, on a table of rollouts.

``AsyncGRPOTrainer(..., rollout_worker=RolloutWorker(table))`` trains on what generators and graders
put into the table, in this process or in others.
"""

from __future__ import annotations

import contextlib
import queue
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from async_loader.compat.drawn_groups import DrawnGroups
from async_loader.errors import Closed, Timeout
from async_loader.public_names import set_public_names
from async_loader.rollouts.schema import Ragged
from async_loader.rollouts.states import MEMBER_BITS

__all__ = ["SCHEMA", "RolloutWorker"]
set_public_names(globals())

SCHEMA = {
    "input_ids": Ragged("int32"),
    "completion_mask": Ragged("int8"),
    "old_log_probs": Ragged("float32"),
    "reward": "float32",
}
"""The fields that samples are made of. Further numbers of members become metrics."""


def normalized(reward: Any) -> Any:
    """Return the advantages of a group: its rewards less their mean, in standard deviations."""
    return (reward - reward.mean()) / (reward.std() + 1e-8)


class RolloutWorker(queue.Queue[Any]):
    """The learner's end of a table, as TRL's ``RolloutWorkerProtocol``.

    It is the trainer's queue, too: of the samples of a group, and behind them the table.

    One step of the trainer takes ``batch * size`` samples (``token_budget=0``). It reads a
    micro-batch ahead of its step, so that what it trains lags by one version more than the table
    says: give it ``max_staleness = max_lag + 1``.

    Threads: one at a time.

    Parameters
    ----------
    table : Rollouts | RolloutsClient
        With the fields of `SCHEMA`.
    advantage : callable
        Returns the advantages of a group, ``[members]``, of its rewards.
    **wishes
        See `Rollouts.source`.

    Attributes
    ----------
    rollout_buffer, metrics_queue : queue.Queue
        Samples; nothing.
    """

    def __init__(self, table: Any, advantage: Any = normalized, **wishes: Any) -> None:
        super().__init__()
        self._table, self._advantage = table, advantage
        self._drawn = DrawnGroups(table, **wishes)
        self._base = table.version - 1  # the trainer begins with version 1, also when it goes on
        self.rollout_buffer, self.metrics_queue = self, queue.Queue[Any]()

    def start(self) -> None:
        """Begin to wait: generators run on their own."""
        self._since = time.monotonic()

    def stop(self) -> None:
        """Give back what was not trained. May be called again."""
        self._drawn.source.close()

    def update_model_version(self, model_version: int) -> None:
        """There is a newer policy."""
        self._table.publish(self._base + model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise Closed if no group can come any more, and Timeout if none has come for this long,
        and none is being made. Groups that are made have a deadline.
        """
        stats, waited_s = self._table.stats(), time.monotonic() - self._since
        if stats.exhausted and stats.free == stats.slots:
            raise Closed(f"all of {stats.drawn} prompts are trained or ended: give `groups` more")
        if waited_s > stale_after_s and not stats.states["reserved"]:
            raise Timeout(f"no generator has a group, for {waited_s:.1f} s: {stats}")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next sample. Raises queue.Empty."""
        if self.empty():
            with contextlib.suppress(Timeout):
                self._draw(timeout if block else 0)
        return super().get(block=False)

    def _draw(self, timeout_s: float | None) -> None:
        for group in self._drawn.take(1, timeout_s):
            self._since = time.monotonic()
            rewards = np.array([one["reward"] for one in group])
            for one, advantage in zip(group, self._advantage(rewards), strict=True):
                sample = SimpleNamespace(
                    prompt=[],
                    completion=[],
                    input_ids=one["input_ids"].astype(int),
                    completion_mask=one["completion_mask"].astype(int),
                    old_log_probs=one["old_log_probs"],
                    advantage=float(advantage),
                    model_version=int(self._drawn.source.version - one["lag"]) - self._base,
                    group_id=int(one.pop("index")) >> MEMBER_BITS,
                    metrics={name: float(value) for name, value in one.items() if not value.ndim},
                    enqueued_at=None,
                )
                self.put(sample)
