"""What a learner wants, and what its ranks get of one step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from async_loader.rollouts.states import Group

Owner = tuple[Hashable, int]
"""A client, and which of its sources."""


@dataclass(frozen=True, slots=True)
class Learner:
    """What a learner wants, on all its ranks. See `Rollouts.source`."""

    needs: tuple[str, ...]
    fields: tuple[str, ...] | None = None
    judges: bool = False
    max_times_sampled: int | None = 1
    tokens: int | None = None
    cost: tuple[float, float] = (1.0, 0.0)
    overlong: str = "alone"
    world_size: int = 1
    sampler: str = ""
    """As text: what tells one learner from another."""


@dataclass(slots=True, eq=False)
class Part:
    """What one rank gets of a step.

    Attributes
    ----------
    owner : Owner | None
        Who has it; ``None``: it waits.
    order : list of int | None
        The members of all ``groups``, counted through, as in the batch; ``None``: as they are.
    micro : list of int
        Where micro-batches begin and end.
    """

    groups: list[Group]
    order: list[int] | None
    micro: list[int]
    owner: Owner | None = None


@dataclass(slots=True, eq=False)
class Step:
    """One batch, for all ranks."""

    number: int
    version: int
    groups: list[Group] = field(default_factory=list)
    parts: dict[int, Part] = field(default_factory=dict)
