"""The limiter is Reverb's two formulas: traces worked out by hand, and the formulas themselves as
an oracle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_loader import ReplayBuffer
from async_loader.errors import ConfigError, Timeout
from async_loader.replay.limiter_arithmetic import LimiterState
from async_loader.replay.rate_limiter import UNLIMITED, MinSize, Queue, RateLimiter

NAMES = ("min_size_to_sample", "samples_per_insert", "error_buffer")
WORKED = RateLimiter(min_size_to_sample=100, samples_per_insert=4, error_buffer=20)
"""Reverb's own example: the cursor stays within [380, 420]."""

# What is done (and whether it may be), then how many more rows may be inserted and sampled.
Trace = list[tuple[str, int, bool, int, int]]
YES, NO, ANY = True, False, UNLIMITED

TRACES: dict[str, tuple[RateLimiter, Trace]] = {
    "worked example": (
        WORKED,
        [
            ("sample", 1, NO, 105, 0),  # 105 * 4 = 420
            ("insert", 99, YES, 6, 0),
            ("sample", 1, NO, 6, 0),
            # cursor 400: 20 above the lower bound, 20 = 5 * 4 below the upper one
            ("insert", 1, YES, 5, 20),
            ("sample", 21, NO, 5, 20),
            ("insert", 6, NO, 5, 20),
            ("insert", 5, YES, 0, 40),  # cursor 420
            ("insert", 1, NO, 0, 40),
            ("sample", 3, YES, 0, 37),  # 417: the next insert would make it 421
            ("sample", 1, YES, 1, 36),  # 416
            ("sample", 36, YES, 10, 0),  # 380
            ("sample", 1, NO, 10, 0),
            ("insert", 1, YES, 9, 4),
        ],
    ),
    "queue of 3": (
        Queue(3),
        [
            ("sample", 1, NO, 3, 0),
            ("insert", 4, NO, 3, 0),
            ("insert", 3, YES, 0, 3),
            ("insert", 1, NO, 0, 3),
            ("sample", 2, YES, 2, 1),
            ("delete", 2, YES, 2, 1),  # it was sampled once, and leaves
            ("sample", 2, NO, 2, 1),
            ("sample", 1, YES, 3, 0),
            ("delete", 1, YES, 3, 0),
            ("insert", 3, YES, 0, 3),
        ],
    ),
    "deletions count for the size, not for the ratio": (
        RateLimiter(min_size_to_sample=4, samples_per_insert=1, error_buffer=4),  # [0, 8]
        [
            ("insert", 8, YES, 0, 8),
            ("delete", 3, YES, 0, 8),  # five are left, but 8 were inserted
            ("insert", 1, NO, 0, 8),
            ("delete", 2, YES, 1, 0),  # three are left: too few to sample, and one more is free
            ("sample", 1, NO, 1, 0),
            ("insert", 1, YES, 0, 9),  # 9, beyond the upper bound
            ("sample", 9, YES, 8, 0),
            ("delete", 4, YES, 8, 0),
        ],
    ),
}


class Limits(LimiterState):
    def insert(self, n: int) -> None:
        self.inserted += n

    def sample(self, n: int) -> None:
        self.sampled += n

    def delete(self, n: int) -> None:
        self.deleted += n


@pytest.mark.parametrize(("config", "trace"), TRACES.values(), ids=TRACES)
def test_a_trace_worked_out_by_hand(config: RateLimiter, trace: Trace) -> None:
    limits = Limits(config)
    for number, (act, n, may, insertable, sampleable) in enumerate(trace):
        if act != "delete":
            assert getattr(limits, f"may_{act}")(n) is may, (number, act, n)
        if may:
            getattr(limits, act)(n)
        assert (limits.insertable(), limits.sampleable()) == (insertable, sampleable), (
            number,
            act,
            n,
        )


@dataclass
class Reverb:
    """rate_limiter.cc, word for word: CanInsert and CanSample."""

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float
    inserts: int = field(default=0)
    samples: int = field(default=0)
    deletes: int = field(default=0)

    def can_insert(self, num_inserts: int) -> bool:
        if self.inserts + num_inserts - self.deletes <= self.min_size_to_sample:
            return True
        return (
            num_inserts + self.inserts
        ) * self.samples_per_insert - self.samples <= self.max_diff

    def can_sample(self, num_samples: int) -> bool:
        if self.inserts - self.deletes < self.min_size_to_sample:
            return False
        return self.inserts * self.samples_per_insert - self.samples - num_samples >= self.min_diff


