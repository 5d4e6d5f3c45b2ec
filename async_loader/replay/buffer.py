"""The replay buffer: the front of a table in this process, for threads that may wait."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from multiprocessing import util
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Never, Self

from async_loader.errors import CannotSend, ConfigError, Unsupported, require
from async_loader.lifecycle import ClosedAtExit, Deadline, seconds
from async_loader.name_hints import (
    by_name,
    class_only,
    explain_wrong_attributes,
    explain_wrong_names,
    misplaced_fields,
)
from async_loader.replay import checkpoint
from async_loader.replay.arguments import folder_of, kept_in, one_of, positive, size_of
from async_loader.replay.episode_ends import how_ended
from async_loader.replay.kept import KeptFile, recover
from async_loader.replay.rate_limiter import (
    Queue,
    RateLimiter,
    capacity_of,
    check_limiter,
    check_stack,
)
from async_loader.replay.samplers import Fifo, Lifo, Sampler, Uniform
from async_loader.replay.samplers.sampler import check_sampler
from async_loader.replay.source import ReplaySource
from async_loader.replay.stats import TableStats
from async_loader.replay.stream_names import fresh_stream, stream_name
from async_loader.replay.table.by_id import SharedTable
from async_loader.replay.table.resident import ResidentTable, resident_table
from async_loader.replay.table.source_sampler import sampler_for
from async_loader.replay.table.storage import StorageLayout
from async_loader.replay.table_methods import Change, TableMethods
from async_loader.replay.views import View, checked_view
from async_loader.replay.writer import LocalWriter
from async_loader.schema import Schema, SchemaLike
from async_loader.shm.limits import human
from async_loader.source import Applied
from async_loader.table import Batch, Ids, Streams
from async_loader.validation import require_linux, whole

if TYPE_CHECKING:
    import torch

_OF_A_SAVE = ("cls", "path", "number")
"""Arguments of `ReplayBuffer.from_checkpoint` that name a save; all others replace what it says."""


@explain_wrong_attributes
class ReplayBuffer(TableMethods, ClosedAtExit):
    """The newest ``capacity`` steps, in shared memory: a `async_loader.table.Table`.

    Threads: any, of the process that made it, may add and sample, and the workers of a loader read
    its memory directly, without a lock. Other processes write to a feeder: see
    `async_loader.connect`. In a forked child adding and sampling raise
    Unsupported.

    Parameters
    ----------
    capacity : int | str
        Steps, or shared memory as in ``"8GiB"``. The observation that ends an episode
        (``final_obs``) takes the room of a step.
    schema : Schema | sequence of Field | (nested) dict of Field, (shape, dtype) or dtype, optional
        What a step is. By default it is taken from the first step: arrays as they are, Python
        floats as float32, Python ints as int64. Steps are linked to those before and after them in
        their stream, which is what ``Field(stack=..., next=...)`` and n-step returns are read
        through; boolean fields named ``terminated``, ``truncated`` and ``done`` end episodes.
        ``done`` counts as terminated, also beside ``terminated``, unless the same step is
        truncated.
    sampler : Sampler
        Which items make a batch; `Uniform` unless given.
    remover : Sampler
        Which item makes room for a new one. `Fifo`, the default, overwrites steps in order. With
        any other, rows are reused out of order, so that the schema can have no ``stack`` and no
        ``next`` and there are no n-step returns.
    limiter : RateLimiter, optional
        How far sampling and inserting may run ahead of each other.
    view : Transitions | Sequences | Hindsight, optional
        What batches show unless `sample`, `source` or `get` say otherwise. With n-step returns a
        step can be drawn when its n successors are there, from the beginning.
    max_times_sampled : int
        The draws after which an item is gone; 0: it stays. With a limiter that holds back inserting
        until every item was drawn as often, no item is overwritten before: writers wait for a row
        too. `queue` and `stack` make such tables.
    seed : int, optional
        The same seed and the same calls give the same samples.
    max_bytes : int | str, optional
        An upper bound of the shared memory, for a capacity in steps. Beside fields with a codec the
        capacity stays, and the oldest steps make room when compressed values fill the rest.
    disk : str | os.PathLike, optional
        A folder. Steps are then kept in a file on its disk that is mapped into memory, which may be
        larger than the memory. The file has no name: it goes with the table, also when the process
        is killed; `save` keeps what a table holds.
    keep : str | os.PathLike, optional
        A folder for this table alone, whose memory is then a file there, on a tmpfs or a disk. It
        outlives the process, also one that is killed with SIGKILL, but not the machine: nothing is
        synced to a disk. A table that is made with the same folder, schema and capacity goes on
        with its steps, priorities and draws. ``"memory"``, as ``None``: the memory goes with the
        process.
    device : str | torch.device, optional
        Arrays are then tensors on this device, and batches too; numbers (fields of one element),
        ids, priorities and draws stay here. For frames, and for simulators on an accelerator:
        tensors of the device are added without a copy here. Steps make room in order; there is no
        limiter, source or codec. A save keeps other threads from the table while it runs.

    Raises
    ------
    ConfigError
        For arguments that cannot work, alone or together.
    SchemaError
        For a schema that cannot be stored.
    OutOfMemory
        If a schema is given and a full buffer would not fit into the free memory, or onto the disk
        or the device; without one, at the first step.

    Examples
    --------
    >>> buffer = ReplayBuffer(1000, seed=0)
    >>> buffer.add(obs=np.zeros(4, np.float32), action=1, reward=0.5)
    0
    >>> sorted(buffer.sample(32))
    ['action', 'index', 'obs', 'reward']
    """

    @explain_wrong_names
    def __init__(
        self,
        capacity: int | str,
        schema: SchemaLike | None = None,
        *,
        sampler: Sampler | None = None,
        remover: Sampler | None = None,
        limiter: RateLimiter | None = None,
        view: View | None = None,
        max_times_sampled: int = 0,
        seed: int | None = None,
        max_bytes: int | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        keep: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        require("numba")
        require_linux("a replay table")
        sampler, remover = (
            Uniform() if sampler is None else sampler,
            Fifo() if remover is None else remover,
        )
        for name, one in (("sampler", sampler), ("remover", remover)):
            check_sampler(name, one)
        most = whole("max_times_sampled", max_times_sampled, 0)
        check_limiter(limiter, most)
        size, shown, folder = size_of(capacity, max_bytes), checked_view(view), folder_of(disk)
        home = kept_in(keep, disk)
        kept = None if home is None else KeptFile(home)
        settings = *size, sampler, remover, limiter, most, seed, shown, folder, kept, recover
        try:
            self._table_state: SharedTable = (
                SharedTable(*settings)
                if device is None
                else resident_table(
                    device,
                    *settings,
                    remover=None if type(remover) is Fifo else remover,
                    limiter=limiter,
                    max_times_sampled=most,
                    disk=disk,
                    keep=home,
                    max_bytes=max_bytes,
                    capacity=None if size[1] is None else capacity,
                )
            )
            self._view = self._table_state.view
            self._saver = checkpoint.Saver(self._table_state)
            if schema is None and kept is not None:
                schema = kept.schema()
            if schema is not None:
                self._table_state.start(Schema.of(schema))
            if kept is not None:  # also runs at the end of a process of multiprocessing
                util.Finalize(self, self._table_state.write_gathered, exitpriority=0)
        except BaseException:
            if kept is not None:
                kept.close()
            raise

    @class_only
    @explain_wrong_names
    def queue(
        cls,
        size: int,
        schema: SchemaLike | None = None,
        *,
        view: View | None = None,
        capacity: int | str | None = None,
        seed: int | None = None,
        keep: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Make a queue: each item is drawn exactly once, in the order of insertion; at most
        ``size`` items wait.

        No item is lost: `add` waits while ``size`` items wait, and for a row (table/streams.py,
        NOTE [queue tables]). Over a feeder an item is delivered at least once: after a fault of a
        learner or a connection it may come again, flagged ``redelivered``. The end of an episode
        adds all steps that waited for it, up to n beyond ``size`` with n-step returns.

        Parameters
        ----------
        size : int
            Items that may wait.
        schema : as in ReplayBuffer, optional
        capacity : int | str, optional
            Rows, or memory as in ``"8GiB"``. By default ``size`` where steps stand alone. Where the
            schema links them (``Field(stack=..., next=...)``) final observations and open episodes
            take rows too: room for one final observation for each item with ``next``, and for 64
            open episodes. Give more where more are open at once: a step that waits for its
            successors while all rows are written once over never becomes an item.
        view, seed, keep : as in ReplayBuffer, optional

        Raises
        ------
        ConfigError, SchemaError, OutOfMemory
            As the constructor does; and for a size below 1.

        Examples
        --------
        >>> rollouts = ReplayBuffer.queue(64)
        >>> for n in range(3):
        ...     _ = rollouts.add(x=n)
        >>> rollouts.sample(2)["x"], len(rollouts)
        (array([0, 1]), 1)
        """
        return cls._each_once(Fifo, size, schema, view, capacity, seed, keep)

    @class_only
    @explain_wrong_names
    def stack(
        cls,
        size: int,
        schema: SchemaLike | None = None,
        *,
        capacity: int | str | None = None,
        seed: int | None = None,
        keep: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Make a stack: as `queue`, but the newest item is drawn first.

        Its schema can have no ``stack`` and no ``next``.

        Raises
        ------
        ConfigError, SchemaError, OutOfMemory
            As `queue` does; and for a schema that links steps.
        """
        return cls._each_once(Lifo, size, schema, None, capacity, seed, keep)

    @classmethod
    def _each_once(
        cls,
        order: type[Fifo | Lifo],
        size: int,
        schema: SchemaLike | None,
        view: View | None,
        capacity: int | str | None,
        seed: int | None,
        keep: str | os.PathLike[str] | None,
    ) -> Self:
        made = None if schema is None else Schema.of(schema)
        if order is Lifo:
            check_stack(made)
        rows = capacity_of(size, made, checked_view(view))
        return cls(
            rows if capacity is None else capacity,
            made,
            sampler=order(),
            remover=order(),
            limiter=Queue(size),
            view=view,
            max_times_sampled=1,
            seed=seed,
            keep=keep,
        )

    # -- what it is --------------------------------------------------------------------------------

    @staticmethod
    @explain_wrong_names
    def nbytes_for(capacity: int, schema: SchemaLike) -> int:
        """Return the bytes of shared memory that a full buffer of ``capacity`` steps takes,
        exactly; with a codec, if nothing compresses.
        """
        return StorageLayout.of(Schema.of(schema), positive("capacity", capacity)).nbytes

    @property
    def capacity(self) -> int | None:
        """The number of steps that are kept; ``None`` while it depends on an unknown schema."""
        return self._table_state.capacity

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the first one if no schema was given."""
        return self._table_state.shown_schema

    @property
    def nbytes(self) -> int | None:
        """Bytes of the rows, here and on a device; ``None`` as for `schema`."""
        return self._table_state.nbytes if self._table_state.ready else None

    @property
    def device(self) -> torch.device | None:
        """Where arrays are; ``None``: in shared memory."""
        return getattr(self._table_state, "device", None)

    @property
    def sampler(self) -> Sampler:
        """Which items make a batch."""
        return self._table_state.sampler

    @property
    def view(self) -> View | None:
        """What batches show unless a call says otherwise."""
        return self._view

    @property
    def limiter(self) -> RateLimiter | None:
        """How far sampling and inserting may run ahead of each other.

        It may be changed any time: another one holds for what is inserted and sampled from then on,
        and so does one that `from_checkpoint` or `load` finds in place of the saved one.
        """
        return self._table_state.limiter

    @limiter.setter
    def limiter(self, limiter: RateLimiter | None) -> None:
        check_limiter(limiter, self._table_state.max_times_sampled)
        if limiter is not None and self.device is not None:
            raise Unsupported(
                f"limiter={limiter!r} with device={str(self.device)!r}: a table on a device waits "
                "for nothing: leave the limiter out"
            )
        self._table_state.limiter = limiter

    def __len__(self) -> int:
        """Return how many items can be drawn."""
        return self._table_state.count_items()

    def stats(self) -> TableStats:
        """Return the table's counts, and the calls that wait for it."""
        table_state = self._table_state
        with table_state.lock:
            table_state.catch_up()
            size = inserted = sampled = deleted = streams = 0
            compressed_nbytes, compression, full = None, None, False
            if table_state.ready:
                table = table_state.table
                table.forget_ended()
                size, streams, full = len(table), len(table.streams), table.full
                inserted, sampled, deleted = table.inserted, table.sampled, table.deleted
                if table.ring is not None:
                    compressed_nbytes, compression = table.compressed(), table.ring.ratio
            return TableStats(
                size=size,
                capacity=self.capacity,
                inserted=inserted,
                sampled=sampled,
                deleted=deleted,
                nbytes=self.nbytes,
                streams=streams,
                waiting=tuple(table_state.waiters.now()),
                stale=sum(table_state.left_out_by.values()),
                compressed_nbytes=compressed_nbytes,
                compression=compression,
                full=full,
            )

    def __repr__(self) -> str:
        table_state = self._table_state
        size = 0 if not table_state.ready or self.closed else len(self)
        capacity = (
            human(table_state.max_bytes)
            if table_state.capacity is None and table_state.max_bytes is not None
            else table_state.capacity
        )
        state = "closed" if self.closed else "a fork's copy" if table_state.foreign else "open"
        sampler = table_state.sampler
        return f"<ReplayBuffer size={size} capacity={capacity} sampler={sampler!r} {state}>"

    # -- adding ------------------------------------------------------------------------------------

    @by_name
    def add(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        stream: Hashable | None = None,
        priority: float | None = None,
        final_obs: Any = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> int:
        """Add one step, as a (nested) dict or as keywords; the oldest makes room.

        Parameters
        ----------
        step : mapping
            Numbers, numpy arrays and CPU tensors, shaped like the schema. A value is taken when a
            row can hold it unchanged, apart from rounding floats to the field's precision
            (field_validator.py, NOTE [what fits]).
        stream : hashable, optional
            Whose step this is: an actor's, an environment's. Steps of one stream follow each other.
            By default stream 0, which is for one thread at a time where the table links steps.
        priority : float, optional
            For prioritized samplers.
        final_obs : array or (nested) dict of arrays, optional
            The observation after this step, which ends an episode. A truncated step needs it where
            the schema has ``next=``.
        timeout_s : float, optional
            How long to wait for the limiter; ``None``: as long as it takes, with a warning after 10
            s.

        Returns
        -------
        int
            The step's id: 64 bits, never reused, counting from 0 (an observation that ends an
            episode has one of its own).

        Raises
        ------
        SchemaError
            Names the field that does not fit. Nothing was written.
        OutOfMemory
            At the first step, if a full buffer would not fit.
        Timeout, WouldDeadlock
            When the limiter lets nothing in: after ``timeout_s``, or at once if there is no bound
            and no other thread. Nothing was written.
        ConfigError
            For a ``stream`` that is not a number, string, None or tuple of these; for a priority
            that is not one number; and where two threads add to one episode of the default stream
            of a table that links steps.
        """
        if misplaced:
            raise misplaced_fields("ReplayBuffer.add", misplaced)
        values: Mapping[str, Any] = fields
        if step is not None:
            values = step if type(step) is dict and not fields else one_of(step, fields, "step")
        if stream is None:
            stream, table_state = 0, self._table_state
            if table_state.linked:
                table_state.check_default_stream()
        return self._table_state.add(values, stream, 0, priority, timeout_s, final_obs)

    @by_name
    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        stream: Streams | None = None,
        priority: Any = None,
        final_obs: Any = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Ids:
        """Add many steps: a (nested) dict of equally long arrays or tensors ``[rows, ...]``, of any
        length.

        Parameters
        ----------
        stream : hashable | sequence or array [rows], optional
            One stream for all, in order; or each row's own, as of a vector of environments: a list,
            a range, a tuple, an array or a tensor. For one stream whose name is a tuple use a
            writer, or its ``stream``, which is always one. Needed where the table links steps: by a
            stack, a next or n-step returns. Elsewhere 0 by default.
        priority : float array [rows], optional
            Of any shape with as many elements.
        final_obs : array [rows, ...] or (nested) dict of arrays, optional
            The observation after each step that ends an episode; rows of others are not looked at.
        timeout_s : float, optional
            As in `add`. Under a limiter rows are written one by one, and an error says how many are
            in.

        Returns
        -------
        int64 array [rows]
            Their ids. Of more than ``capacity`` rows the last ones stay.

        Raises
        ------
        SchemaError
            Names the field that does not fit, or the lengths that differ. Nothing was written.
        OutOfMemory, Timeout, WouldDeadlock
            As in `add`.
        ConfigError
            Where the table links steps and ``stream`` is not given.
        """
        if misplaced:
            raise misplaced_fields("ReplayBuffer.extend", misplaced, "batch")
        if stream is None:
            if self._table_state.linked:
                raise ConfigError(
                    "this table links each step to those beside it, and extend() has to say whose "
                    "steps these are: stream=0 if they follow each other, stream=range(n) for one "
                    "of each of n environments, or use a writer()"
                )
            stream = 0
        values = fields if batch is None else one_of(batch, fields, "batch")
        return self._table_state.extend(values, stream, priority, timeout_s, final_obs)

    @explain_wrong_names
    def end_episode(
        self,
        *,
        stream: Hashable | None = None,
        final_obs: Any = None,
        terminated: bool = False,
        truncated: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """End the episode of a stream after its last step, if that was not known when the step was
        added.

        Parameters
        ----------
        final_obs : array or (nested) dict of arrays, optional
            The observation after the last step. Where the schema has ``next=`` and it is not given,
            the episode ends one step earlier (unless it terminated): the last step has nothing to
            be bootstrapped from, and is given up.
        terminated, truncated : bool
            How it ended; neither counts as truncated.
        timeout_s : float, optional
            As in `add`; a queue may have no row for ``final_obs``.
        """
        name = 0 if stream is None else stream_name(stream)
        self._table_state.end_episodes(
            (name,), final_obs, how_ended(terminated, truncated), timeout_s
        )

    def writer(
        self, stream: Hashable | None = None, *, schema: SchemaLike | None = None
    ) -> LocalWriter:
        """Make a writer for the steps of one actor: to this stream, by default to a new one.

        ``schema``: for a table that has none yet, rather than that of the first step.
        """
        self._begin(schema)
        return LocalWriter(
            self._table_state, fresh_stream() if stream is None else stream_name(stream)
        )

    def _vector_target(self, schema: SchemaLike | None) -> LocalWriter:
        return self.writer(schema=schema)

    def _begin(self, schema: SchemaLike | None) -> None:
        """Allocate the table with this schema, if it has none yet."""
        if schema is not None and self._table_state.schema is None:
            self._table_state.start(Schema.of(schema))

    # -- sampling ----------------------------------------------------------------------------------

    def _sample(self, batch_size: int, view: View | None, timeout_s: float | None) -> Batch:
        return self._table_state.batch(self._table_state.sampler, batch_size, view, timeout_s)

    @explain_wrong_names
    def source(
        self,
        *,
        view: View | None = None,
        sampler: Sampler | None = None,
        min_size: int = 1,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        max_lag: int | None = None,
    ) -> ReplaySource:
        """Make a source of the table, for a loader.

        `AsyncDataLoader` makes one by itself for a table.

        Parameters
        ----------
        view : Transitions | Sequences | Hindsight, optional
            As in `sample`.
        sampler : Sampler, optional
            One of its own beside the table's; it is told of every item for as long as the source is
            used or until its `close`.
        min_size : int
            Items that its batches wait for.
        seed : int, optional
            Random numbers of its own. Sources with equal seeds and ranks draw the same batches from
            two tables that were made and filled by the same calls, or loaded from one checkpoint,
            whatever else was drawn from these, for as long as nothing is added, updated or taken
            out in between. `Fifo` and heaps have no random numbers, and a sampler of your own has
            to bring its own.
        rank, world_size : int
            Of a group of learners that each have a source of this table: each draws on its own,
            uniformly unless ``sampler`` says otherwise; prioritized ranks share the table's
            priorities.
        max_lag : int, optional
            Leave out the steps of policies that are more than ``max_lag`` versions behind the
            newest: the largest ``policy_version`` that could be drawn so far, or told by
            `published` of the source. The field may have another name that ends with ``_version``,
            if there is only one. The source has a sampler of its own then, with the settings of the
            table's unless ``sampler`` is given. What it leaves out is counted: ``stats().stale``;
            where each item is drawn a number of times, as in a queue, it also ends there. A step
            counts by the version that it came with, whatever `update` makes of the field.

        Raises
        ------
        ConfigError
            For a view that the schema does not allow, ranks out of range, a ``min_size`` beyond the
            capacity.
        """
        if isinstance(self._table_state, ResidentTable):
            raise Unsupported(
                "a table on a device has no source: its batches are there already, call sample()"
            )
        chosen = sampler_for(
            self._table_state, sampler, seed, rank, world_size, checked_view(view), max_lag
        )
        try:
            return ReplaySource(self._table_state, view, chosen, min_size)
        except BaseException:
            if chosen.own is not None:
                self._table_state.let_go_of(chosen.own)
            raise

    # -- by id -------------------------------------------------------------------------------------

    @explain_wrong_names
    def get(self, index: Any, *, view: View | None = None) -> Batch:
        """Read steps by id.

        Parameters
        ----------
        index : int64 array or tensor [rows]
            Ids, as in a batch's ``index``.
        view : Transitions | Sequences | Hindsight, optional
            As in `sample`.

        Returns
        -------
        dict
            Arrays ``[found, ...]`` of your own, in the order of ``index``. Ids that are gone, or
            whose successors are not there yet, are left out: ``index`` says which ones there are.
            With ``Sequences(whole=...)`` these are the first steps of whole episodes.

        Raises
        ------
        OutOfMemory
            As in `sample`.
        """
        return self._table_state.get(index, view)

    def _apply(
        self,
        change: Change,
        index: Any,
        values: Mapping[str, Any],
        timeout_s: float | Deadline | None,
    ) -> Applied:
        if timeout_s is not None and not isinstance(timeout_s, Deadline):
            seconds("timeout_s", timeout_s)
        made: Applied = getattr(self._table_state, change)(index, **values)
        return made

    def clear(self, *, timeout_s: float | None = None) -> None:
        """Remove all items, and end all open episodes.

        Ids continue; counts begin at zero, and with them the limiter.

        Writers may continue, with new episodes.
        """
        self._table_state.clear(timeout_s)

    # -- checkpoints -------------------------------------------------------------------------------

    @explain_wrong_names
    def save(
        self, path: str | os.PathLike[str], *, timeout_s: float | None = None
    ) -> checkpoint.SaveReport:
        """Write the whole table into a folder, while other threads add and sample.

        The newest save and the one before it stay in the folder. One that fails or is killed leaves
        both as they were. Not saved: samplers that sources have of their own. One process at a time
        saves to a folder.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait for another save or load of this table; ``None``: as long as it takes.

        Returns
        -------
        SaveReport
            ``nbytes``, ``duration_s``, ``pause_s``: how long the table was locked.

        Raises
        ------
        OSError
            As the file system says. The save before stays.
        ConfigError
            For a path that names no file: bytes, an empty one.
        Timeout
            Nothing was written.
        Unsupported
            In a forked child.
        """
        with self._table_state.held():
            return self._saver.save(path, timeout_s)

    @explain_wrong_names
    def load(
        self,
        path: str | os.PathLike[str],
        *,
        number: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Replace the table's contents by those of a save.

        Steps, ids, priorities, counts and the samplers' random numbers become those of the save;
        the table's settings stay its own, and so do its memory and all sources and loaders, which
        go on with what was loaded. Into less capacity go the newest steps. All threads see either
        the one or the other: the table is locked while files are read. Open episodes are as after
        `from_checkpoint`; writers of this process go on with new ones. Ids that were drawn before
        mean nothing afterwards, or other steps.

        Parameters
        ----------
        number : int, optional
            Another save of the folder than the newest; its number, as in ``path/save-00000007``.
        timeout_s : float, optional
            As in `save`.

        Raises
        ------
        CorruptCheckpoint
            Names the file that is not as it was written. Nothing was changed.
        SchemaError
            If the steps that were saved are others than the table's.
        ConfigError
            If there is no checkpoint, or it cannot be loaded into this table.
        Timeout, Closed, Unsupported
            Nothing was changed.
        """
        with self._table_state.held():
            checkpoint.load_into(self._table_state, self._saver, path, number, timeout_s)

    @class_only
    @explain_wrong_names
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        number: int | None = None,
        capacity: int | str | None = None,
        sampler: Sampler | None = None,
        remover: Sampler | None = None,
        limiter: RateLimiter | EllipsisType | None = ...,
        view: View | EllipsisType | None = ...,
        max_times_sampled: int | None = None,
        seed: int | None = None,
        max_bytes: int | str | None = None,
        disk: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
    ) -> ReplayBuffer:
        """Make the buffer that was last saved to a folder, with its ids, draws and limits at that
        moment.

        Open episodes are the exception: environments begin new ones. So the first step of a stream
        ends the episode that was open there, as `end_episode` without arguments does, and is not
        linked to it. Call `end_episode` before that step if you know how the old episode ended.

        Parameters
        ----------
        number : int, optional
            As in `load`.
        capacity, sampler, remover, limiter, view, max_times_sampled, seed, max_bytes : optional
            In place of what was saved. A sampler of your own class has to be given. One that is
            made as the saved one was goes on where that was; any other is told of the items anew.
            Into less capacity go the newest steps.
        disk, device : optional
            As in the constructor; they are not saved: a table on a device is loaded as one here,
            and the other way round.

        Raises
        ------
        CorruptCheckpoint
            Names the file that is not as it was written.
        ConfigError
            If there is no checkpoint, or it cannot be loaded with these settings.
        OutOfMemory
            If it does not fit.
        """
        given = {name: value for name, value in locals().items() if name not in _OF_A_SAVE}
        overrides = {
            name: value
            for name, value in given.items()
            if value is not (... if name in ("limiter", "view") else None)
        }
        buffer: ReplayBuffer = checkpoint.load(cls, path, number, overrides)
        return buffer

    # -- the end -----------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = 5.0) -> None:
        """Close the table: nothing is added or drawn any more. May be called again.

        A buffer need not be closed: its memory is freed with its last reference.
        """
        self._table_state.close(timeout_s)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._table_state.closed

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a ReplayBuffer stays in its process: read it by a loader here, or send the reader() "
            "of its source(); actors in other processes write to a feeder, which "
            'connect("embedded", tables=...) starts; save() and '
            "ReplayBuffer.from_checkpoint() keep what it holds"
        )


def shared_table(buffer: ReplayBuffer) -> SharedTable:
    """Return the table behind a buffer, for a second front, such as that of a feeder's server."""
    return buffer._table_state


def saver_of(buffer: ReplayBuffer) -> checkpoint.Saver:
    """Return what saves a table, for a server that adds a file of its own to each save."""
    return buffer._saver
