"""What workers do, and what one worker remembers of it. Starts nothing.

A `Work` lives in every worker for as long as its loader does. Each iteration begins it anew, with
the state of that iteration; what `begin` returns does the tasks.
"""

from __future__ import annotations

import importlib
import random
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from async_loader import tensors
from async_loader.lifecycle import EndFlag, WaitClosed
from async_loader.source import END, Seed


def seed_globals(seed: Seed) -> None:
    """Seed them for one chunk of one batch: the same seed gives the same chunk in any worker.

    torch's own is left out while the worker has not imported torch.
    """
    state = np.random.SeedSequence(seed).generate_state(2)
    random.seed(int(state[0]))
    np.random.seed(state[1])
    torch = tensors.loaded_torch()
    if torch is not None:
        # The CPU's generator alone: torch.manual_seed goes through every device's and costs 150
        # times as much.
        torch.default_generator.manual_seed(int(state[0]))


def seed_as_torch(base: int, worker: int) -> None:
    """The global generators of a worker process exactly as torch's own workers have them."""
    torch: Any = sys.modules["torch"]
    random.seed(base + worker)
    torch.default_generator.manual_seed(base + worker)
    generate: Any = getattr(sys.modules["torch.utils.data._utils.worker"], "_generate_state", None)
    state = (
        generate(base, worker)
        if generate is not None
        else np.random.SeedSequence((base, worker)).generate_state(4)
    )
    np.random.seed(state)


WorkerType = Literal["process", "thread"]
Kind = WorkerType | Literal["inline"]
Seeding = Literal["task", "iteration", "birth"] | None

__all__ = [
    "END",
    "Kind",
    "Seeding",
    "Work",
    "WorkContext",
    "WorkerConfig",
    "WorkerState",
    "WorkerType",
]


T = TypeVar("T")


Ending: TypeAlias = EndFlag | threading.Event
"""Says, without a system call, whether the loader closes."""

NEVER: Ending = threading.Event()
"""Where the consumer does the work itself: its own call ends it."""