@st.composite
def limiters(draw: st.DrawFn) -> RateLimiter:
    spi = draw(st.sampled_from([0.1, 0.25, 1 / 3, 0.7, 1.0, 1.5, 2.0, math.pi, 8.0, 256.0]))
    least = 2 * max(1.0, spi)
    size = draw(st.integers(1, 50))
    start = spi * size
    low = start - draw(st.floats(0, 100)) if draw(st.booleans()) else -math.inf
    high = draw(
        st.sampled_from([math.inf, max(start, low + least), low + least + 7.3, low + 2 * least])
    )
    if high < start or math.isnan(high - low):
        high = math.inf
    if low == -math.inf and high == math.inf:
        return MinSize(size)
    if not high - low >= least:  # low + least rounds
        high += 1
    return RateLimiter(min_size_to_sample=size, samples_per_insert=spi, error_buffer=(low, high))


ACTS = st.lists(
    st.tuples(st.sampled_from(["insert", "sample", "delete"]), st.integers(1, 60)), max_size=40
)


@given(limiters(), ACTS)
def test_it_says_what_reverbs_formulas_say(
    config: RateLimiter, acts: list[tuple[str, int]]
) -> None:
    limits, reverb = (
        Limits(config),
        Reverb(config.samples_per_insert, config.min_size_to_sample, *config.bounds),
    )
    for act, n in acts:
        assert limits.may_insert(n) == reverb.can_insert(n)
        assert limits.may_sample(n) == reverb.can_sample(n)
        if act == "insert" and reverb.can_insert(n):
            limits.insert(n)
            reverb.inserts += n
        elif act == "sample" and reverb.can_sample(n):
            limits.sample(n)
            reverb.samples += n
        elif act == "delete" and reverb.inserts - reverb.deletes >= n:
            limits.delete(n)
            reverb.deletes += n


@given(limiters(), ACTS)
def test_what_may_be_done_at_most_may_be_done_and_no_more(
    config: RateLimiter, acts: list[tuple[str, int]]
) -> None:
    limits = Limits(config)
    for act, n in acts:
        _check_most(limits.insertable(), limits.may_insert)
        _check_most(limits.sampleable(), limits.may_sample)
        if act == "delete":
            limits.delete(min(n, limits.inserted - limits.deleted))
        else:
            getattr(limits, act)(min(n, getattr(limits, f"{act}able")()))


def _check_most(most: int, may) -> None:
    if most == UNLIMITED:
        assert may(1 << 40)
    else:
        assert most == 0 or may(most)
        assert not may(most + 1)


@given(limiters(), ACTS, st.integers(1, 300))
def test_a_batch_is_hopeless_only_if_no_number_of_inserts_makes_room_for_it(
    config: RateLimiter, acts: list[tuple[str, int]], batch: int
) -> None:
    limits = Limits(config)
    for act, n in acts:
        if act != "delete" and getattr(limits, f"may_{act}")(n):
            getattr(limits, act)(n)
    hope = limits.can_ever_sample(batch)
    for _ in range(5000):
        if limits.may_sample(batch) or not limits.may_insert(1):
            break
        limits.insert(1)
    assert limits.may_sample(batch) is hope


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 10), "min_size_to_sample is 0: give an integer of at least 1"),
        ((1, 0, 10), "samples_per_insert=0: it must be above 0"),
        ((1, math.inf, 10), "samples_per_insert=inf"),
        (
            (10, 8, 7.9),
            "leaves 15.8 samples between the bounds.*= 16: use an error buffer of 8 or more",
        ),
        ((1, 1, (0, 1)), "leaves 1 samples between the bounds.*use bounds 2 or more apart"),
        ((1, 1, (0, 1, 2)), "it must be a number, or two"),
        ((1, math.inf, None), "samples_per_insert=inf"),
    ],
)
def test_a_limiter_that_would_block_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RateLimiter(**dict(zip(NAMES, arguments, strict=True)))


