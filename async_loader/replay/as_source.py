"""The side of a ReplayBuffer that loaders see. Chooses and reads through `ReplaySource`."""

from __future__ import annotations

import numpy as np

from async_loader.errors import ConfigError
from async_loader.lifecycle import Patience
from async_loader.replay.drawing import Drawer
from async_loader.replay.inserting import Inserter
from async_loader.replay.owner import Owner
from async_loader.replay.reader import ReplayReader
from async_loader.replay.samplers import Sampler, Uniform
from async_loader.replay.source import ReplaySource
from async_loader.replay.views import Transitions
from async_loader.source import Ready, Rows


class AsSource:
    """What makes a ReplayBuffer an `async_loader.source.Source`, and sources of it."""

    _owner: Owner
    _in: Inserter
    _out: Drawer
    _whole: ReplaySource | None = None

    def source(
        self,
        *,
        view: Transitions | None = None,
        sampler: Sampler | None = None,
        min_size: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> ReplaySource:
        """This buffer as a source of its own, for a loader.

        Parameters
        ----------
        view : Transitions, optional
            As in `sample`.
        sampler : Sampler, optional
            One of its own beside the table's; it is told of every item for as long as the source is used or until its `close`.
        min_size : int
            Items that its batches wait for. (The buffer itself, as a source, waits for one.)
        rank, world_size : int
            Of a group of learners that each have a source of this table: each draws on its own, uniformly unless
            ``sampler`` says otherwise; prioritized ranks share the table's priorities.

        Raises
        ------
        ConfigError
            For a view that the schema does not allow, ranks out of range, a ``min_size`` beyond the capacity.
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
        owner = self._owner
        if sampler is None and world_size > 1 and type(owner.sampler) is Uniform:
            sampler = Uniform()
        if sampler is not None:
            self._attach(sampler, rank)
        return ReplaySource(owner, self._out, self._in, view, sampler or owner.sampler, min_size, own=sampler is not None)

    def _attach(self, sampler: Sampler, rank: int) -> None:
        owner = self._owner
        if not owner.ready:
            raise ConfigError("a sampler beside the table's needs a table: give a schema, or add a step first")
        with owner.lock:
            (seed,) = owner.seeds.spawn(1)
            sampler.bind(owner.table.items, np.random.SeedSequence([rank, *seed.generate_state(4).tolist()]))
            owner.attach(sampler)

    def plan(self, batch_size: int, patience: Patience) -> Rows | Ready:
        """``batch_size`` items of the table's sampler. Waits through ``patience`` until there is one, and for the limiter."""
        return self._as_source().plan(batch_size, patience)

    def reader(self) -> ReplayReader | None:
        """A new reader of the rows, for this or any other process.

        ``None`` while the schema is unknown, that is before the first step of a buffer that was given none. Once a
        ``plan`` has returned there is a reader: ask again then, and start worker processes with that one.
        """
        return self._as_source().reader()

    def waiting_for(self) -> str | None:
        """What `plan` is waiting for, in numbers; ``None`` when it need not wait."""
        return self._as_source().waiting_for()

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """A loader will plan so many batches before the first of them is used: warn if the limiter never lets it."""
        self._as_source().note_ahead(batch_size, batches)

    def _as_source(self) -> ReplaySource:
        """One for all calls: `waiting_for` answers for the batch size that `plan` was asked for."""
        if self._whole is None:
            self._whole = ReplaySource(self._owner, self._out, self._in, None, self._owner.sampler, 1)
        return self._whole
