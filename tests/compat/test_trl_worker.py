"""TRL's rollout worker, on a table of rollouts."""

from __future__ import annotations

import collections
import contextlib
import importlib
import importlib.util
import inspect
import queue
import threading
from multiprocessing.queues import Queue as ProcessQueue
from typing import Any, Protocol

import numpy as np
import pytest

from async_loader import Rollouts, connect
from async_loader.compat.trl import SCHEMA, RolloutWorker
from async_loader.errors import Closed, Timeout

pytestmark = pytest.mark.usefixtures("near_feeders")

TABLE = {"schema": {**SCHEMA, "length": "int32"}, "batch": 4, "max_lag": 1, "size": 2}
AHEAD = 2
"""Samples of a micro-batch."""


class RolloutWorkerProtocol(Protocol):
    """The published one, of trl 1.16.0; huggingface/trl f2cd577 has it without metrics_queue."""

    rollout_buffer: queue.Queue | ProcessQueue
    metrics_queue: queue.Queue | ProcessQueue

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update_model_version(self, model_version: int) -> None: ...

    def check_health(self, stale_after_s: float) -> None: ...


SAMPLE = [
    "prompt", "completion", "input_ids", "completion_mask", "old_log_probs", "advantage",
    "model_version", "group_id", "metrics", "enqueued_at",
]  # fmt: skip
"""The fields of the published RolloutSample."""


def theirs(module: str) -> Any:
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed")
    return importlib.import_module(f"trl.experimental.async_grpo.{module}")


@pytest.fixture(params=["here", "served"])
def table(request):
    if request.param == "here":
        with Rollouts(**TABLE) as one:
            yield one
    else:
        with connect("embedded", tables={"math": Rollouts(**TABLE)}) as client:
            yield client.table("math")


def add(table, group, reward=(0.0, 1.0)):
    for number, one in enumerate(reward):
        n = 2 + number
        group.append(
            input_ids=np.full(n, group.number), completion_mask=[0, *[1] * (n - 1)],
            old_log_probs=[-0.5] * n, reward=one, length=n,
        )  # fmt: skip


@contextlib.contextmanager
def generator(table, prompts, **options):
    def generate():
        with contextlib.suppress(Closed):
            for group in table.groups(prompts, timeout_s=60, **options):
                add(table, group)

    thread = threading.Thread(target=generate)
    thread.start()
    yield
    thread.join(60)


class Trainer:
    """Reads in the order of AsyncGRPOTrainer: a micro-batch ahead of its step, as accelerate's
    dispatcher does; it weighs a sample's age when it reads it.
    """

    def __init__(self, worker, version=0, max_staleness=2):
        self.worker, self.version, self.max_staleness = worker, version, max_staleness
        self.ahead, self.trained, self.staleness = [], [], []
        worker.update_model_version(self.publish())
        worker.start()

    def publish(self):
        self.version += 1
        return self.version

    def read(self):
        while True:
            try:
                sample = self.worker.rollout_buffer.get(timeout=0.05)
                break
            except queue.Empty:
                self.worker.check_health(60.0)
        self.staleness.append(self.version - sample.model_version)
        assert self.staleness[-1] <= self.max_staleness
        return sample

    def step(self, samples=8):
        step = self.ahead + [self.read() for _ in range(samples - len(self.ahead))]
        try:
            self.ahead = [self.read() for _ in range(AHEAD)]
        except Closed:
            self.ahead = []
        self.trained += [int(one.input_ids[0]) for one in step]
        self.worker.update_model_version(self.publish())


@pytest.mark.parametrize("installed", [False, True])
def test_the_worker_has_the_published_protocol(installed):
    protocol = RolloutWorkerProtocol
    if installed:
        protocol = theirs("async_grpo_trainer").RolloutWorkerProtocol
    with Rollouts(**TABLE) as table:
        worker = RolloutWorker(table)
        assert all(
            isinstance(getattr(worker, one), queue.Queue) for one in protocol.__annotations__
        )
        assert worker.metrics_queue.empty()
    for name in ("start", "stop", "update_model_version", "check_health"):
        published = inspect.signature(getattr(protocol, name), eval_str=True)
        assert inspect.signature(getattr(RolloutWorker, name), eval_str=True) == published
    taken = inspect.signature(queue.Queue.get).parameters
    assert inspect.signature(RolloutWorker.get).parameters.keys() == taken.keys()


