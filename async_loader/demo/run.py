"""The demo's wiring: collector thread, buffer, loader, learner. Prints nothing; a report looks on."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from async_loader import AsyncDataLoader, ReplayBuffer
from async_loader.demo.collector import Collector, Pace, Policy, Returns, make_envs
from async_loader.demo.dqn import Learner, one_torch_thread
from async_loader.demo.settings import Settings, Summary

Clock = Callable[[], float]


class Report(Protocol):
    """Looks on while the demo runs. Inside `watch`, `snapshot` may be called at any time and from any thread."""

    def watch(self, snapshot: Callable[[], Summary]) -> contextlib.AbstractContextManager[object]: ...


def run(settings: Settings, report: Report, *, clock: Clock = time.perf_counter) -> Summary:
    """Learn CartPole-v1 until the target is reached or the time is up.

    Raises
    ------
    MissingExtra
        Gymnasium is not installed.
    Exception
        Whatever went wrong in the collector or the loader.
    """
    with contextlib.closing(make_envs(settings.num_envs)) as envs, one_torch_thread():
        return Run(settings, envs, clock).until_done(report)


class Run:
    """One run's parts, and the learner's loop over them."""

    def __init__(self, settings: Settings, envs: Any, clock: Clock) -> None:
        num_actions = int(envs.single_action_space.n)
        torch.manual_seed(settings.seed)
        self._settings = settings
        self._clock = clock
        self._started = clock()
        self._waited_s = 0.0
        self._buffer = ReplayBuffer(capacity=settings.capacity, seed=settings.seed)
        self._learner = Learner(num_actions, settings.dqn)
        self._policy = Policy(
            copy.deepcopy(self._learner.online), num_actions, settings.dqn.policy_rate, np.random.default_rng(settings.seed)
        )
        self._pace = Pace(
            warmup_steps=settings.warmup_steps,
            steps_per_update=settings.steps_per_update,
            slack=4 * settings.num_envs,
        )
        self._returns = Returns(settings.window, settings.target)
        self._collector = Collector(settings, envs, self._policy, self._buffer, self._pace, self._returns, self._seconds)

    def until_done(self, report: Report) -> Summary:
        with self._loader() as loader, report.watch(self.snapshot):
            self._collector.start()
            try:
                self._learn(loader)
            finally:
                self._pace.end()
                self._collector.join()
            summary = self.snapshot()
        if self._collector.error is not None:
            raise self._collector.error
        return summary

    def snapshot(self) -> Summary:
        seconds = self._seconds()
        return Summary(
            settings=self._settings,
            solved=self._returns.reached,
            mean_return=self._returns.mean,
            env_steps=self._pace.env_steps,
            batches=self._pace.updates,
            learner_wait_fraction=self._waited_s / seconds if seconds else 0.0,
            seconds=seconds,
            episodes=tuple(self._returns.episodes),
        )

    def _learn(self, loader: AsyncDataLoader) -> None:
        while self._seconds() < self._settings.max_seconds:
            batch = self._next_batch(loader)
            if batch is None:
                return
            self._learner.update(batch)
            self._policy.follow(self._learner.online)
            self._pace.learned()

    def _next_batch(self, loader: AsyncDataLoader) -> dict[str, Tensor] | None:
        """A batch, or None when the run has ended. All that the learner waits for data, it waits here."""
        since = self._clock()
        batch: dict[str, Tensor] | None = next(loader) if self._pace.wait_to_learn() else None
        self._waited_s += self._clock() - since
        return batch

    def _loader(self) -> AsyncDataLoader:
        settings = self._settings
        return AsyncDataLoader(
            # Batches made before then, ahead of time, would repeat the very first steps.
            self._buffer.source(min_size=settings.warmup_steps),
            batch_size=settings.dqn.batch_size,
            device="cpu",
            num_workers=settings.num_workers,
            seed=settings.seed,
            timeout=settings.max_seconds,
        )

    def _seconds(self) -> float:
        return self._clock() - self._started
