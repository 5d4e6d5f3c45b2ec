"""What befalls whom, and when: drawn from a seed. Does nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from proxy import DOWN, PLANES, UP

FAULTS_S = 0.7
"""How long a round's faults may take; then all is well, and has to become well again."""


@dataclass(frozen=True, order=True)
class Act:
    """One thing that happens at a moment of a round."""

    at: float
    name: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A round."""

    seed: int
    mode: str
    actors: int
    learners: int
    drops: frozenset[int]
    rows: int
    batch: int
    queue_size: int
    acts: tuple[Act, ...]
    left_s: float = 20.0
    """How long the last learner of a queue may take for what the others have left."""

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.mode}, {self.actors} actors (dropping: {sorted(self.drops)}), {self.learners} learners"
        ]
        return "\n".join(lines + [f"  {act.at:5.2f} s  {act.name} {' '.join(map(str, act.args))}" for act in self.acts])


def plan_of(seed: int, seconds: float = FAULTS_S) -> Plan:
    """The round of a seed."""
    rng = random.Random(seed)
    mode = "queue" if seed % 3 == 2 else "replay"
    acts: list[Act] = []
    for _ in range(rng.randint(3, 7)):
        acts += _fault(rng, rng.uniform(0.05, seconds), mode, seconds)
    actors = 2
    drops = frozenset(number for number in range(actors) if mode == "replay" and rng.random() < 0.2)
    return Plan(
        seed, mode, actors, rng.choice((1, 2)), drops, 3000, rng.choice((1, 4, 8)), rng.choice((20, 200)),
        tuple(sorted(acts, key=_moment)),
    )  # fmt: skip


def _moment(act: Act) -> float:
    return act.at


def _fault(rng: random.Random, at: float, mode: str, seconds: float) -> list[Act]:
    """One fault, and its end where it has one of its own."""
    kinds = ["kill_actor", "kill_learner", "stop", "cut", "cut_acks", "cut_mid", "delay", "lose", "half_open", "quiet"]
    kinds += ["kill_server"] if mode == "replay" else ["cut_acks"]
    kind, plane, until = rng.choice(kinds), rng.choice(PLANES), min(seconds, at + rng.uniform(0.02, 0.6))
    if kind == "stop":
        who = rng.choice(("actor", "learner", "server"))
        return [Act(at, f"stop_{who}", (rng.randrange(8),)), Act(until, f"continue_{who}")]
    if kind == "delay":
        return [Act(at, "weather", (plane, "delay_s", rng.choice((0.01, 0.1, 0.3)))), Act(until, "heal", (plane,))]
    if kind == "lose":  # what is under way is not little
        slow, fast = Act(at, "weather", (plane, "delay_s", 0.3)), Act(at + 0.1, "heal", (plane,))
        return [slow, Act(at + 0.1, "cut", (plane,)), fast]
    if kind == "half_open":
        ways = rng.choice(((UP,), (DOWN,), (UP, DOWN)))
        return [Act(at, "weather", (plane, "dead", ways)), Act(until, "heal", (plane,))]
    if kind == "cut_mid":
        way, after = rng.choice((UP, DOWN)), rng.choice((1, 100, 1000, 5000, 30000))
        return [Act(at, "weather", (plane, "cut_after", (way, after)))]
    if kind == "cut_acks":
        return [Act(at, "weather", ("insert", "cut_acks", rng.randint(1, 4)))]
    if kind == "cut":
        return [Act(at, "cut", (plane,))]
    return [] if kind == "quiet" else [Act(at, kind, (rng.randrange(8),))]
