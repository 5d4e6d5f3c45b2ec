"""Queue tables: every item is delivered exactly once, and none is overwritten before, whatever the
rows hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_loader import (
    AsyncDataLoader,
    Field,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    MinSize,
    ReplayBuffer,
    Transitions,
    Uniform,
)
from async_loader.errors import ConfigError, Timeout
from async_loader.feeder.settings import ServerSettings
from async_loader.replay.base import row_format as r
from async_loader.replay.rate_limiter import OPEN_EPISODES, Queue
from tests.replay.test_replay_waiters import Doing

OBS = Field((), "int64", next="next_obs")
WIDE = Field((1 << 14,), "float32")
"""Of steps that leave a small table few spare rows."""


class Program:
    """A queue table and what was written to it, as lists; every call that would wait draws
    instead.
    """

    def __init__(
        self, capacity: int, size: int, stack: int, linked: bool, n: int, sampler: Any, batch: int
    ) -> None:
        obs = Field((), "int64", stack=stack, next="next_obs" if linked else None)
        schema = {"obs": obs, "reward": "float64", "terminated": "bool", "truncated": "bool"}
        self.settings = {"limiter": Queue(size), "max_times_sampled": 1}
        self.buffer = ReplayBuffer(capacity, schema, sampler=sampler, **self.settings)
        self.view = Transitions(n_steps=n) if n > 1 else None
        self.linked, self.batch = linked, batch
        self.written: list[int] = []  # ids of all steps, in order
        self.gone: set[int] = set()  # deleted, or given up
        self.got: list[int] = []
        self.last: dict[int, int | None] = {}
        self.episode: dict[int, list[int]] = {}  # of each stream, the open one
        self.stack, self.lookahead = stack, n if linked else n - 1
        if self.view is not None:
            self.buffer.source(view=self.view)

    def draw(self, most: int) -> bool:
        count = min(most, len(self.buffer))
        if count:
            self.got += self.buffer.sample(count, view=self.view, timeout_s=0)["index"].tolist()
        return bool(count)

    def write(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except Timeout:
                assert self.draw(self.batch), "neither writing nor drawing can go on"

    def add(self, stream: int, how: str) -> None:
        final = np.int64(-1) if self.linked and how == "truncated" else None
        step = {
            "obs": len(self.written),
            "reward": 1.0,
            "terminated": how == "terminated",
            "truncated": how == "truncated",
        }
        new = self.write(lambda: self.buffer.add(step, stream=stream, final_obs=final, timeout_s=0))
        self.written.append(new)
        self.last[stream] = new if how == "go on" else None
        self.episode.setdefault(stream, []).append(new)
        self.give_up(stream)
        if how != "go on":
            del self.episode[stream]

    def give_up(self, stream: int) -> None:
        """Steps that have waited for so long that other rows took the place of what they show."""
        table = self.buffer._table_state.table
        oldest, steps = int(table.g[r.CURSOR]) - table.window, self.episode.get(stream, [])
        for at in range(max(0, len(steps) - 1 - self.lookahead), len(steps)):
            if steps[max(0, at + 1 - self.stack)] < oldest and steps[at] not in self.got:
                self.gone.add(steps[at])

    def end(self, stream: int, terminated: bool) -> None:
        self.buffer.end_episode(stream=stream, terminated=terminated)
        self.give_up(stream)
        self.episode.pop(stream, None)
        last = self.last.pop(stream, None)
        if last is not None and self.linked and not terminated and last not in self.got:
            self.gone.add(last)  # nothing came after it to be bootstrapped from

    def delete(self, back: int) -> None:
        if back < len(self.written):
            one = self.written[-1 - back]
            if one not in self.got:
                self.buffer.delete([one])
                self.gone.add(one)

    def update(self, back: int) -> None:
        if back < len(self.written):
            self.buffer.update([self.written[-1 - back]], reward=np.array([2.0]))

    def save_and_load(self) -> None:
        with tempfile.TemporaryDirectory() as path:
            self.buffer.save(path)
            open_streams = [stream for stream, last in self.last.items() if last is not None]
            for stream in open_streams:  # an environment begins anew after a load
                self.end(stream, True)
            self.drain()
            self.buffer.save(path)
            self.buffer = ReplayBuffer.from_checkpoint(path)

    def drain(self) -> None:
        while self.draw(self.batch):
            pass

    def check(self) -> None:
        assert len(set(self.got)) == len(self.got), "an item came twice"
        for stream, last in list(self.last.items()):
            if last is not None:
                self.end(stream, True)
        self.drain()
        assert len(set(self.got)) == len(self.got), "an item came twice"
        assert set(self.written) - set(self.got) <= self.gone, "an item was lost"
        assert not set(self.got) & (set(self.got) - set(self.written))


operation = st.one_of(
    *[
        st.tuples(
            st.just("add"),
            st.integers(0, 2),
            st.sampled_from(["go on"] * 4 + ["terminated", "truncated"]),
        )
    ]
    * 5,
    st.tuples(st.just("end"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("draw"), st.integers(1, 6)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("update"), st.integers(0, 9)),
    st.tuples(st.just("save_and_load")),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.integers(1, 8),
    more=st.integers(0, 8),
    stack=st.integers(1, 3),
    linked=st.booleans(),
    n=st.integers(1, 3),
    batch=st.integers(1, 3),
    sampler=st.sampled_from([Fifo, Fifo, Lifo, Uniform, MinHeap, MaxHeap]),
    operations=st.lists(operation, min_size=5, max_size=80),
)
def test_every_item_of_a_queue_is_drawn_exactly_once(
    size, more, stack, linked, n, batch, sampler, operations
):
    capacity = size + stack + (n if linked else n - 1) + more
    program = Program(capacity, size, stack, linked, n, sampler(), batch)
    for name, *arguments in operations:
        getattr(program, name)(*arguments)
    program.check()


@pytest.mark.filterwarnings("ignore:a step that waited:RuntimeWarning")
def test_an_episode_that_stands_still_gives_its_last_step_up_and_stops_no_other() -> None:
    with ReplayBuffer.queue(8, {"obs": OBS, "who": "int64"}, capacity=16) as queue:
        queue.add(obs=-1, who=1, stream=1)
        got = []
        for t in range(400):
            queue.add(obs=t, who=0, stream=0, timeout_s=0)
            got += queue.sample(len(queue), timeout_s=0)["obs"].tolist() if len(queue) else []
        queue.add(obs=-2, who=1, stream=1, timeout_s=0)
        queue.end_episode(stream=1, final_obs=np.int64(-3), timeout_s=0)
        assert got == list(range(399))
        assert queue.sample(1, timeout_s=0)["obs"].tolist() == [-2]
        assert not len(queue)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [False, True])
def test_a_loader_delivers_each_item_of_a_queue_once_however_few_the_rows(
    workers: int, collate: bool
) -> None:
    """Rows of a large step have four spare ones: what was drawn would be overwritten before it is
    read.
    """
    schema = {"x": "int64", "pixels": ((200, 200), "float32")}
    buffer = ReplayBuffer(8, schema, sampler=Fifo(), limiter=Queue(8), max_times_sampled=1)

    def act() -> None:
        for t in range(160):
            buffer.add(x=t, pixels=np.full((200, 200), t, np.float32), timeout_s=60)

    def stacked(samples: list[Any]) -> dict[str, Any]:
        return {
            "x": np.array([one["x"] for one in samples]),
            "pixels": np.stack([one["pixels"] for one in samples]),
        }

    buffer.add(x=-1, pixels=np.zeros((200, 200), np.float32))  # compiled before waiting is timed
    buffer.sample(1)
    actor = Doing(act)
    got: list[int] = []
    collate_fn = stacked if collate else None
    with pytest.warns(
        UserWarning, match=r"2 ahead are 24 samples, and the queue holds \d+: prefetch at most"
    ):
        loader = AsyncDataLoader(
            buffer, 8, num_workers=workers, prefetch=2, timeout_s=60, collate_fn=collate_fn
        )
    with loader:
        for _ in range(20):
            batch = next(loader)
            assert (np.asarray(batch["pixels"])[:, 0, 0] == np.asarray(batch["x"])).all()
            got += np.asarray(batch["x"]).tolist()
    actor.done()
    assert got == list(range(160))


# -- what ReplayBuffer.queue and stack make --------------------------------------------------------


@given(
    size=st.integers(1, 40),
    stack=st.integers(1, 4),
    linked=st.booleans(),
    streams=st.integers(1, OPEN_EPISODES),
    ends=st.lists(st.sampled_from(["go on", "terminated", "truncated"]), min_size=1, max_size=50),
)
@settings(max_examples=60)
def test_as_many_items_as_its_size_can_wait_in_a_queue_however_episodes_end(
    size: int, stack: int, linked: bool, streams: int, ends: list[str]
) -> None:
    obs = Field((), "int64", stack=stack, next="next_obs" if linked else None)
    schema = {"obs": obs, "terminated": "bool", "truncated": "bool"}
    got: list[int] = []

    def draw(count: int) -> None:
        obs = queue.sample(count, timeout_s=0)["obs"]
        got.extend((obs[:, -1] if stack > 1 else obs).tolist())

    with ReplayBuffer.queue(size, schema) as queue:
        for number in range(6 * (size + 3 * streams)):
            stream, how = number % streams, ends[number % len(ends)]  # actors take turns
            final = -1 if linked and how == "truncated" else None
            step = {
                "obs": number,
                "terminated": how == "terminated",
                "truncated": how == "truncated",
            }
            try:
                queue.add(step, stream=stream, final_obs=final, timeout_s=0)
            except Timeout:
                assert len(queue) >= size, "a row was missing before the queue was full"
                draw(len(queue))
                queue.add(step, stream=stream, final_obs=final, timeout_s=0)
        while len(queue):
            draw(1)
    assert len(set(got)) == len(got), "an item came twice"


# -- settings that can never be served -------------------------------------------------------------

REFUSED = {
    "min_size beyond the capacity": (
        lambda: ReplayBuffer(1000, limiter=MinSize(5000)),
        "min_size_to_sample=5,000",
    ),
    "a stack of linked steps": (
        lambda: ReplayBuffer.stack(10, {"obs": OBS}),
        r"field 'obs' has a stack= or a next=.*use ReplayBuffer.queue\(size, schema\)",
    ),
    "the limiter of a queue where items are drawn again": (
        lambda: ReplayBuffer(64, limiter=Queue(64)),
        r"max_times_sampled=0 says otherwise: use ReplayBuffer.queue\(64, schema\)",
    ),
    "a queue of no items": (
        lambda: ReplayBuffer.queue(0),
        "size is 0: give an integer of at least 1",
    ),
    "what is no limiter": (
        lambda: ReplayBuffer(9, limiter=3),
        r"limiter=3: give a RateLimiter or MinSize\(n\)",
    ),
    "min_size of linked steps": (
        lambda: ReplayBuffer(50, {"obs": OBS}, limiter=MinSize(50)),
        "50 steps, of which 49 can be drawn while an episode is open.* use 49 or less, or raise "
        "the capacity by 1",
    ),
    "n beyond the capacity": (
        lambda: ReplayBuffer(100, {"reward": "float32"}).source(view=Transitions(n_steps=1000)),
        "999 after it.*use n_steps of 99 or less",
    ),
    "n that leaves fewer items than the minimum": (
        lambda: ReplayBuffer(100, {"reward": "float32"}, limiter=MinSize(95)).source(
            view=Transitions(n_steps=10)
        ),
        "min_size_to_sample=95.*91 can be drawn",
    ),
    "a queue of n-step returns": (
        lambda: ReplayBuffer(
            10, {"reward": "float32", "wide": WIDE}, limiter=Queue(10), max_times_sampled=1
        ).source(view=Transitions(5)),
        "a queue of 10.*raise the capacity by 3",
    ),
    "tables of a feeder, min_size": (
        lambda: ServerSettings.from_plain({"t": {"capacity": 1000, "limiter": MinSize(5000)}}),
        "min_size_to_sample=5,000",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_table_can_never_serve_is_refused_when_it_is_made(name: str) -> None:
    make, match = REFUSED[name]
    with pytest.raises(ConfigError, match=match):
        make()


def test_a_queue_hands_out_each_item_once_and_in_order() -> None:
    with ReplayBuffer.queue(64, {"x": "int64"}) as queue:
        queue.extend(x=np.arange(40))
        assert queue.sample(8)["x"].tolist() == list(range(8))
        assert queue.sample(32)["x"].tolist() == list(range(8, 40))
        assert queue.capacity == 64
        with pytest.raises(Timeout):
            queue.sample(1, timeout_s=0)
