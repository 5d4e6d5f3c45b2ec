"""The methods that tables have in common, in this process, in a feeder and in a cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from async_loader.batch_format import BatchFormat, convert
from async_loader.lifecycle import Deadline
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.vector_writer import VectorWriter
from async_loader.replay.views import View, checked_format
from async_loader.schema import SchemaLike
from async_loader.source import Applied
from async_loader.table import AutoReset, Batch, Table, VectorEnv

if TYPE_CHECKING:
    import torch

Change = Literal["update_priorities", "update", "delete"]
"""What a call by id does."""


class TableMethods(Table):
    """A table: its arguments are checked, and each call is done where the table is."""

    _view: View | None = None

    @abstractmethod
    def _sample(self, batch_size: int, view: View | None, timeout_s: float | None) -> Batch:
        """Draw a batch of arrays: see `sample`."""

    @abstractmethod
    def _apply(
        self,
        change: Change,
        index: Any,
        values: Mapping[str, Any],
        timeout_s: float | Deadline | None,
    ) -> Applied:
        """Change rows by id: see `update_priorities`, `update` and `delete`."""

    @abstractmethod
    def _vector_target(self, schema: SchemaLike | None) -> Any:
        """Return a writer that can add rows all or none."""

    @property
    def capacity(self) -> int | None:
        """The number of steps that are kept; ``None`` while it depends on an unknown schema."""
        return self.stats().capacity

    @property
    def nbytes(self) -> int | None:
        """Bytes of shared memory that a full table takes; ``None`` while the schema is unknown.

        With a codec it takes less: what `stats` has as ``compressed_nbytes`` in place of the room
        for values that do not compress.
        """
        return self.stats().nbytes

    def __len__(self) -> int:
        """Return how many items can be drawn."""
        return self.stats().size

    @explain_wrong_names
    def vector_writer(
        self,
        envs: int | VectorEnv,
        *,
        autoreset: AutoReset | None = None,
        streams: Sequence[Hashable] | None = None,
        schema: SchemaLike | None = None,
    ) -> VectorWriter:
        """Make a writer for a vector of environments, with a stream for each.

        Of a cluster it is bound to one shard.

        Parameters
        ----------
        envs : int | gymnasium.vector.VectorEnv
            How many there are, or the environments, which also say how they reset.
        autoreset : "next_step" | "same_step" | "disabled" | AutoresetMode of Gymnasium, optional
            When environments begin anew by themselves: ``envs.metadata["autoreset_mode"]``, which
            is taken from environments that are given. With a number of environments it is needed.
        streams : sequence of hashable, optional
            Their names; new ones by default.
        schema : Schema, or what `Schema.of` takes, optional
            For a table that has none yet, rather than the schema of the first steps.
        """
        writer = self._vector_target(schema)
        try:
            return VectorWriter(writer, envs, autoreset, streams)
        except BaseException:
            writer.close()
            raise

    @explain_wrong_names
    def sample(
        self,
        batch_size: int,
        *,
        view: View | None = None,
        timeout_s: float | None = None,
        batch_format: BatchFormat = "numpy",
        device: str | torch.device | None = None,
    ) -> Batch:
        """Draw ``batch_size`` items as the table's sampler chooses.

        Parameters
        ----------
        view : Transitions | Sequences | Hindsight, optional
            n-step returns, ``discount``, also with hindsight goals; or sequences of steps. By
            default the table's; without one, steps as they are (with their stacks, and what
            followed them). The functions of `Hindsight` are called in this process.
        timeout_s : float, optional
            How long to wait for enough items, and for the limiter. ``None``: without a limiter too
            few items raise NotEnoughData at once. With one, a table of this process waits as long
            as it takes, with a warning after 10 s; a client as long as `connect` says.
        batch_format : "numpy" | "torch" | "tensordict"
            Arrays, tensors, or a ``tensordict.TensorDict``.
        device : str | torch.device, optional
            Of the tensors; implies "torch".

        Returns
        -------
        dict
            Contiguous arrays or tensors ``[batch_size, ...]`` of your own, nested as the step was;
            ``index``: int64 ids, and ``weight``: float32, if the sampler has weights. Of a feeder's
            table that gives each item once, ``redelivered`` says which items a learner may have had
            before.

        Raises
        ------
        NotEnoughData
            Where there are too few items, and neither a limiter nor ``timeout_s`` to wait for.
        ConfigError
            If there could never be enough, ``batch_size`` is not a positive integer, or tensordict
            is not installed.
        OutOfMemory
            For a batch that is larger than the free memory.
        Timeout, WouldDeadlock
            When the limiter lets nothing out: after ``timeout_s``, or at once if there is no bound
            and no other thread.
        Closed, Broken, Unsupported
            Of a client.
        """
        if batch_format != "numpy" or device is not None:
            shown = self._view if view is None else view
            batch_format = checked_format(batch_format, device, shown)
        batch = self._sample(batch_size, view, timeout_s)
        return batch if batch_format == "numpy" else convert(batch, batch_format, device)

    @explain_wrong_names
    def update_priorities(
        self, index: Any, priority: Any, *, timeout_s: float | None = None
    ) -> Applied:
        """Change the priorities of items, by id.

        Parameters
        ----------
        index : int64 array or tensor [rows]
            Ids, as in a batch's ``index``. What became of the steps in the meantime does not
            matter: an id is never reused.
        priority : float array or tensor
            Finite, not negative; of any shape with as many elements. Of an id that is named twice
            the last counts. Errors ``[rows, time]`` of sequences become the priority of each, as
            `Sequences` says; NaN where there is no step.
        timeout_s : float, optional
            For tables elsewhere: here nothing is waited for.

        Returns
        -------
        Applied
            How many were still there (``applied``) and how many were not (``stale``). Those of
            shards that are lost count as stale.

        Raises
        ------
        Unsupported
            If the table has no prioritized sampler or remover.
        ConfigError
            Names a priority that is not allowed, before any is changed.
        Timeout, Closed, Broken
            Of a client.
        """
        return self._apply("update_priorities", index, {"priority": priority}, timeout_s)

    def update(self, index: Any, /, *, timeout_s: float | None = None, **fields: Any) -> Applied:
        """Overwrite fields of steps, by id: a reward that arrives late, a value that is computed
        again.

        Parameters
        ----------
        index : int64 array or tensor [rows]
            Or ``[rows, time]``, as the ``step_index`` of sequences: ids of -1 count as stale.
        timeout_s : float, optional
            As in `update_priorities`.
        **fields
            Arrays or tensors ``[rows, ...]``, of any shape with as many elements; names of
            top-level fields. With an index of two axes ``[rows, time, ...]``.

        Returns
        -------
        Applied

        Raises
        ------
        SchemaError
            For a field that is not there or does not fit; and for `terminated`, `truncated` and
            `done`, as what follows from those has happened.
        Timeout, Closed, Broken
            Of a client.
        """
        return self._apply("update", index, fields, timeout_s)

    @explain_wrong_names
    def delete(self, index: Any, *, timeout_s: float | None = None) -> Applied:
        """Remove items, by id: they are not drawn any more.

        Their neighbours' stacks and returns still show them.
        """
        return self._apply("delete", index, {}, timeout_s)
