"""What a table delivers equals what a list of episodes says, whatever is added, ended, deleted and
updated, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_loader import Field, ReplayBuffer, Transitions
from async_loader.replay.table.reader import ReplayReader
from async_loader.testing.debug import debug_state


@dataclass
class Step:
    id: int
    obs: int
    reward: float
    terminated: bool = False
    truncated: bool = False
    deleted: bool = False


@dataclass
class Episode:
    steps: list[Step] = field(default_factory=list)
    final: int | None = None
    closed: bool = False


class Reference:
    """Episodes in lists. Slow, and nothing to get wrong."""

    def __init__(
        self, capacity: int, stack: int, padding: str, linked: bool, n: int, gamma: float
    ) -> None:
        self.capacity, self.stack, self.padding, self.linked, self.n, self.gamma = (
            capacity,
            stack,
            padding,
            linked,
            n,
            gamma,
        )
        self.streams: dict[int, list[Episode]] = {}
        self.cursor = 0

    def take_id(self) -> int:
        self.cursor += 1
        return self.cursor - 1

    def open_episode(self, stream: int) -> Episode:
        episodes = self.streams.setdefault(stream, [])
        if not episodes or episodes[-1].closed:
            episodes.append(Episode())
        return episodes[-1]

    def add(
        self,
        stream: int,
        obs: int,
        reward: float,
        terminated: bool,
        truncated: bool,
        final: int | None,
    ) -> int:
        episode = self.open_episode(stream)
        step = Step(self.take_id(), obs, reward, terminated, truncated)
        episode.steps.append(step)
        if terminated or truncated:
            episode.closed = True
            if final is not None and self.linked:
                episode.final = final
                self.take_id()
        return step.id

    def end(self, stream: int, final: int | None, terminated: bool) -> None:
        episodes = self.streams.get(stream)
        if not episodes or episodes[-1].closed:
            return
        episode = episodes[-1]
        last = episode.steps[-1]
        last.terminated, last.truncated, episode.closed = terminated, not terminated, True
        if final is not None:
            episode.final = final
            self.take_id()
        elif self.linked and not terminated:
            # what followed is not known: the last observation is all that is left of that step
            episode.final = last.obs
            episode.steps.pop()
            if episode.steps:
                episode.steps[-1].truncated = True

    def live(self, step: Step) -> bool:
        return step.id >= self.cursor - self.capacity

    def items(self):
        """(id, obs stack, next_obs stack, reward, discount, terminated, truncated) of everything
        that can be drawn.
        """
        for episodes in self.streams.values():
            for episode in episodes:
                for t, step in enumerate(episode.steps):
                    found = self.item(episode, t, step)
                    if found is not None:
                        yield step.id, found

    def item(self, episode: Episode, t: int, step: Step):
        ahead = self.n if self.linked else self.n - 1
        shown = episode.steps[max(0, t - self.stack + 1) : t + 1]
        if step.deleted or not all(map(self.live, shown)):
            return None
        if not episode.closed and t + ahead > len(episode.steps) - 1:
            return None
        summed = episode.steps[t : t + self.n]
        end = t + len(summed)
        frames = [s.obs for s in episode.steps]
        frames.append(episode.final if episode.final is not None else frames[-1])
        reward = sum(self.gamma**i * s.reward for i, s in enumerate(summed))
        discount = 0.0 if summed[-1].terminated else self.gamma ** len(summed)
        return (
            self.stacked(frames, t),
            self.stacked(frames, end),
            reward,
            discount,
            summed[-1].terminated,
            summed[-1].truncated,
        )

    def stacked(self, frames: list[int], t: int) -> list[int]:
        if t >= len(frames):  # an unlinked table shows no next observation
            t = len(frames) - 1
        got = frames[max(0, t - self.stack + 1) : t + 1]
        pad = 0 if self.padding == "zero" else frames[0]
        return [pad] * (self.stack - len(got)) + got


step = st.tuples(
    st.just("add"),
    st.integers(0, 3),
    st.sampled_from(
        ["go on", "go on", "go on", "go on", "terminated", "terminated without", "truncated"]
    ),
)
many = st.tuples(
    st.just("extend"),
    st.integers(1, 12),
    st.sampled_from(["one stream", "each its own"]),
    st.integers(0, 2**31),
)
end = st.tuples(
    st.just("end"), st.integers(0, 3), st.sampled_from(["final", "nothing", "terminated"])
)
delete = st.tuples(st.just("delete"), st.integers(0, 60))
update = st.tuples(st.just("update"), st.integers(0, 60))
operations = st.lists(
    st.one_of(step, step, step, many, end, delete, update), min_size=1, max_size=40
)


class Both:
    """The same calls to a table and to the reference."""

    def __init__(self, capacity: int, stack: int, padding: str, linked: bool, n: int) -> None:
        obs = Field(
            (2,), np.int32, stack=stack, next="next_obs" if linked else None, padding=padding
        )
        schema = {"obs": obs, "reward": "float64", "terminated": "bool", "truncated": "bool"}
        self.buffer = ReplayBuffer(capacity, schema, seed=0)
        self.reference = Reference(capacity, stack, padding, linked, n, 0.5)
        self.view = Transitions(n_steps=n, gamma=0.5)
        self.linked = linked
        self.number = 0

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def add(self, stream: int, how: str) -> None:
        obs, final = self.next_number(), None
        terminated, truncated = how.startswith("terminated"), how == "truncated"
        if self.linked and how in ("terminated", "truncated"):
            final = self.next_number()
        given = None if final is None else np.full(2, final, np.int32)
        new = self.buffer.add(
            obs=np.full(2, obs, np.int32),
            reward=float(obs),
            terminated=terminated,
            truncated=truncated,
            stream=stream,
            final_obs=given,
        )
        assert new == self.reference.add(stream, obs, float(obs), terminated, truncated, final)

    def extend(self, count: int, how: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        streams = (
            rng.integers(0, 4, count)
            if how == "each its own"
            else np.full(count, rng.integers(0, 4))
        )
        ends = rng.random(count) < 0.2
        terminated = ends & (rng.random(count) < 0.5)
        truncated = ends & ~terminated
        obs = np.array([self.next_number() for _ in range(count)])
        finals = np.array([self.next_number() for _ in range(count)])
        given = np.repeat(finals[:, None], 2, 1).astype(np.int32) if self.linked else None
        stream = streams if how == "each its own" else int(streams[0])
        ids = self.buffer.extend(
            obs=np.repeat(obs[:, None], 2, 1).astype(np.int32),
            reward=obs.astype(np.float64),
            terminated=terminated,
            truncated=truncated,
            stream=stream,
            final_obs=given,
        )
        for i in range(count):
            final = int(finals[i]) if self.linked and ends[i] else None
            new = self.reference.add(
                int(streams[i]),
                int(obs[i]),
                float(obs[i]),
                bool(terminated[i]),
                bool(truncated[i]),
                final,
            )
            assert ids[i] == new

    def end(self, stream: int, how: str) -> None:
        final = self.next_number() if how == "final" and self.linked else None
        self.buffer.end_episode(
            stream=stream,
            final_obs=None if final is None else np.full(2, final, np.int32),
            terminated=how == "terminated",
        )
        self.reference.end(stream, final, how == "terminated")

    def known(self, back: int) -> Step | None:
        steps = [
            s for episodes in self.reference.streams.values() for e in episodes for s in e.steps
        ]
        return sorted(steps, key=lambda s: -s.id)[back] if back < len(steps) else None

    def delete(self, back: int) -> None:
        target = self.known(back)
        if target is not None:
            self.buffer.delete([target.id])
            target.deleted = target.deleted or self.reference.live(target)

    def update(self, back: int) -> None:
        target = self.known(back)
        if target is not None and not target.deleted:
            reward = float(self.next_number())
            applied = self.buffer.update([target.id], reward=np.array([reward])).applied
            if applied:
                target.reward = reward
            elif self.reference.live(target):
                # no item any more, but still part of its neighbours' returns
                assert target.id not in dict(self.reference.items())

    def check(self) -> None:
        expected = dict(self.reference.items())
        table = debug_state(self.buffer).state.table
        ids = np.sort(table.ids[np.flatnonzero(table.items.alive)])
        assert ids.tolist() == sorted(expected)
        assert len(self.buffer) == len(expected)
        if not len(ids):
            return
        reader = ReplayReader(
            table.storage,
            debug_state(self.buffer).state.read_plan(
                self.view, debug_state(self.buffer).state.sampler
            ),
        )
        into = reader.fresh(len(ids))
        assert not len(reader.fill(ids, into))
        self.compare(reader.schema.rebuild(into.fields), expected)
        drawn = self.buffer.sample(16, view=self.view)
        assert set(drawn["index"].tolist()) <= set(expected)
        self.compare(drawn, expected)

    def compare(self, batch, expected) -> None:
        for i, id_ in enumerate(batch["index"].tolist()):
            obs, after, reward, discount, terminated, truncated = expected[id_]
            shown = batch["obs"][i].reshape(-1, 2)
            assert shown[:, 0].tolist() == obs
            assert shown[:, 1].tolist() == obs
            if self.linked:
                assert batch["next_obs"][i].reshape(-1, 2)[:, 1].tolist() == after
            assert batch["reward"][i] == reward
            assert batch["discount"][i] == np.float32(discount)
            assert (batch["terminated"][i], batch["truncated"][i]) == (terminated, truncated)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    more=st.integers(0, 24),
    stack=st.integers(1, 4),
    padding=st.sampled_from(["repeat", "zero"]),
    linked=st.booleans(),
    n=st.integers(1, 4),
    operations=operations,
    view_first=st.booleans(),
)
def test_every_draw_equals_a_list_of_episodes(
    more, stack, padding, linked, n, operations, view_first
):
    # with less there is no item in the middle of an episode
    capacity = stack + (n if linked else n - 1) + more
    both = Both(capacity, stack, padding, linked, n)
    read_plan = (both.view, debug_state(both.buffer).state.sampler)
    if view_first:
        debug_state(both.buffer).state.read_plan(*read_plan)
    for name, *arguments in operations:
        getattr(both, name)(*arguments)
        if view_first:
            both.check()
    debug_state(both.buffer).state.read_plan(*read_plan)
    both.check()
