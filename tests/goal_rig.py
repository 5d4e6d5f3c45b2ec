"""The hindsight goals that a table shows, from a list of its episodes: here and in a feeder."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from async_loader import Field, Hindsight
from tests.sequence_rig import InTable

GOAL = ((2,), "float64")
PLAIN = {"observation": ((), "float64"), "achieved_goal": GOAL, "desired_goal": GOAL}
REST = {"action": "float64", "reward": "float64", "terminated": "bool"}
STORED = {"obs": PLAIN, "next_obs": PLAIN, **REST}
LINKED = {
    "obs": {
        "observation": Field((), "float64", stack=3, next="next_obs"),
        "achieved_goal": Field(*GOAL, next="next_obs"),
        "desired_goal": Field(*GOAL, stack=2, next="next_obs"),
    },
    **REST,
}
GAMMA = 0.5


def reward_of(achieved: Any, desired: Any, info: dict[str, Any]) -> Any:
    return achieved[:, 0] - 2 * desired[:, 1] + info["action"]


def ended_at(achieved: Any, desired: Any, info: dict[str, Any]) -> Any:
    return (achieved[:, 0] + desired[:, 0]) % 3 == 0


class Step(NamedTuple):
    name: int
    reward: float
    terminated: bool


class Episode:
    """Steps, and the observations before, between and after them; an observation is a number, and
    what it has achieved is twice that number.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.seen: list[float] = []
        self.ended = False


class Episodes(InTable):
    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.all: list[Episode] = []
        self.cursor = 0
        self.values = iter(range(10_000))

    def obs(self, value: float) -> dict[str, Any]:
        goal = np.array([-1.0, -1.0])
        return {"observation": value, "achieved_goal": np.full(2, 2 * value), "desired_goal": goal}

    def add(self, stream: int, end: str) -> None:
        """Add a step, which goes on, ends, or ends without telling what was seen then."""
        if stream not in self.open:
            self.open[stream] = Episode()
            self.all.append(self.open[stream])
            self.open[stream].seen.append(float(next(self.values)))
        episode = self.open[stream]
        before, after = episode.seen[-1], float(next(self.values))
        step = {"obs": self.obs(before), "action": before, "reward": before, "stream": stream}
        if not self.linked:
            step["next_obs"] = self.obs(after)
        elif end == "seen":
            step["final_obs"] = self.obs(after)
        name = self.cursor
        assert self._add(**step, terminated=end != "no") in (name, None)
        self.cursor += 1
        episode.steps.append(Step(name, before, end != "no"))
        episode.seen.append(after)
        if end != "no":
            self.close(stream, final=self.linked and end == "seen")
            if self.linked and end == "unseen":
                episode.seen.pop()

    def truncate(self, stream: int) -> None:
        if stream in self.open:
            final = {"final_obs": self.obs(self.open[stream].seen[-1])} if self.linked else {}
            self._end_episode(stream=stream, **final)
            self.close(stream, final=self.linked)

    def close(self, stream: int, final: bool) -> None:
        self.open.pop(stream).ended = True
        self.cursor += final  # a final observation has an id of its own

    def delete(self, name: int) -> None:
        self.flush()
        if self.table.delete([name]).applied:
            self.deleted.add(name)

    def known(self, episode: Episode) -> int:
        """Observations of an episode of which the table knows what they achieved."""
        waits = self.linked and not episode.ended  # the newest comes with the next step
        return len(episode.seen) - waits

    def check(self, batch: dict[str, Any], view: Hindsight) -> int:
        """Check each row of a batch. Return how many have another goal."""
        places = {
            step.name: (episode, at)
            for episode in self.all
            for at, step in enumerate(episode.steps)
        }
        obs, after = batch["obs"], batch["next_obs"]
        for i, name in enumerate(batch["index"].tolist()):
            assert name not in self.deleted
            episode, at = places[name]
            taken = min(view.n_steps, len(episode.steps) - at)
            assert episode.ended or taken == view.n_steps
            unknown = at + taken >= self.known(episode)
            goal = obs["desired_goal"][i]
            goal = goal[-1] if self.linked else goal
            assert (obs["desired_goal"][i] == goal).all()
            assert (after["desired_goal"][i] == goal).all()
            if not batch["relabelled"][i]:
                assert goal.tolist() == [-1.0, -1.0]
                assert unknown or view.relabel_fraction < 1
                rewards = [step.reward for step in episode.steps[at : at + taken]]
                last = episode.steps[at + taken - 1].terminated
            else:
                assert not unknown
                assert goal.tolist() in self.allowed(episode, at, view)
                info = {"action": np.array(episode.seen[at : at + taken])}
                achieved = 2 * np.array(episode.seen[at + 1 : at + taken + 1])[:, None].repeat(2, 1)
                given = achieved, goal[None].repeat(taken, 0), info
                rewards = reward_of(*given).tolist()
                last = episode.steps[at + taken - 1].terminated
                if view.compute_terminated is not None:
                    ends = ended_at(*given)
                    last = bool(ends.any())
                    taken = int(ends.argmax()) + 1 if last else taken
                    rewards = rewards[:taken]
            total = sum(GAMMA**k * one for k, one in enumerate(rewards))
            assert batch["reward"][i] == pytest.approx(total)
            assert batch["terminated"][i] == last
            assert batch["discount"][i] == pytest.approx(0 if last else GAMMA**taken)
            shown = 2 * episode.seen[min(at + taken, len(episode.seen) - 1)]
            assert after["achieved_goal"][i].tolist() == [shown, shown]
            if self.linked:
                stack = [episode.seen[max(0, at - k)] for k in (2, 1, 0)]
                assert obs["observation"][i].tolist() == stack
        return int(batch["relabelled"].sum())

    def allowed(self, episode: Episode, at: int, view: Hindsight) -> list[list[float]]:
        newest = self.known(episode)
        first = {"future": at + 1, "final": newest - 1, "episode": 1}[view.strategy]
        return [[2 * value, 2 * value] for value in episode.seen[first:newest]]

    def drawable(self, view: Hindsight) -> int:
        """How many steps can be drawn, of a table that is not full."""
        ahead = max(1, view.n_steps - (not self.linked))
        return sum(
            step.name not in self.deleted
            for episode in self.all
            for step in episode.steps[: None if episode.ended else -ahead]
        )


VIEWS = st.builds(
    Hindsight,
    st.just(reward_of),
    strategy=st.sampled_from(["future", "final", "episode"]),
    relabel_fraction=st.sampled_from([0.0, 0.5, 1.0]),
    n_steps=st.integers(1, 4),
    gamma=st.just(GAMMA),
    info=st.just("action"),
    compute_terminated=st.sampled_from([None, ended_at]),
)
MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.integers(0, 2), st.sampled_from([*["no"] * 8, "seen", "unseen"])
        ),
        st.tuples(st.just("truncate"), st.integers(0, 2), st.none()),
        st.tuples(st.just("delete"), st.integers(0, 80), st.none()),
    ),
    min_size=1,
    max_size=100,
)


def play(model: Episodes, moves: list[Any]) -> None:
    """Make these moves."""
    for move, which, end in moves:
        getattr(model, move)(*((which, end) if move == "add" else (which,)))
    model.flush()