def while_open(jobs: Iterable[T], ending: Ending) -> Iterator[T]:
    """The jobs one by one.

    Raises
    ------
    Closed
        In place of a job: the loader closes. The job at hand comes to its end: it may be in the
        middle of writing a file.
    """
    for job in jobs:
        if ending.is_set():
            raise WaitClosed("the loader was closed between two jobs of a batch")
        yield job


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
    ending : Ending
        Whether the loader closes, see `while_open`.
    """

    worker: int
    workers: int
    kind: Kind
    iteration: int
    seed: int
    state: Any
    first: bool
    ending: Ending = NEVER


class Work(Protocol):
    """What workers do. Travels to every worker once, or is inherited where they are forked.

    An attribute ``dataset`` is what ``torch.utils.data.get_worker_info().dataset`` shows in a
    worker process. A method ``prepare(number, kind)`` is called when a worker starts; its failure
    breaks the loader.
    """

    def begin(self, here: WorkContext) -> Callable[[Any], Any] | Iterator[Any]:
        """Called in each worker before its first task of an iteration; does not run concurrently
        within one worker.

        Returns
        -------
        callable | iterator
            ``callable(task)`` makes the batch of a task. For ``Engine.streams`` an iterator over
            this worker's batches; its attribute ``given``, where it has one, says how many came
            before them.
        """


@dataclass(frozen=True, slots=True, weakref_slot=True)
class WorkerConfig:
    """What a worker is told when it starts.

    Attributes
    ----------
    work : Work
    workers : int
    seeding : {"task", "iteration", "birth"} | None
        When the global random generators of a worker process are seeded, see `Engine`. ``None``:
        the work does it.
    torch_workers : bool
        Worker processes are torch's kind: they have torch.utils.data and its get_worker_info.
    number : int
        0 to workers - 1.
    """

    work: Any
    workers: int
    seeding: Seeding
    torch_workers: bool = True
    number: int = 0


@dataclass(slots=True)
class _IterationState:
    """One iteration in one worker."""

    seed: int
    first: int
    state: Callable[[], Any]
    do: Any = None
    asked: int = 0
    ended: bool = False


@dataclass(eq=False)
class WorkerState:
    """What one worker remembers: its config, and the iterations that it is at work on.

    Parameters
    ----------
    config : WorkerConfig
    kind : {"process", "thread", "inline"}
        Global random generators are seeded, and torch is told the worker's number, in processes
        only: elsewhere both belong to the learner.
    ending : Ending
        Whether the loader closes.

    Attributes
    ----------
    known : dict
        The iterations, by their numbers.
    """

    config: WorkerConfig
    kind: Kind
    ending: Ending = NEVER
    known: dict[int, _IterationState] = field(default_factory=dict)
    _first: bool = True

    def prepare(self) -> None:
        """Let the work prepare itself, before the first task. Raises what it raises."""
        prepare = getattr(self.config.work, "prepare", None)
        if prepare is not None:
            prepare(self.config.number, self.kind)

    def tell(
        self,
        iteration: int,
        seed: int,
        first: int,
        live: Collection[int],
        state: Callable[[], Any],
    ) -> None:
        """Add an iteration, or give it a new state, which is called when it begins here. All that
        are not among ``live`` are over.
        """
        known = {number: one for number, one in self.known.items() if number in live}
        self.known = known | {iteration: _IterationState(seed, first, state)}

    def do(self, iteration: int, seq: int, task: object, *, stream: bool) -> Any:
        """The batch of a task, or END when this worker's stream has none any more.

        Raises what the work raises.
        """
        spec = self.known[iteration]
        if spec.ended:
            return END
        if spec.do is None:
            self._begin(iteration, spec, stream)
        seeds = self.kind == "process" and self.config.seeding == "task"
        if stream:
            return self._next(spec, seeds=seeds)
        if seeds:
            seed_globals((spec.seed, spec.first + seq))
        return spec.do(task)

    def _next(self, spec: _IterationState, *, seeds: bool) -> Any:
        if seeds:  # the number of the task would depend on when the other streams end
            seed_globals((spec.seed, self.config.number, spec.asked))
        spec.asked += 1
        batch = next(spec.do, END)
        if batch is END:
            spec.ended, spec.do = True, None
        return batch

    def _begin(self, iteration: int, spec: _IterationState, stream: bool) -> None:
        first, self._first = self._first, False
        config = self.config
        here = WorkContext(
            config.number,
            config.workers,
            self.kind,
            iteration,
            spec.seed + config.number,
            spec.state(),
            first,
            self.ending,
        )
        try:
            if self.kind == "process" and config.torch_workers:
                self._seed_as_torch_does(here, spec.seed)
            begun = config.work.begin(here)
            spec.do = iter(begun) if stream else begun
            if stream:  # one that goes on shall not repeat the random numbers of its first batches
                spec.asked = getattr(begun, "given", 0)
        except BaseException as error:
            self._first = first  # what is done once was not done
            # A stream that did not begin has no batches, and says why once; one that a signal cut
            # begins at the next call.
            spec.ended = stream and not isinstance(error, KeyboardInterrupt)
            raise

    def _seed_as_torch_does(self, here: WorkContext, base: int) -> None:
        """Seeds as torch sets them in its workers, and torch's get_worker_info."""
        importlib.import_module("torch.utils.data")
        if self.config.seeding == "iteration" or (
            here.first and self.config.seeding in ("task", "birth")
        ):
            seed_as_torch(base, here.worker)
        module: Any = sys.modules["torch.utils.data._utils.worker"]
        known, dataset = module._worker_info, getattr(self.config.work, "dataset", None)
        seed = here.seed if known is None or self.config.seeding != "birth" else known.seed
        if known is None or known.seed != seed:
            module._worker_info = module.WorkerInfo(
                id=here.worker, num_workers=here.workers, seed=seed, dataset=dataset
            )
