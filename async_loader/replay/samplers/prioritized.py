"""Prioritized and RankPrioritized: items with probabilities by their priorities, or their ranks."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from async_loader.name_hints import explain_wrong_names
from async_loader.replay.array_types import Floats
from async_loader.replay.samplers import priority_rules
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.ordered import HeapSampler
from async_loader.replay.samplers.priority_rules import Linear, number, schedule
from async_loader.replay.samplers.sampler import Draw, Priorities, Reading, Rows
from async_loader.validation import one_of, whole


class _Tree:
    """A tree for kernels: ``nodes``, of which those from ``first`` on are leaves. See
    row_kernels.py.
    """

    def __init__(self, rows: int, empty: float) -> None:
        from async_loader.replay.samplers import row_kernels  # late: see compiled.py

        self._k = row_kernels
        self.first, width = row_kernels.ROOT, 1
        while width < rows:
            self.first, width = 8 * (self.first - 6), 8 * width
        count = -(-(self.first + rows) // 8) * 8
        nodes = np.full(count + 8, empty)
        start = -nodes.ctypes.data // 8 % 8  # of a cache line
        self.nodes: Floats = nodes[start : start + count]

    def set(self, rows: Rows, values: Floats) -> None:
        """Set values.

        Of a row that occurs twice the last one counts. 256 of a million: about 6 us.
        """
        least = isinstance(self, MinTree)
        nodes = np.empty(len(rows), np.int64)
        self._k.add_up(self.nodes, self.first, rows, values, nodes, least)

    @property
    def leaves(self) -> Floats:
        """The values, one for each row."""
        return self.nodes[self.first :]

    @property
    def root(self) -> float:
        return float(self.nodes[self._k.ROOT])


class SumTree(_Tree):
    """Floats of 0 or more, and their sums."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, 0.0)

    def draw(self, numbers: Floats, *, stratified: bool) -> tuple[Rows, Floats]:
        """Draw a row for each number in [0, 1), in proportion to their values.

        Return rows and values. 256 of a million: about 12 us.
        """
        rows, values = np.empty(len(numbers), np.int64), np.empty(len(numbers))
        self._k.choose(self.nodes, self.first, numbers, stratified, rows, values)
        return rows, values


