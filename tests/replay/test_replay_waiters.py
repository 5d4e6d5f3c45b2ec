"""Rate limits: who waits, for what, for how long, and what ends it."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting_rig import until

from async_loader import (
    AsyncDataLoader,
    Field,
    MinSize,
    RateLimiter,
    ReplayBuffer,
    Transitions,
    Uniform,
)
from async_loader.errors import AsyncLoaderError, ConfigError, Timeout, WouldDeadlock

PATIENCE_S = 60.0


class Doing:
    """A call in a thread of its own, and its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, name="actor")
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def done(self) -> Any:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def filled(limiter: RateLimiter | None, count: int, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(1000, {"x": np.int64}, limiter=limiter, seed=0, **options)
    buffer.extend(x=np.arange(count))
    return buffer


def test_inserting_waits_for_samples_in_reverbs_proportion() -> None:
    buffer = filled(RateLimiter(min_size_to_sample=100, samples_per_insert=4, error_buffer=20), 100)
    for n in range(5):
        buffer.add(x=n)
    actor = Doing(lambda: buffer.add(x=5))
    until(lambda: buffer.stats().waiting)
    assert "sample at least 4 more" in buffer.stats().waiting[0].reason
    buffer.sample(3)
    until(
        lambda: (
            buffer.stats().waiting and "sample at least 1 more" in buffer.stats().waiting[0].reason
        )
    )
    buffer.sample(1)
    assert actor.done() == 105
    assert buffer.stats().inserted == 106
    assert buffer.stats().sampled == 4


@pytest.mark.parametrize("call", ["add", "sample", "extend"])
def test_a_deadline_ends_a_wait_and_nothing_is_lost(call: str) -> None:
    buffer = filled(
        RateLimiter(min_size_to_sample=2, samples_per_insert=1.0, error_buffer=(0.0, 4.0)), 4
    )
    if call == "sample":
        buffer.sample(4)
        with pytest.raises(
            Timeout, match=r"0.01 s have passed, and still cannot sample: sampling 1 more"
        ):
            buffer.sample(1, timeout_s=0.01)
    elif call == "add":
        with pytest.raises(Timeout, match="still cannot insert"):
            buffer.add(x=9, timeout_s=0.01)
    else:
        buffer.sample(2)
        with pytest.raises(Timeout, match="2 of 5 steps are in"):
            buffer.extend(x=np.arange(5), timeout_s=0.01)
    assert not buffer.stats().waiting
    assert len(buffer) == (6 if call == "extend" else 4)


def test_a_wait_that_only_this_thread_could_end_raises_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the one that watches over this test's time is another
    monkeypatch.setattr("threading.active_count", lambda: 1)
    buffer = filled(
        RateLimiter(min_size_to_sample=2, samples_per_insert=1.0, error_buffer=(0.0, 4.0)), 4
    )
    with pytest.raises(WouldDeadlock, match="No other thread"):
        buffer.add(x=1)
    with pytest.raises(WouldDeadlock, match="needs the table to hold 10 items, it holds 0"):
        ReplayBuffer(10, {"x": np.int64}, limiter=MinSize(10)).sample(1)
    with pytest.raises(WouldDeadlock, match="No other thread"):
        buffer.add(x=1, timeout_s=math.inf)


def test_the_limiter_changes_while_others_wait() -> None:
    buffer = filled(
        RateLimiter(min_size_to_sample=2, samples_per_insert=1.0, error_buffer=(0.0, 4.0)), 4
    )
    actor = Doing(lambda: [buffer.add(x=n) for n in range(10)])
    until(lambda: buffer.stats().waiting)
    buffer.limiter = RateLimiter(
        min_size_to_sample=2, samples_per_insert=1.0, error_buffer=(0.0, 8.0)
    )
    until(lambda: len(buffer) == 8)
    buffer.limiter = None
    assert len(actor.done()) == 10
    assert buffer.limiter is None
    buffer.limiter = MinSize(2)
    assert buffer.sample(2)["x"].shape == (2,)


def test_a_warning_comes_once_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("async_loader.replay.table.waiters.WARN_AFTER_S", 0.02)
    buffer = filled(MinSize(10), 4)
    heard: list[str] = []

    def listening() -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batch = buffer.sample(1)
            heard.extend(str(one.message) for one in caught)
            return batch

    learner = Doing(listening)
    until(lambda: buffer.stats().waiting)
    learner.thread.join(0.2)
    buffer.extend(x=np.arange(6))
    learner.done()
    assert heard == [
        "waiting to sample for 0.02 s: sampling 1 needs the table to hold 10 items, it holds 4: "
        "add 6 more. "
        "The call goes on waiting; with timeout_s= it raises Timeout instead"
    ]


def test_three_actors_and_a_learner_never_leave_the_window() -> None:
    limiter = RateLimiter(min_size_to_sample=50, samples_per_insert=2, error_buffer=40)
    buffer = ReplayBuffer(500, {"x": np.int64}, limiter=limiter, seed=0)
    low, high = limiter.bounds
    outside: list[float] = []

    def act() -> None:
        for n in range(300):
            buffer.add(x=n)

    def learn() -> None:
        for _ in range(170):
            buffer.sample(10)
            stats = buffer.stats()
            cursor = stats.inserted * 2 - stats.sampled
            if not low <= cursor <= high:
                outside.append(cursor)

    actors, learner = [Doing(act) for _ in range(3)], Doing(learn)
    for one in (*actors, learner):
        one.done()
    assert not outside
    assert (buffer.stats().inserted, buffer.stats().sampled) == (900, 1700)


@pytest.mark.parametrize("loader", [False, True])
def test_closing_wakes_a_wait_for_the_very_first_step(loader: bool) -> None:
    buffer = ReplayBuffer(10, limiter=MinSize(1))
    batches = AsyncDataLoader(buffer, 2) if loader else None
    learner = Doing((lambda: next(batches)) if batches is not None else (lambda: buffer.sample(2)))
    until(lambda: buffer.stats().waiting)
    buffer.close()
    with pytest.raises(AsyncLoaderError, match="was closed"):
        learner.done()
    if batches is not None:
        batches.close()


def went(call: Callable[[], object]) -> bool:
    """Whether a call that may not wait has been made."""
    try:
        call()
    except (Timeout, WouldDeadlock):
        return False
    return True


@given(
    envs=st.integers(1, 6),
    min_size=st.integers(1, 8),
    per_insert=st.sampled_from([0.5, 1.0, 3.0]),
    more=st.integers(0, 4),
    batch=st.integers(1, 12),
    n=st.integers(1, 4),
    repeats=st.booleans(),
)
def test_inserting_or_sampling_can_go_on_however_many_steps_wait_for_their_successors(
    envs: int, min_size: int, per_insert: float, more: int, batch: int, n: int, repeats: bool
) -> None:
    schema = {"obs": Field((), "int64", next="next_obs"), "reward": "float32"}
    schema |= {"terminated": "bool", "truncated": "bool"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bounds that need a sampler at the same time
        limiter = RateLimiter(
            min_size_to_sample=min_size,
            samples_per_insert=per_insert,
            error_buffer=math.ceil((batch + per_insert * envs) / 2) + 2 + more,
        )
    view, steps, no = Transitions(n_steps=n), 0, np.zeros(envs, bool)
    with ReplayBuffer(
        1000, schema, limiter=limiter, sampler=Uniform(replacement=repeats), seed=0
    ) as buffer:
        writer = buffer.vector_writer(envs, autoreset="next_step")

        def append() -> None:
            obs = np.arange(envs) + 10 * steps
            writer.append(
                obs=obs, next_obs=obs + 10, reward=no, terminated=no, truncated=no, timeout_s=0
            )

        for _ in range(60):
            if went(append):
                steps += 1
                continue
            try:
                assert went(lambda: buffer.sample(batch, view=view, timeout_s=0))
            except ConfigError:  # as many items, of which none is drawn twice, never come
                assert not repeats
                break
        buffer.limiter = None
        drawn = buffer.sample(len(buffer))
        assert (drawn["next_obs"] == drawn["obs"] + 10).all()