@pytest.mark.filterwarnings("ignore:error_buffer")
def test_below_the_minimum_inserting_is_free_even_beyond_the_upper_bound() -> None:
    limits = Limits(RateLimiter(min_size_to_sample=10, samples_per_insert=2, error_buffer=(0, 8)))
    assert limits.insertable() == 10
    limits.insert(10)  # 20
    assert limits.insertable() == 0
    assert limits.can_ever_sample(20)
    limits.sample(14)  # 6
    assert limits.insertable() == 1
    assert not limits.can_ever_sample(20)


def test_messages_for_sampling_say_the_numbers_and_what_to_add() -> None:
    # [1000, 3000]
    limits = Limits(RateLimiter(min_size_to_sample=1000, samples_per_insert=2, error_buffer=1000))
    limits.insert(37)
    assert (
        limits.why_not_sample(256)
        == "sampling 256 needs the table to hold 1,000 items, it holds 37: add 963 more"
    )
    limits.insert(963)  # 2000
    limits.sample(1000)  # 1000
    assert limits.why_not_sample(256) == (
        "sampling 256 more would be 256 samples further ahead of inserting than 2 samples per "
        "insert and an error buffer of "
        "1,000 allow: insert at least 128 more"
    )


def ratio(samples: float, least: int = 100, error: float = 100) -> RateLimiter:
    return RateLimiter(
        min_size_to_sample=least, samples_per_insert=samples, error_buffer=error * max(1, samples)
    )


CHANGES: dict[str, Callable[[ReplayBuffer, RateLimiter | None, Path], ReplayBuffer]] = {
    "set": lambda table, limiter, _: setattr(table, "limiter", limiter) or table,  # type: ignore[func-returns-value]
    "from_checkpoint": lambda table, limiter, path: (
        table.save(path) and ReplayBuffer.from_checkpoint(path, limiter=limiter)
    ),
    "load": lambda table, limiter, path: (
        table.save(path) and loaded(ReplayBuffer(2_000, limiter=limiter), path)
    ),
}


def loaded(table: ReplayBuffer, path: Path) -> ReplayBuffer:
    table.load(path)
    return table


def until_it_waits(call: Callable[[], object], most: float) -> int:
    """Return how often it can be called before it waits, or one more than ``most``."""
    for count in range(int(most) + 1):
        try:
            call()
        except Timeout:
            return count
    return int(most) + 1


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ratio(1), ratio(4)),
        (ratio(8), ratio(2)),
        (ratio(4), ratio(0.25)),
        (ratio(2), ratio(2, least=400, error=50)),
        (ratio(2), ratio(2, least=10, error=5)),
        (MinSize(100), ratio(4)),
        (None, ratio(1)),
        (ratio(1), None),
    ],
    ids=str,
)
def test_another_limiter_holds_for_what_comes_from_then_on(
    how: str, before: RateLimiter | None, after: RateLimiter | None, tmp_path: Path
) -> None:
    """Whatever was inserted and sampled before, neither side may run further ahead than between
    the new bounds, nor waits for more than what is between them; and the ratio is kept.
    """
    table = ReplayBuffer(2_000, {"x": "int64"}, limiter=before, seed=0)
    least = 1 if before is None else before.min_size_to_sample
    for x in range(400):
        table.add(x=x, timeout_s=0)
        samples = 3 if before is None else int(before.samples_per_insert)
        if x >= least:
            table.sample(samples, timeout_s=0)
    changed = CHANGES[how](table, after, tmp_path)
    if after is None:
        changed.limiter = after = ratio(1)
    room = after.bounds[1] - after.bounds[0]
    most_inserts = room / after.samples_per_insert
    for _ in range(2):  # from one bound to the other, and back
        samples = until_it_waits(lambda: changed.sample(1, timeout_s=0), room)
        inserts = until_it_waits(lambda: changed.add(x=0, timeout_s=0), most_inserts)
    assert samples == pytest.approx(room, abs=max(1, after.samples_per_insert))
    assert inserts == pytest.approx(most_inserts, abs=1 + 1 / after.samples_per_insert)
    changed.sample(1)