class MinTree(_Tree):
    """The smallest of values; infinity without any."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, np.inf)


class RankPrioritized(HeapSampler):
    """P(i) in proportion to 1 / rank(i) ** alpha, one item from each of batch_size parts of equal
    mass.

    Schaul et al. 2016, section 3.3 and appendix B.2.1: ranks are places in a binary heap, which is
    nearly sorted, and sorted from time to time. Weights as those of `Prioritized`, from the
    probabilities that were drawn by.

    Cost: for 256 of a million items about 80 us to draw and 130 us to update; sorting, 150 ms,
    every ``resort_every``.

    Parameters
    ----------
    alpha : float
    beta : float | Linear
    normalize : "batch" | "buffer" | "none"
    resort_every : int, optional
        Priorities that may be set before the heap is sorted; by default as many as there are items.

    Raises
    ------
    ConfigError
        For settings out of range.
    """

    weighted = True
    repeats = True

    @explain_wrong_names
    def __init__(
        self,
        alpha: float = 0.7,
        beta: float | Linear = 0.5,
        *,
        normalize: Normalize = "batch",
        resort_every: int | None = None,
    ) -> None:
        super().__init__()
        self.alpha = number("alpha", alpha, most=10.0)
        self._schedule = schedule("beta", beta, most=1.0)
        self.beta = beta if isinstance(beta, Linear) else self._schedule.start
        one_of("normalize", normalize, get_args(Normalize))
        if resort_every is not None:
            resort_every = whole("resort_every", resort_every, 1)
        self.normalize, self.resort_every = normalize, resort_every

    def _bound(self) -> None:
        self._mass = np.arange(1, self._items.rows + 1, dtype=np.float64) ** -self.alpha
        self._sums = np.cumsum(self._mass)

    def reset(self) -> None:
        super().reset()
        self._changes = 0

    def _put(self, rows: Rows, priority: Priorities) -> None:
        super()._put(rows, priority)
        self._changes += len(rows)

    def draw(self, count: int) -> Draw:
        rows = self._order
        held = len(rows)
        if self._changes >= (self.resort_every or held):
            rows[:] = rows[np.lexsort((self._ages[rows], self._keys[rows]))]
            self._places[rows] = np.arange(held)
            self._changes = 0
        beta = self._schedule.at(self._draws)
        self._draws += 1
        total = self._sums[held - 1]
        masses = (np.arange(count) + self._numbers.take(count)) * (total / count)
        places = np.minimum(np.searchsorted(self._sums[:held], masses, side="right"), held - 1)
        mass = self._mass[places]
        base = {"batch": mass.min(), "buffer": self._mass[held - 1], "none": total / held}[
            self.normalize
        ]
        scale = None if self.normalize == "none" else lambda: -beta * math.log(base)
        return Draw(rows[places], ((base / mass) ** beta).astype(np.float32), scale)

    def __repr__(self) -> str:
        settings = (
            f"alpha={self.alpha!r}, beta={self.beta!r}, normalize={self.normalize!r}, "
            f"resort_every={self.resort_every}"
        )
        return f"RankPrioritized({settings})"


Normalize = Literal["batch", "buffer", "none"]
NewPriority = Literal["max_ever", "max_now", "given"]


class Prioritized(Binding):
    """P(i) = m(i) / sum of m, with m(i) = (p(i) + eps) ** alpha (Schaul et al. 2016, section 3.3,
    equation 1).

    Weights are (N * P(i)) ** -beta (ibid., section 3.4), normalised. An item with p + eps = 0 is
    never drawn, also with alpha = 0; if all are, every item is as likely as every other, with
    weight 1.

    Cost: for 256 of a million items about 40 us to draw and 20 us to update; 2 us to insert one, 4
    us with a priority. Minima (``normalize="buffer"``) and maxima (``new_priority="max_now"``) add
    15 us to an update of 256, each.

    Parameters
    ----------
    alpha : float
        0 is uniform, 1 is proportional.
    beta : float | Linear
        How much of the bias the weights correct, from 0 to 1; a schedule counts draws.
    eps : float
        Added to every priority.
    stratified : bool
        One item from each of batch_size equal parts of the mass; else independently.
    normalize : "batch" | "buffer" | "none"
        Divide weights by the largest of the batch, by the largest that any item would have, or not
        at all.
    new_priority : "max_ever" | "max_now" | "given"
        What an item gets that comes without a priority: the largest priority ever given; the
        largest mass in the table; or an error. 1.0 while the table is empty.

    Raises
    ------
    ConfigError
        For settings out of range.
    """

    prioritized = True
    weighted = True
    repeats = True

    @explain_wrong_names
    def __init__(
        self,
        alpha: float = 0.6,
        beta: float | Linear = 0.4,
        eps: float = 1e-6,
        *,
        stratified: bool = True,
        normalize: Normalize = "batch",
        new_priority: NewPriority = "max_ever",
    ) -> None:
        super().__init__()
        self.alpha, self.eps = (
            number("alpha", alpha, most=2.0),
            number("eps", eps, most=priority_rules.LARGEST),
        )
        self._schedule = schedule("beta", beta, most=1.0)
        self.beta = beta if isinstance(beta, Linear) else self._schedule.start
        one_of("stratified", stratified, (True, False))
        one_of("normalize", normalize, get_args(Normalize))
        one_of("new_priority", new_priority, get_args(NewPriority))
        self.stratified, self.normalize, self.new_priority = stratified, normalize, new_priority
        self.gives_masses = False  # in place of weights, for a source that weighs by itself

    def _bound(self) -> None:
        # late: see compiled.py
        from async_loader.replay.samplers import row_kernels  # late: see compiled.py

        self._k = row_kernels

    def reset(self) -> None:
        rows = self._items.rows
        self._masses = SumTree(rows)
        self._least = MinTree(rows) if self.normalize == "buffer" else None
        # of negative masses
        self._most = MinTree(rows) if self.new_priority == "max_now" else None
        self._bounded = self._least is not None or self._most is not None

    def check(self, priority: Priorities) -> None:
        priority_rules.check(priority, given=self.new_priority == "given")

    def _mass(self, priority: Priorities) -> Floats:
        mass = np.empty(len(priority))
        self._k.raise_to(priority, self.eps, self.alpha, mass)
        return mass

    def insert(self, rows: Rows, priority: Priorities) -> None:
        if self._most is None:
            mass = self._mass(self._ever.fill(priority))
        else:
            top = -self._most.root
            if not 0 < top < np.inf or not self.alpha:
                top = 1.0
            new = top ** (1 / self.alpha) - self.eps if self.alpha else 1.0
            priority[np.isnan(priority)] = max(0.0, new)
            mass = self._mass(priority)
        self._set(rows, mass)

    def update(self, rows: Rows, priority: Priorities) -> None:
        self._ever.see(priority)
        self._set(rows, self._mass(priority))

    def update_by_id(self, geometry: Rows, ids: Rows, priority: Priorities) -> int:
        """See NOTE [shortcuts]."""
        sums = self._masses
        rows, nodes = np.empty((2, len(ids)), np.int64)
        mass = np.empty(len(ids))
        there, items, largest = self._k.update_by_id(
            geometry, ids, priority, self.eps, self.alpha, sums.nodes, sums.first, rows, mass,
            nodes,
        )  # fmt: skip
        if items:
            self._ever.see_one(largest)
            if self._bounded:
                self._set_bounds(rows[:items], mass[:items])
        return int(there)

    def remove(self, rows: Rows) -> None:
        self._masses.set(rows, np.zeros(len(rows)))
        for tree in (self._least, self._most):
            if tree is not None:
                tree.set(rows, np.full(len(rows), np.inf))

    def _set(self, rows: Rows, mass: Floats) -> None:
        self._masses.set(rows, mass)
        if self._bounded:
            self._set_bounds(rows, mass)

    def _set_bounds(self, rows: Rows, mass: Floats) -> None:
        if self._least is not None:
            self._least.set(rows, np.where(mass > 0, mass, np.inf))
        if self._most is not None:
            self._most.set(rows, -mass)

    def draw(self, count: int) -> Draw:
        if not self._masses.root > 0:
            self._draws += 1
            weight = np.full(count, 0.0 if self.gives_masses else 1.0, np.float32)
            return Draw(self._any_items(count), weight)
        base, beta = self._weighing()
        rows, mass = self._masses.draw(self._numbers.take(count), stratified=self.stratified)
        weight = np.empty(count, np.float32)
        self._k.weigh(mass, base, beta, weight)
        if self.normalize == "none" or self.gives_masses:
            return Draw(rows, weight)
        return Draw(rows, weight, lambda: -beta * math.log(base if base > 0 else float(mass.min())))

    def draw_into(self, reading: Reading) -> bool:
        """See NOTE [shortcuts].

        Returns False if no item has mass, or one could not be read.
        """
        sums = self._masses
        if not sums.root > 0 or reading.weight is None:
            return False
        base, beta = self._weighing()
        count = len(reading.ids)
        missing = self._k.draw_and_read(
            sums.nodes,
            sums.first,
            self._numbers.take(count),
            self.stratified,
            base,
            beta,
            np.empty(count),
            reading.geometry,
            reading.rows,
            reading.fields,
            reading.links,
            reading.ids,
            reading.weight,
        )
        if missing:
            self._draws -= 1
        return not missing

    def _weighing(self) -> tuple[float, float]:
        """Return what `row_kernels.weigh` needs for the next draw: the mass whose weight is 1, and
        beta.
        """
        beta = self._schedule.at(self._draws)
        self._draws += 1
        if self.gives_masses:
            return 1.0, -1.0
        if self._least is not None:
            return self._least.root, beta
        if self.normalize == "none":
            return self._masses.root / self._items.count, beta
        return 0.0, beta  # the least of the batch

    def totals(self) -> tuple[float, float | None]:
        """Return the sum of all masses, and the least above 0 if ``normalize`` keeps it."""
        least = None if self._least is None else self._least.root
        return self._masses.root, None if least == math.inf else least

    def __repr__(self) -> str:
        return (
            f"Prioritized(alpha={self.alpha!r}, beta={self.beta!r}, eps={self.eps!r}, "
            f"stratified={self.stratified}, "
            f"normalize={self.normalize!r}, new_priority={self.new_priority!r})"
        )
