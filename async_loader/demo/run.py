"""Connects the demo's parts: actor processes, a feeder, a loader, the learner.

Output is the report's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from async_loader import AsyncDataLoader
from async_loader.demo.actor import NUM_ACTIONS, POLICY, TABLE, make_envs
from async_loader.demo.actors import Actors
from async_loader.demo.dqn import Learner, one_torch_thread
from async_loader.demo.settings import Settings, Summary
from async_loader.errors import AsyncLoaderError, Timeout
from async_loader.feeder import connect
from async_loader.observe import Dashboard

Clock = Callable[[], float]
_LOST_S = 10.0  # the demo cannot continue without its feeder
_LOOK_S = 1.0  # how long the learner waits for a batch before it checks the clock again
# number of such checks before the first batch: compiling kernels takes minutes on a slow machine
_START_LOOKS = 300
# timeouts of status requests to the feeder, while it runs and at the end
_STATUS_S, _LAST_STATUS_S = 1.0, 30.0


class Report(Protocol):
    """Observes the demo while it runs.

    Inside `watch`, `snapshot` may be called at any time and from any thread.
    """

    def watch(
        self, snapshot: Callable[[], Summary]
    ) -> contextlib.AbstractContextManager[object]: ...


def run(
    settings: Settings,
    report: Report,
    *,
    clock: Clock = time.perf_counter,
    make: Callable[[int], Any] = make_envs,
) -> Summary:
    """Learn CartPole-v1 until the target is reached or the time is up,
    counted from the first batch.

    Parameters
    ----------
    make : callable
        See `Actors`.

    Raises
    ------
    Broken
        An actor or the feeder died or failed.
    Timeout
        No batch arrived within five minutes.
    AsyncLoaderError
        The loader failed.
    """
    with one_torch_thread():
        return Run(settings, clock).until_done(report, make)


def table_of(settings: Settings) -> dict[str, Any]:
    """Return the settings of the feeder's table, as in a configuration file."""
    samples = settings.dqn.batch_size / settings.steps_per_update
    return {
        "capacity": settings.capacity,
        "seed": settings.seed,
        "limiter": {
            "min_size_to_sample": settings.warmup_steps,
            "samples_per_insert": samples,
            # Room for the batches that are made ahead.
            "error_buffer": max(4.0 * settings.dqn.batch_size, 2.0 * samples),
        },
        "schema": {
            # stored once
            "obs": {"dtype": "float32", "shape": [len(settings.dqn.obs_scale)], "next": "next_obs"},
            "action": "int64",
            "reward": "float32",
            "policy_version": "int64",  # status shows how far it is behind the newest "policy"
            "terminated": "bool",
            "truncated": "bool",
        },
    }


