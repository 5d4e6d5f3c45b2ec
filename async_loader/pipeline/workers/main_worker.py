"""The main worker: does the work of a plan in the producer thread. All there is with num_workers 0 or 1."""

from __future__ import annotations

from async_loader.pipeline.batch import Outcome
from async_loader.pipeline.batches.local_collator import LocalCollator
from async_loader.pipeline.batches.to_tensors import Prepare
from async_loader.pipeline.workers.worker_main import fetch
from async_loader.source import Jobs, Plan, Reader, Ready, Rows, Samples


class MainWorker:
    """Never touches the global random generators: they belong to the learner.

    Parameters
    ----------
    seed : int
        Of the loader.
    prepare : callable
        Makes an outcome ready to be handed out.
    whole : bool
        A collate_fn wants to see samples, also of rows that could be read straight into a slot.
    """

    def __init__(self, filler: LocalCollator, seed: int, prepare: Prepare, *, whole: bool) -> None:
        self._filler = filler
        self._prepare = prepare
        self._seed = seed
        self._whole = whole

    def do(self, seq: int, plan: Plan, reader: Reader | None) -> Outcome:
        """The batch of a plan; raises whatever its jobs raise."""
        return self._prepare(self._work(seq, plan, reader))

    def _work(self, seq: int, plan: Plan, reader: Reader | None) -> Outcome:
        if isinstance(plan, Ready):
            if self._whole and plan.samples is not None:
                return self._filler.samples(plan.samples())
            return self._filler.lent(plan.batch) if plan.lent else self._filler.ready(plan.batch)
        if isinstance(plan, Samples):
            return self._filler.samples(plan.samples)
        if isinstance(plan, Jobs):
            return self._filler.samples([call() for call in plan.calls])
        assert isinstance(plan, Rows)
        assert reader is not None
        seed = (self._seed, seq, 0)
        if self._whole:
            return self._filler.samples(fetch(reader, plan.index, seed))
        return self._filler.rows(reader, plan.index, seed)
