"""The main worker: does the work of a plan in the producer thread. All there is with num_workers 0 or 1."""

from __future__ import annotations

from async_loader.pipeline.batch import Batch, Outcome
from async_loader.pipeline.batches.host_output import HostOutput
from async_loader.pipeline.batches.local_collator import LocalCollator
from async_loader.pipeline.workers.worker_main import fetch
from async_loader.source import Jobs, Plan, Reader, Ready, Rows, Samples


class MainWorker:
    """Never touches the global random generators: they belong to the learner.

    Parameters
    ----------
    seed : int
        Of the loader.
    output : HostOutput
    whole : bool
        A collate_fn wants to see samples, also of rows that could be read straight into a slot.
    """

    def __init__(self, collator: LocalCollator, seed: int, output: HostOutput, *, whole: bool) -> None:
        self._collator = collator
        self._output = output
        self._seed = seed
        self._whole = whole

    def do(self, seq: int, plan: Plan, reader: Reader | None) -> Outcome:
        """The batch of a plan; raises whatever its jobs raise."""
        return self._output.prepare(self._work(seq, plan, reader))

    def _work(self, seq: int, plan: Plan, reader: Reader | None) -> Batch:
        if isinstance(plan, Ready):
            if self._whole and plan.samples is not None:
                return self._collator.samples(plan.samples())
            return self._collator.lent(plan.batch) if plan.lent else self._collator.ready(plan.batch)
        if isinstance(plan, Samples):
            return self._collator.samples(plan.samples)
        if isinstance(plan, Jobs):
            return self._collator.samples([call() for call in plan.calls])
        assert isinstance(plan, Rows)
        assert reader is not None
        seed = (self._seed, seq, 0)
        if self._whole:
            return self._collator.samples(fetch(reader, plan.index, seed))
        return self._collator.rows(reader, plan.index, seed)