def test_a_sample_has_the_published_fields(table):
    worker = RolloutWorker(table, advantage=lambda reward: reward - reward.mean())
    worker.start()
    for number in range(4):
        with table.reserve(number) as group:
            add(table, group, reward=(0.0, 1.0) if number else (2.0, 2.0, 2.0))
    samples = [worker.rollout_buffer.get(timeout=10) for _ in range(9)]
    assert all(vars(one).keys() == set(SAMPLE) for one in samples)
    assert [one.input_ids.tolist() for one in samples[2:5]] == [[0] * 4, [1] * 2, [1] * 3]
    assert samples[1].completion_mask.tolist() == [0, 1, 1]
    assert [one.input_ids.dtype for one in samples[:1]] == [np.dtype(int)]
    assert samples[0].old_log_probs.dtype == np.float32
    assert [one.advantage for one in samples[:5]] == [0, 0, 0, -0.5, 0.5]
    assert len({one.group_id for one in samples}) == 4
    assert samples[0].metrics == {"reward": 2, "length": 2, "lag": 0}
    worker.stop()
    if importlib.util.find_spec("trl"):
        sample = theirs("async_rollout_worker").RolloutSample
        assert set(SAMPLE) >= set(inspect.signature(sample).parameters)


def test_the_trainer_trains_each_prompt_once_within_the_lag(table):
    trainer = Trainer(RolloutWorker(table))
    with generator(table, range(40)):
        while len(trainer.trained) < 80:
            trainer.step()
    assert sorted(trainer.trained) == sorted(2 * list(range(40)))
    assert max(trainer.staleness) <= 2
    trainer.worker.stop()
    stats = table.stats()
    assert (stats.drawn, stats.trained, stats.free) == (40, 40, stats.slots)


def test_what_was_read_ahead_of_a_save_comes_again(table, tmp_path):
    path = tmp_path / "rollouts"
    trainer = Trainer(RolloutWorker(table))
    with generator(table, range(12)):
        trainer.step()
        trainer.step()
        assert len(trainer.ahead) == AHEAD
        table.save(path)
        saved = list(trainer.trained)
        trainer.step()
        trainer.worker.stop()
    table.load(path)
    again = Trainer(RolloutWorker(table))
    with generator(table, range(12)):
        while len(saved) + len(again.trained) < 24:
            again.step()
    assert sorted(saved + again.trained) == sorted(2 * list(range(12)))
    again.worker.stop()


def test_a_trainer_that_starts_again_counts_versions_from_its_own_start(table):
    table.publish(7)
    trainer = Trainer(RolloutWorker(table))
    assert table.version == 7
    with generator(table, range(4)):
        assert trainer.read().model_version == 1
    trainer.worker.stop()


def test_groups_that_were_made_before_the_first_sync_are_as_young_as_it(table):
    for number in range(8):
        with table.reserve(number) as group:
            add(table, group)
    table.finish()
    trainer = Trainer(RolloutWorker(table))
    trainer.step()
    trainer.step()
    stats = table.stats()
    assert (stats.trained, stats.ended, stats.given_back) == (8, {}, {})
    assert trainer.staleness == [0] * 10 + [1] * 6
    trainer.worker.stop()


def test_health_tells_the_end_from_silence_and_from_work():
    with Rollouts(**TABLE) as table:
        worker = RolloutWorker(table)
        worker.start()
        with pytest.raises(queue.Empty):
            worker.rollout_buffer.get(timeout=0.01)
        with pytest.raises(queue.Empty):
            worker.rollout_buffer.get_nowait()
        worker.check_health(60.0)
        with pytest.raises(Timeout, match="no generator has a group, for"):
            worker.check_health(0.0)
        with table.reserve(0) as group:
            worker.check_health(0.0)  # it has a deadline
            add(table, group)
        with pytest.raises(Timeout):
            worker.check_health(0.0)
        table.finish()
        assert worker.rollout_buffer.get(timeout=10).group_id == 0
        assert worker.rollout_buffer.qsize() == 1
        worker.rollout_buffer.get(timeout=10)
        with pytest.raises(queue.Empty):
            worker.rollout_buffer.get(timeout=10)
        with pytest.raises(Closed, match="all of 1 prompts are trained or ended"):
            worker.check_health(60.0)


def test_the_installed_trainers_dataset_reads_the_worker():
    trainer = theirs("async_grpo_trainer")
    with Rollouts(**TABLE) as table:
        worker, metrics = RolloutWorker(table), collections.defaultdict(list)
        worker.start()
        for number in range(4):
            with table.reserve(number) as group:
                add(table, group)
        dataset = trainer.RolloutQueueDataset(
            rollout_queue=worker.rollout_buffer, model_version_fn=lambda: 1,
            check_health_fn=worker.check_health, stale_after_s=60, metrics=metrics,
        )  # fmt: skip
        rows = next(iter(trainer.FixedCountBatcher(dataset, num_processes=2, microbatch_size=8)))
        assert sum(len(row.samples) for row in rows) == 8
        assert [len(row.groups) for row in rows] == [2, 2]
        assert metrics["sample/staleness_max"] == [0.0] * 8
