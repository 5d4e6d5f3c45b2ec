"""What a metric is: a name, a kind, a text, and values by labels. Knows no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

PREFIX = "async_loader_"

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by size.

    Attributes
    ----------
    bounds : sequence of float
        Upper bounds of the buckets, without the last, endless one.
    counts : sequence of int
        Observations in each bucket alone: one more than ``bounds``.
    sum : float
        Of all observations.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float


@dataclass(slots=True)
class Family:
    """All values of one metric.

    Attributes
    ----------
    name : str
        Without `PREFIX`, with its unit; counters without ``_total``.
    samples : list of (dict, value)
        Labels, and a number or a `Histogram`.
    """

    name: str
    kind: Kind
    help: str
    samples: list[tuple[dict[str, str], float | Histogram]] = field(default_factory=list)

    @property
    def full_name(self) -> str:
        """The name that a scrape shows."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    def add(self, value: float | Histogram, **labels: object) -> None:
        """Add a value with these labels."""
        self.samples.append(({name: str(label) for name, label in labels.items()}, value))
