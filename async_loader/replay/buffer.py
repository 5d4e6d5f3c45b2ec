"""ReplayBuffer: steps in shared memory, what draws them, and the loader's source. Decides nothing itself."""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt

from async_loader.errors import CannotSend, ConfigError
from async_loader.names import explain_wrong_names
from async_loader.replay import checkpoint
from async_loader.replay.arguments import one_of, positive, size_of
from async_loader.replay.as_source import AsSource
from async_loader.replay.by_id import ById
from async_loader.replay.drawing import Drawer, Taken
from async_loader.replay.inserting import Inserter
from async_loader.replay.limiter import Queue, RateLimiter
from async_loader.replay.owner import Owner
from async_loader.replay.queues import capacity_of, check_limiter, check_stack
from async_loader.replay.remote.handle import WriterHandle
from async_loader.replay.samplers import Fifo, Lifo, Sampler, Uniform
from async_loader.replay.stats import TableStats
from async_loader.replay.storage import StorageLayout
from async_loader.replay.stream_names import fresh_stream, stream_name
from async_loader.replay.vector_writer import VectorWriter
from async_loader.replay.views import Transitions
from async_loader.replay.writer import LocalWriter, how_ended
from async_loader.schema import Schema, SchemaLike
from async_loader.table import AutoReset, Ids, VectorEnv