class Run:
    """The parts of one run, and the learner's loop."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        torch.manual_seed(settings.seed)
        self._settings = settings
        self._clock = clock
        self._started = clock()
        self._began: float | None = None  # time of the first batch
        self._waited_s = self._lags = 0.0
        self._blocked_s = 0.0  # of the table's reader, before the first batch
        self._learner = Learner(NUM_ACTIONS, settings.dqn)
        self._actors: Actors
        self._client: Any = None
        self._status: dict[str, Any] = {}

    def until_done(self, report: Report, make: Callable[[int], Any]) -> Summary:
        # Actors first: they import their modules while the feeder starts.
        with (
            contextlib.closing(Actors(self._settings, self._seconds, make)) as self._actors,
            self._feeder() as self._client,
        ):
            self._publish()
            with self._dashboard(), self._loader() as loader, report.watch(self.snapshot):
                self._actors.go(self._client.address, over=loader.close)
                self._learn(loader)
                summary = self.snapshot(_LAST_STATUS_S)
            self._actors.close()  # before the feeder: its end would look like a death to them
        if self._actors.error is not None:
            raise self._actors.error
        return summary

    def snapshot(self, status_s: float = _STATUS_S) -> Summary:
        seconds, updates, actors = self._seconds(), self._learner.updates, self._actors
        table = self._table(status_s)
        lag = table.get("policies", {}).get(POLICY, {})
        return Summary(
            settings=self._settings,
            solved=actors.returns.reached,
            mean_return=actors.returns.mean,
            env_steps=actors.env_steps,
            batches=updates,
            learner_wait_fraction=self._waited_s / seconds if seconds else 0.0,
            limiter_wait_fraction=self._limited_s(table) / seconds if seconds else 0.0,
            seconds=seconds,
            start_seconds=(self._clock() if self._began is None else self._began) - self._started,
            waits_for=self._waits_for(table),
            inserts_per_s=table.get("inserts_per_s_mean", 0.0),
            samples_per_insert=table.get("samples_per_insert", 0.0),
            policy_lag=lag.get("lag", 0),
            policy_lag_s=lag.get("lag_s", 0.0),
            drawn_policy_lag=self._lags / updates if updates else 0.0,
            episodes=tuple(actors.returns.episodes),
        )

    def _table(self, status_s: float) -> dict[str, Any]:
        """Return the table's status; the previous one if the feeder does not answer in time."""
        with contextlib.suppress(AsyncLoaderError):
            self._status = self._client.status(timeout_s=status_s)
        return self._status["tables"][TABLE] if self._status else {}

    def _limited_s(self, table: dict[str, Any]) -> float:
        """Return how long the learner has waited for the limiter, at most: batches that were made
        before lie ready when it begins to hold up the reader.
        """
        blocked_s: float = table.get("readers_blocked_s", 0.0)
        return min(self._waited_s, max(0.0, blocked_s - self._blocked_s))

    def _waits_for(self, table: dict[str, Any]) -> str:
        """Return the reason why learning has not started yet."""
        if self._began is not None:
            return ""
        if not table or not table["inserted"]:
            return "the actors' first steps; kernels are compiled once on each machine (about 15 s)"
        return f"the first {self._settings.warmup_steps:,} steps, {table['inserted']:,} inserted"

    def _learn(self, loader: AsyncDataLoader) -> None:
        looks = 0
        while self._seconds() < self._settings.max_seconds:
            try:
                batch = self._next_batch(loader)
            except Timeout:  # check the clock
                looks += self._began is None
                if looks < _START_LOOKS:
                    continue
                raise
            if batch is None:
                return
            if self._began is None:
                self._blocked_s = self._table(_STATUS_S).get("readers_blocked_s", 0.0)
                self._began, self._waited_s = self._clock(), 0.0
            self._learner.update(batch)
            self._lags += self._learner.updates - batch["policy_version"].double().mean().item()
            if self._learner.updates % self._settings.publish_every == 0:
                self._publish()

    def _next_batch(self, loader: AsyncDataLoader) -> dict[str, Tensor] | None:
        """Return a batch, or None if the run has ended.

        Measures the time that the learner waits.
        """
        since = self._clock()
        try:
            return next(loader, None)
        finally:
            self._waited_s += self._clock() - since

    def _publish(self) -> None:
        self._client.publish(
            POLICY, self._learner.policy.state_dict(), version=self._learner.updates
        )

    def _feeder(self) -> Any:
        return connect("embedded", tables={TABLE: table_of(self._settings)}, on_disconnect=_LOST_S)

    def _dashboard(self) -> contextlib.AbstractContextManager[object]:
        port = self._settings.dashboard_port
        if port is None:
            return contextlib.nullcontext()
        return Dashboard(lambda: self._client.status(timeout_s=_STATUS_S), port)

    def _loader(self) -> AsyncDataLoader:
        settings = self._settings
        source = self._client.table(TABLE).source(seed=settings.seed, prefetch=2)
        return AsyncDataLoader(
            source, batch_size=settings.dqn.batch_size, device="cpu", timeout_s=_LOOK_S
        )

    def _seconds(self) -> float:
        """Return the seconds of learning."""
        return 0.0 if self._began is None else self._clock() - self._began
