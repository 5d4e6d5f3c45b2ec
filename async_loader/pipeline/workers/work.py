"""What the workers of a pool do, as a door describes it, and what one worker remembers of it. Starts nothing.

A `Work` lives in every worker for as long as the pool does. Each iteration over the pool begins it anew, with what is
particular to that iteration; what `begin` returns does the tasks.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from async_loader.pipeline.workers import seeding
from async_loader.source import END

WorkerType = Literal["process", "thread"]
Kind = WorkerType | Literal["inline"]
Seeding = Literal["task", "iteration", "birth"] | None

__all__ = ["END", "IterationRegistry", "Kind", "Seeding", "Work", "WorkConfig", "WorkContext", "WorkerType"]


@dataclass(frozen=True, slots=True)
class WorkContext:
    """Where and for what a work begins.

    Attributes
    ----------
    worker : int
        0 to workers - 1; 0 when the consumer does the work itself.
    workers : int
        How many share the tasks of this iteration; 0 when the consumer does the work itself.
    kind : {"process", "thread", "inline"}
    iteration : int
        Counts the iterations of the pool.
    seed : int
        Of this worker in this iteration: that of the iteration plus the worker's number.
    state : Any
        What the iteration was given for its workers.
    first : bool
        Nothing was begun in this worker before.
    """

    worker: int
    workers: int
    kind: Kind
    iteration: int
    seed: int
    state: Any
    first: bool


class Work(Protocol):
    """What a pool's workers do. Travels to every worker once, or is inherited where they are forked.

    An attribute ``dataset`` is what ``torch.utils.data.get_worker_info().dataset`` shows in a worker process.
    """

    def begin(self, here: WorkContext) -> Callable[[Any], Any] | Iterator[Any]:
        """Called in each worker before its first task of an iteration; does not run concurrently within one worker.

        Returns
        -------
        callable | iterator
            ``callable(task)`` makes the batch of a task. For ``Pool.streams`` an iterator over this worker's batches.
        """


@dataclass(frozen=True, slots=True, weakref_slot=True)
class WorkConfig:
    """What a worker of a pool is told at its birth."""

    work: Any
    workers: int
    seeding: Seeding


@dataclass(slots=True)
class _IterationState:
    """One iteration in one worker."""

    seed: int
    first: int
    state: Callable[[], Any]
    do: Any = None
    asked: int = 0
    ended: bool = False


class IterationRegistry:
    """The iterations that one worker is at work on.

    Parameters
    ----------
    orders : WorkConfig
    number : int
        Of the worker.
    kind : {"process", "thread", "inline"}
        Global random generators are seeded, and torch is told who we are, in processes only: elsewhere both are the
        learner's.
    """

    def __init__(self, orders: WorkConfig, number: int, kind: Kind) -> None:
        self._orders = orders
        self._number = number
        self._kind = kind
        self._known: dict[int, _IterationState] = {}
        self._first = True

    def tell(self, iteration: int, seed: int, first: int, state: Callable[[], Any]) -> None:
        """There is an iteration; ``state`` is asked for when it begins here."""
        self._known[iteration] = _IterationState(seed, first, state)

    def knows(self, iteration: int) -> bool:
        return iteration in self._known

    def forget_before(self, oldest: int) -> None:
        """Iterations below this number are over."""
        for number in [n for n in self._known if n < oldest]:
            del self._known[number]

    def keep(self, live: Collection[int]) -> None:
        """All iterations but these are over: also later ones than an iteration that is held open."""
        for number in [n for n in self._known if n not in live]:
            del self._known[number]

    def forget(self, iteration: int) -> None:
        """This iteration is over."""
        self._known.pop(iteration, None)

    def do(self, iteration: int, seq: int, task: Any, *, stream: bool) -> Any:
        """The batch of a task, or END when this worker's stream has none any more. Raises what the work raises."""
        shift = self._known[iteration]
        if shift.ended:
            return END
        if shift.do is None:
            self._begin(iteration, shift, stream)
        seeds = self._kind == "process" and self._orders.seeding == "task"
        if stream:
            return self._next(shift, seeds=seeds)
        if seeds:
            seeding.seed_globals((shift.seed, shift.first + seq))
        return shift.do(task)

    def _next(self, shift: _IterationState, *, seeds: bool) -> Any:
        if seeds:  # the number of the task would depend on when the other streams end
            seeding.seed_globals((shift.seed, self._number, shift.asked))
        shift.asked += 1
        batch = END
        for batch in shift.do:  # noqa: B007 - not next(): what a loop assigns was not lost before, whenever a signal comes
            break
        if batch is END:
            shift.ended, shift.do = True, None
        return batch

    def _begin(self, iteration: int, shift: _IterationState, stream: bool) -> None:
        first, self._first = self._first, False
        here = WorkContext(
            self._number, self._orders.workers, self._kind, iteration, shift.seed + self._number, shift.state(), first
        )
        try:
            if self._kind == "process":
                self._settle_in(here, shift.seed)
            begun = self._orders.work.begin(here)
            shift.do = iter(begun) if stream else begun
        except BaseException as error:
            self._first = first  # what is done once was not done
            # A stream that did not begin has nothing to give, and says why once; one that a signal cut begins at the next call.
            shift.ended = stream and not isinstance(error, KeyboardInterrupt)
            raise

    def _settle_in(self, here: WorkContext, base: int) -> None:
        """Seeds as torch sets them in its workers, and torch's get_worker_info."""
        importlib.import_module("torch.utils.data")
        if self._orders.seeding == "iteration" or (here.first and self._orders.seeding in ("task", "birth")):
            seed_as_torch(base, here.worker)
        module: Any = sys.modules["torch.utils.data._utils.worker"]
        known, dataset = module._worker_info, getattr(self._orders.work, "dataset", None)
        seed = here.seed if known is None or self._orders.seeding != "birth" else known.seed
        if known is None or known.seed != seed:
            module._worker_info = module.WorkerInfo(id=here.worker, num_workers=here.workers, seed=seed, dataset=dataset)


def seed_as_torch(base: int, worker: int) -> None:
    """The global generators of a worker process exactly as torch's own workers have them."""
    torch: Any = sys.modules["torch"]
    random.seed(base + worker)
    torch.default_generator.manual_seed(base + worker)
    generate: Any = getattr(sys.modules["torch.utils.data._utils.worker"], "_generate_state", None)
    state = generate(base, worker) if generate is not None else np.random.SeedSequence((base, worker)).generate_state(4)
    np.random.seed(state)