class ReplayBuffer(AsSource, ById):
    """The newest ``capacity`` steps, in shared memory. Also a Source for the loader.

    Any number of threads of the process that made it may add and sample; processes that get a `writer_handle` may add, and
    the workers of a loader read its memory directly, without a lock. A forked child may sample what its parent had
    at that moment, and cannot add.

    Parameters
    ----------
    capacity : int | str
        Steps, or shared memory as in ``"8GiB"``. The observation that ends an episode (``final_obs``) takes the room of a step.
    schema : Schema | sequence of Field | (nested) dict of ``Field | (shape, dtype) | dtype``, optional
        What a step is. By default it is taken from the first step: arrays as they are, Python floats as float32,
        Python ints as int64. Steps are linked to those before and after them in their stream, which is what
        ``Field(stack=..., next=...)`` and n-step returns are read through; boolean fields named ``terminated``,
        ``truncated`` and ``done`` end episodes. ``done`` counts as terminated, also beside ``terminated``, unless the
        same step is truncated.
    sampler : Sampler
        Which items make a batch; `Uniform` unless given.
    remover : Sampler
        Which item makes room for a new one. `Fifo`, the default, overwrites steps in order. With any other, rows are
        reused out of order, so that the schema can have no ``stack`` and no ``next`` and there are no n-step returns.
    limiter : RateLimiter, optional
        How far sampling and inserting may run ahead of each other.
    max_times_sampled : int
        An item is gone after so many draws; 0 is any number. With a limiter that holds back inserting until every item was
        drawn as often, no item is overwritten before: writers wait for a row too. `queue` and `stack` make such tables.
    seed : int, optional
        The same seed and the same calls give the same samples.
    max_bytes : int | str, optional
        An upper bound of the shared memory, for a capacity in steps.

    Raises
    ------
    ConfigError
        For arguments that cannot work, alone or together.
    SchemaError
        For a schema that cannot be stored.
    OutOfMemory
        If a schema is given and a full buffer would not fit into the free memory; without one, at the first step.

    Examples
    --------
    >>> buffer = ReplayBuffer(1000, seed=0)
    >>> buffer.add(obs=np.zeros(4, np.float32), action=1, reward=0.5)
    0
    >>> sorted(buffer.sample(32))
    ['action', 'index', 'obs', 'reward']
    """

    def __init__(
        self,
        capacity: int | str,
        schema: SchemaLike | None = None,
        *,
        sampler: Sampler | None = None,
        remover: Sampler | None = None,
        limiter: RateLimiter | None = None,
        max_times_sampled: int = 0,
        seed: int | None = None,
        max_bytes: int | str | None = None,
    ) -> None:
        sampler, remover = Uniform() if sampler is None else sampler, Fifo() if remover is None else remover
        for name, one in (("sampler", sampler), ("remover", remover)):
            if not isinstance(one, Sampler):
                raise ConfigError(f"{name}={one!r}: give a sampler, as in {name}=Uniform()")
        most = max_times_sampled and positive("max_times_sampled", max_times_sampled)
        check_limiter(limiter, most)
        self._owner = Owner(*size_of(capacity, max_bytes), sampler, remover, limiter, most, seed)
        self._in, self._out = Inserter(self._owner), Drawer(self._owner)
        self._saver = checkpoint.Saver(self._owner)
        if schema is not None:
            self._owner.start(Schema.of(schema))
        _buffers.add(self)

    @classmethod
    @explain_wrong_names
    def queue(
        cls,
        size: int,
        schema: SchemaLike | None = None,
        *,
        capacity: int | str | None = None,
        seed: int | None = None,
    ) -> Self:
        """Make a queue: each item is drawn exactly once, in the order of insertion; at most ``size`` wait to be.

        No item is lost: `add` waits while ``size`` items wait, and for a row (NOTE [queue tables] in table.py). Over a feeder
        an item is delivered at least once: after a fault of a learner or a connection it may come again, flagged
        ``redelivered``. The end of an episode adds all steps that waited for it, up to n beyond ``size`` with n-step returns.

        Parameters
        ----------
        size : int
            Items that may wait.
        schema : as in ReplayBuffer, optional
        capacity : int | str, optional
            Rows, or memory as in ``"8GiB"``. By default ``size`` where steps stand alone. Where the schema links them
            (``Field(stack=..., next=...)``) final observations and open episodes take rows too: room for one final
            observation for each item with ``next``, and for 32 open episodes. Give more where more episodes are open at once.
        seed : int, optional

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
        made = None if schema is None else Schema.of(schema)
        rows = capacity_of(size, made)
        return cls(
            rows if capacity is None else capacity, made, sampler=Fifo(), remover=Fifo(), limiter=Queue(size),
            max_times_sampled=1, seed=seed,
        )  # fmt: skip

    @classmethod
    @explain_wrong_names
    def stack(
        cls,
        size: int,
        schema: SchemaLike | None = None,
        *,
        capacity: int | str | None = None,
        seed: int | None = None,
    ) -> Self:
        """Make a stack: as `queue`, and the newest item is drawn first. Its schema can have no ``stack`` and no ``next``.

        Raises
        ------
        ConfigError, SchemaError, OutOfMemory
            As `queue` does; and for a schema that links steps.
        """
        made = None if schema is None else Schema.of(schema)
        check_stack(made)
        rows = capacity_of(size, made)
        return cls(
            rows if capacity is None else capacity, made, sampler=Lifo(), remover=Lifo(), limiter=Queue(size),
            max_times_sampled=1, seed=seed,
        )  # fmt: skip

    # -- what it is ------------------------------------------------------------------------------------------------------

    @staticmethod
    def nbytes_for(capacity: int, schema: SchemaLike) -> int:
        """Bytes of shared memory that a full buffer of ``capacity`` steps takes, exactly."""
        return StorageLayout.of(Schema.of(schema), positive("capacity", capacity)).nbytes

    @property
    def capacity(self) -> int:
        """Steps that are kept; 0 while that depends on a schema that is not known yet."""
        return self._owner.capacity or 0

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the first one if no schema was given."""
        return self._owner.schema

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that a full buffer takes; 0 while the schema is unknown."""
        return self._owner.table.storage.layout.nbytes if self._owner.ready else 0

    @property
    def limiter(self) -> RateLimiter | None:
        """How far sampling and inserting may run ahead of each other; may be changed while they do."""
        return self._owner.limiter

    @limiter.setter
    def limiter(self, limiter: RateLimiter | None) -> None:
        check_limiter(limiter, self._owner.max_times_sampled)
        self._owner.limiter = limiter

    def __len__(self) -> int:
        """Items that can be drawn."""
        with self._owner.lock:
            self._owner.catch_up()
            return len(self._owner.table) if self._owner.ready else 0

    def stats(self) -> TableStats:
        """The table in numbers."""
        owner = self._owner
        with owner.lock:
            owner.catch_up()
            table = owner.table if owner.ready else None
            counts = (table.inserted, table.sampled, table.deleted) if table is not None else (0, 0, 0)
            if table is not None:
                table.forget_ended()
            streams = 0 if table is None else len(table.streams)
            size, waiting = 0 if table is None else len(table), tuple(owner.waiters.now())
            interrupted = self._out.interrupted()
            return TableStats(size, self.capacity, *counts, self.nbytes, streams, waiting, interrupted)

    # -- adding ----------------------------------------------------------------------------------------------------------

    def add(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *,
        stream: Hashable = 0,
        priority: float | None = None,
        timeout_s: float | None = None,
        final_obs: Any = None,
        **fields: Any,
    ) -> int:
        """Add one step, as a (nested) dict or as keywords; the oldest makes room.

        Parameters
        ----------
        step : mapping
            Numbers, numpy arrays and CPU tensors, shaped like the schema. A value is taken when a row can hold it
            unchanged, apart from rounding floats to the field's precision (fitting.py, NOTE [what fits]).
        stream : hashable
            Whose step this is: an actor's, an environment's. Steps of one stream follow each other.
        priority : float, optional
            For prioritized samplers.
        timeout_s : float, optional
            How long to wait for the limiter; ``None``: as long as it takes, with a warning after 10 s.
        final_obs : array or (nested) dict of arrays, optional
            The observation after this step, which ends an episode. A truncated step needs it where the schema has ``next=``.

        Returns
        -------
        int
            The step's id: 64 bits, never reused, counting from 0 (an observation that ends an episode has one of its own).

        Raises
        ------
        SchemaError
            Names the field that does not fit. Nothing was written.
        OutOfMemory
            At the first step, if a full buffer would not fit.
        Timeout, WouldDeadlock
            When the limiter lets nothing in. Nothing was written.
        ConfigError
            For a ``stream`` that is not hashable, and for a priority that is not one number.
        """
        return self._in.add(one_of(step, fields, "step"), stream, 0, priority, timeout_s, final_obs)

    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *,
        stream: Hashable | Sequence[Hashable] | npt.NDArray[Any] = 0,
        priority: Any = None,
        timeout_s: float | None = None,
        final_obs: Any = None,
        **fields: Any,
    ) -> Ids:
        """Add many steps: a (nested) dict of equally long arrays or tensors ``[rows, ...]``, of any length.

        Parameters
        ----------
        stream : hashable | sequence or array [rows]
            One stream for all, in order; or each row's own, as of a vector of environments: a list, a range, a tuple, an
            array or a tensor. For one stream whose name is a tuple use a writer, or its ``stream``, which is always one.
        priority : float array [rows], optional
        final_obs : array [rows, ...] or (nested) dict of arrays, optional
            The observation after each step that ends an episode; rows of others are not looked at.
        timeout_s : float, optional
            As in `add`. Under a limiter rows are written one by one, and an error says how many are in.

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
        """
        return self._in.extend(one_of(batch, fields, "batch"), stream, priority, timeout_s, final_obs)

    def end_episode(
        self, *, stream: Hashable = 0, final_obs: Any = None, terminated: bool = False, truncated: bool = False
    ) -> None:
        """End the episode of a stream after its last step, where that was not known when the step was added.

        Parameters
        ----------
        final_obs : array or (nested) dict of arrays, optional
            What came after the last step. Where the schema has ``next=`` and it is not given, the episode ends one step earlier
            (unless it terminated): the last step has nothing to be bootstrapped from, and is given up.
        terminated, truncated : bool
            How it ended; neither counts as truncated.
        """
        self._in.end_episodes((stream_name(stream),), final_obs, how_ended(terminated, truncated))

    def writer(self, stream: Hashable | None = None) -> LocalWriter:
        """What adds the steps of an actor: to this stream, by default to a new one."""
        return LocalWriter(self._owner, self._in, fresh_stream() if stream is None else stream_name(stream))

    def writer_handle(self) -> WriterHandle:
        """What another process needs to add steps: an argument for it, under any start method; one handle for each writer.

        ``handle.open(stream=...)`` there gives a `Writer`, with ``append``, ``extend`` and ``end_episode`` as here. It writes
        into this table's shared memory, without a lock; what it adds can be drawn at once. When its process dies, at whatever
        moment, no row is torn, its open episodes end as truncated, and its rows come back; while it is stopped, others go on.

        Raises
        ------
        ConfigError
            While the schema is unknown; and for more writers than there is room for: an eighth of the rows.
        Unsupported
            In a forked child, and for a table whose remover is not Fifo.
        Closed
            After `close`.
        """
        return self._owner.writer_handle()

    def vector_writer(
        self,
        envs: int | VectorEnv,
        *,
        autoreset: AutoReset | None = None,
        streams: Sequence[Hashable] | None = None,
    ) -> VectorWriter:
        """What adds the steps of a vector of environments, each a stream.

        Parameters
        ----------
        envs : int | gymnasium.vector.VectorEnv
            How many there are, or the environments, which also say how they reset.
        autoreset : "next_step" | "same_step" | "disabled" | gymnasium.vector.AutoresetMode, optional
            When environments begin anew by themselves: ``envs.metadata["autoreset_mode"]``, which is taken from environments
            that are given. Of a number of environments "next_step", Gymnasium's default.
        streams : sequence of hashable, optional
            Their names; new ones by default.
        """
        return VectorWriter(self.writer(), envs, autoreset, streams)

    # -- sampling --------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, *, view: Transitions | None = None, timeout_s: float | None = None) -> dict[str, Any]:
        """Draw ``batch_size`` items as the table's sampler chooses.

        Parameters
        ----------
        view : Transitions, optional
            n-step returns, ``discount``; without one, steps as they are (with their stacks, and what followed them).
        timeout_s : float, optional
            How long to wait for enough items, and for the limiter. ``None``: without a limiter an empty table raises
            at once; with one, as long as it takes, with a warning after 10 s.

        Returns
        -------
        dict
            Contiguous numpy arrays ``[batch_size, ...]`` of your own, nested as the step was (a loader gives torch
            tensors), ``index``: int64 ids, and ``weight``: float32, if the sampler has weights.

        Raises
        ------
        ConfigError
            If there is nothing to draw, or there could never be, or ``batch_size`` is not a positive integer.
        Timeout, WouldDeadlock
            When the limiter lets nothing out.
        """
        owner, out = self._owner, self._out
        if owner.limiter is None and not owner.max_times_sampled:
            return out.batch(owner.sampler, batch_size, view, timeout_s)
        taken = Taken()
        try:
            batch = out.batch(owner.sampler, batch_size, view, timeout_s, taken)
        except BaseException:
            out.take_back(taken)
            raise
        return batch  # no call after the batch is there: Ctrl-C comes before, or when the caller has it

    # -- checkpoints -----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> checkpoint.SaveReport:
        """Write everything that the table knows into a folder, while others go on adding and sampling.

        The first save is a full one; the next ones to the same folder write what has changed since, until together they
        are half as large as a full one. (A buffer that is saved to several folders in turn writes full ones.) A save that
        fails or is killed leaves the one before it as it was. Not saved: what writers in other processes have not
        published, and samplers that sources have of their own. One process at a time saves to a folder.

        Returns
        -------
        SaveReport
            ``kind`` ("full" or "incremental"), ``nbytes``, ``seconds``, ``pause_s``: how long the table was locked.

        Raises
        ------
        ConfigError
            For streams whose names are no integers, strings or tuples of these.
        OSError
            As the file system says. The save before stays.
        Unsupported
            In a forked child.
        """
        return self._saver.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, save: int | None = None, **overrides: Any) -> ReplayBuffer:
        """The buffer that was saved last to a folder: it goes on with its ids, draws and limits as if it had never ended.

        But for open episodes: environments begin anew, and so the first step that is written to a stream ends the episode
        that was open there, as `end_episode` without arguments does, and does not follow it. Call `end_episode` before that
        step if you know how the old episode ended.

        Parameters
        ----------
        save : int, optional
            Another save of the folder than the newest; its number, as in ``path/save-00000007``.
        **overrides
            ``capacity``, ``sampler``, ``remover``, ``limiter``, ``max_times_sampled``, ``seed``, ``max_bytes``: in place of
            what was saved. A sampler of your own class has to be given. One that is made as the saved one was goes on where that
            was; any other is told of the items anew. Into less capacity go the newest steps.

        Raises
        ------
        CorruptCheckpoint
            Names the file that is not as it was written, and the save that would load.
        ConfigError
            If there is no checkpoint, or it cannot be loaded with these settings.
        OutOfMemory
            If it does not fit.
        """
        buffer: ReplayBuffer = checkpoint.load(cls, path, save, overrides)
        return buffer

    # -- the end ---------------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float | None = 5.0) -> None:
        """No more is added or drawn. Writers in other processes raise Closed, and their thread ends. May be called again.

        A buffer without such writers need not be closed: its memory goes when nobody uses it any more.
        """
        self._owner.close(timeout_s)

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise CannotSend(
            "a ReplayBuffer stays in its process: send its reader() to read, its writer_handle() to write, or use a loader; "
            "save() and ReplayBuffer.load() keep what it holds"
        )


_buffers: weakref.WeakSet[ReplayBuffer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for buffer in list(_buffers):
        buffer._owner.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
