"""torchdata's StatefulDataLoader: a DataLoader that says where it is and goes on from there.

Quirks that are kept, each with a test: `state_dict` before the first pass begins one; `load_state_dict` acts on the next pass;
the number of workers must match (AssertionError).
"""

from __future__ import annotations

from typing import Any

from async_loader.compat.torch.loader import DataLoader, Pass
from async_loader.epochs.columns import Columns
from async_loader.epochs.order import Batches
from async_loader.epochs.works import StatefulMapWork

_VERSION = 1


class StatefulDataLoader(DataLoader):
    """``torchdata.stateful_dataloader.StatefulDataLoader``.

    Samplers, datasets and iterators of datasets that have ``state_dict`` and ``load_state_dict`` are asked for their state, which
    belongs to the batches that were given, not to those made ahead. What has none is passed over to the same place.

    Parameters
    ----------
    *args, **kwargs
        As `DataLoader`.
    snapshot_every_n_steps : int
        Accepted; a state is exact after every batch whatever it is.
    """

    _tracks = True

    def __init__(self, *args: Any, snapshot_every_n_steps: int = 1, **kwargs: Any) -> None:
        if snapshot_every_n_steps < 1:
            raise ValueError(f"snapshot_every_n_steps is {snapshot_every_n_steps}: give at least 1")
        super().__init__(*args, **kwargs)
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._start: dict[str, Any] = {}
        self._held: Pass | None = None
        self._latest: Pass | None = None

    def _get_iterator(self) -> Any:
        held, self._held = self._held, None
        if held is not None:
            return held
        start, self._start = self._start, {}
        self._latest = self._begin(start)
        return self._latest

    def state_dict(self) -> dict[str, Any]:
        """Where the latest pass is. JSON can hold it where it can hold the states of the dataset and the sampler."""
        if self._start:
            return dict(self._start)
        if self._latest is None:
            self._held = self._get_iterator()
        latest = self._latest
        assert latest is not None
        state: dict[str, Any] = {"version": _VERSION, "num_workers": self.num_workers, "yielded": 0}
        if latest.epoch.finished:
            return {**state, "base_seed": None, "batches": latest.order_state(finished=True)}
        return {**state, "base_seed": latest.base_seed, **latest.epoch.state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next pass goes on where this state was taken; one that is under way is not touched.

        Raises
        ------
        ValueError
            It is no state of this class.
        AssertionError
            It is of another number of workers.
        """
        if not isinstance(state_dict, dict) or state_dict.get("version") != _VERSION:
            raise ValueError(f"this is no state_dict of a StatefulDataLoader of version {_VERSION}")
        workers = state_dict["num_workers"]
        if workers != self.num_workers:
            raise AssertionError(f"the state is of {workers} workers, this loader has {self.num_workers}: num_workers must match")
        self._start, self._held = dict(state_dict), None

    def _work(self, columns: Columns | None, batches: Batches) -> Any:
        dataset = self.dataset
        if not self._iterable and hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"):
            work = super()._work(None, batches)
            return StatefulMapWork(work)
        return super()._work(columns, batches)
