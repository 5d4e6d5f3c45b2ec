"""What befalls whom, and when: drawn from a seed. Does nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from proxy import DOWN, PLANES, UP

FAULTS_S = 0.5
"""How long a round's faults may take; then all is well, and has to become well again."""
MODES = ("replay", "prioritized", "queue")
KINDS = (
    "kill_actor", "kill_learner", "kill_server", "leave_learner", "stop",
    "cut", "cut_acks", "cut_mid", "delay", "lose", "half_open", "forget",
)  # fmt: skip

OF_PROCESSES = KINDS[:5]


@dataclass(frozen=True, order=True)
class Act:
    """One thing that happens at a moment of a round."""

    at: float
    name: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A round.

    Attributes
    ----------
    mode : str
        What the table is: see `MODES`. In a prioritized one learners change priorities.
    drops : frozenset of int
        Actors that drop their oldest rows.
    rows, batch, queue_size : int
        An actor's at most; a learner's; of a queue.
    keyed : bool
        Whether everything is encrypted.
    shared : bool
        Whether batches come in shared memory: over ipc, without a proxy, so that faults are those
        of processes.
    name : str
        Of one that was not drawn.
    left_s : float
        How long the last learner of a queue may take for what the others have left.
    """

    seed: int
    mode: str
    acts: tuple[Act, ...]
    actors: int = 1
    learners: int = 1
    drops: frozenset[int] = frozenset()
    rows: int = 3000
    batch: int = 4
    queue_size: int = 20
    keyed: bool = False
    shared: bool = False
    left_s: float = 60.0
    name: str = ""

    def __str__(self) -> str:
        how = self.mode + ", keyed" * self.keyed + ", shared memory" * self.shared
        who = f"{self.actors} actors (dropping: {sorted(self.drops)}), {self.learners} learners"
        acts = [
            f"  {act.at:5.2f} s  {act.name} {' '.join(map(str, act.args))}" for act in self.acts
        ]
        return "\n".join([f"{self.name or f'seed {self.seed}'}: {how}, {who}", *acts])


def plan_of(seed: int, seconds: float = FAULTS_S) -> Plan:
    """The round of a seed."""
    rng = random.Random(seed)
    mode, actors = MODES[seed % len(MODES)], 2
    shared = seed % 10 == 3
    acts: list[Act] = []
    for _ in range(rng.randint(2, 6)):
        acts += _fault(rng, rng.uniform(0.02, seconds), seconds, OF_PROCESSES if shared else KINDS)
    return Plan(
        seed,
        mode,
        tuple(sorted(acts, key=_moment)),
        actors,
        rng.choice((1, 2)),
        frozenset(number for number in range(actors) if mode != "queue" and rng.random() < 0.2),
        batch=rng.choice((1, 4, 8)),
        queue_size=rng.choice((20, 200)),
        keyed=seed % 10 == 7,
        shared=shared,
    )


def _moment(act: Act) -> float:
    return act.at


def _fault(rng: random.Random, at: float, seconds: float, kinds: tuple[str, ...]) -> list[Act]:
    """One fault, and its end where it has one of its own."""
    kind, plane, until = (
        rng.choice(kinds),
        rng.choice(PLANES),
        min(seconds, at + rng.uniform(0.02, 0.6)),
    )
    if kind == "stop":
        who = rng.choice(("actor", "learner", "server"))
        return [Act(at, f"stop_{who}", (rng.randrange(8),)), Act(until, f"continue_{who}")]
    if kind == "delay":
        return [
            Act(at, "weather", (plane, "delay_s", rng.choice((0.01, 0.1, 0.3)))),
            Act(until, "heal", (plane,)),
        ]
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
    if kind in ("cut", "forget"):
        return [Act(at, kind, (plane,))]
    return [Act(at, kind, (rng.randrange(8),))]
