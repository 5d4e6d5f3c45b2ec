"""Protocols of tables and writers: what each offers, in this process and elsewhere.

A table is a `async_loader.ReplayBuffer` of this process, or one of a feeder
(``connect(...).table(name)``): the same methods, with the same names, order and defaults, so that a
script changes one line when its table moves to another process. A table is no `Source`:
`Table.source` makes one, and a loader does that by itself.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader.batch_format import BatchFormat
from async_loader.public_names import set_public_names
from async_loader.schema import Schema, SchemaLike
from async_loader.source import Applied, Source

if TYPE_CHECKING:
    import torch

    from async_loader.replay.checkpoint.writing import SaveReport
    from async_loader.replay.rate_limiter import RateLimiter
    from async_loader.replay.samplers import Sampler
    from async_loader.replay.stats import TableStats
    from async_loader.replay.views import View

__all__ = [
    "AutoReset",
    "Batch",
    "BatchFormat",
    "Ids",
    "Streams",
    "Table",
    "VectorEnv",
    "VectorWriter",
    "Writer",
]
set_public_names(globals())

Ids: TypeAlias = npt.NDArray[np.int64]
"""Ids of steps, int64 ``[rows]``: never reused, counted from 0 in each table."""

Batch: TypeAlias = dict[str, Any]
"""Arrays or tensors ``[rows, ...]``, nested as a step is, with ``index`` (ids).

A TensorDict where that is asked for.
"""

AutoReset: TypeAlias = Literal["next_step", "same_step", "disabled"] | enum.Enum
"""When environments reset by themselves: a word, or a ``gymnasium.vector.AutoresetMode``."""

Streams: TypeAlias = Hashable | Sequence[Hashable] | npt.NDArray[Any]
"""One stream for all rows of a batch, or one per row ``[rows]``."""


class VectorEnv(Protocol):
    """What is asked of a vector of environments: how many there are.

    ``metadata["autoreset_mode"]`` says how they reset.
    """

    @property
    def num_envs(self) -> int: ...


@runtime_checkable
class Writer(Protocol):
    """Adds the steps of an actor: a Protocol for writers of this process, of another process, and
    of a feeder.

    Threads: one at a time.

    Attributes
    ----------
    stream : hashable
        Default stream: steps of one stream follow each other.
    schema : Schema | None
        Schema of a step; ``None`` while it is unknown.
    """

    @property
    def stream(self) -> Hashable: ...

    @property
    def schema(self) -> Schema | None: ...

    @property
    def steps(self) -> int:
        """Steps that this writer has added. It never falls."""

    def append(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: Any = None,
        truncated: Any = None,
        final_obs: Any = None,
        stream: Hashable | None = None,
        priority: float | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> int | None:
        """Add a stream's next step. Return its id; ``None`` if the table assigns ids elsewhere.

        Parameters
        ----------
        step : mapping, optional
            Observation, action, reward and so on, as a (nested) dict or as keywords.
        terminated, truncated : bool
            Whether nothing comes after this step, or the episode was cut off after it. Stored too,
            where the schema (or the first step, if there is no schema) has fields of these names
            and the step does not say it itself.
        final_obs : array or (nested) dict of arrays, optional
            The observation after the episode's last step.
        stream : hashable, optional
            By default the writer's own.
        priority : float, optional
        timeout_s : float, optional
            How long to wait for room. ``None``: a table has no limit, a client that of `connect`;
            0: try once.

        Raises
        ------
        SchemaError, ConfigError, Timeout, Closed, Broken
            The step was not added.
        """

    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: Any = None,
        truncated: Any = None,
        final_obs: Any = None,
        stream: Streams | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Ids | None:
        """Add many steps: an array ``[rows, ...]`` for each field. As `append`.

        Parameters
        ----------
        terminated, truncated : bool | bool array [rows]
        final_obs : array [rows, ...] or (nested) dict of arrays, optional
            Rows that end no episode are ignored.
        stream : hashable | sequence or array [rows], optional
            One for all rows, or each row's own. By default the writer's.
        priority : float array [rows], optional
            Of any shape with as many elements.
        """

    def end_episode(
        self,
        *,
        final_obs: Any = None,
        stream: Hashable | None = None,
        terminated: bool = False,
        truncated: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """End a stream's episode after its last step, if that was not known when the step was
        added.

        Neither ``terminated`` nor ``truncated`` counts as truncated.
        """

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all steps that were added are in the table."""

    def close(self, timeout_s: float | None = None) -> None:
        """End the writer: open episodes end as `end_episode` without arguments ends them.

        May be called again.
        """

    def __enter__(self) -> Writer: ...

    def __exit__(self, *raised: object) -> None: ...


class VectorWriter(Protocol):
    """Adds the steps of a vector of environments, each environment's to a stream of its own.

    Threads: one at a time.
    """

    @property
    def streams(self) -> Sequence[Hashable]: ...

    def append(
        self,
        *,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        info: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Ids | None:
        """Add one call of ``envs.step``: a step of each environment, or of none."""

    @property
    def schema(self) -> Schema | None: ...

    @property
    def steps(self) -> int: ...

    def reset(self, *, final_obs: Any = None, mask: Any = None) -> None:
        """Tell that ``envs.reset()`` was called: the next steps belong to new episodes.

        Parameters
        ----------
        final_obs : array [envs, ...] or (nested) dict of arrays, optional
            The observations before the reset, with which open episodes end as truncated. Without
            them their last steps are given up.
        mask : bool array [envs], optional
            Which environments were reset; all by default.
        """

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all steps that were added are in the table."""

    def close(self, timeout_s: float | None = None) -> None:
        """End the open episodes. Idempotent."""

    def __enter__(self) -> VectorWriter: ...

    def __exit__(self, *raised: object) -> None: ...


def is_table(value: object) -> TypeGuard[Table]:
    """Whether ``value`` is a table and no class.

    Asks for none of its properties: those of a table elsewhere take time.
    """
    kind = type(value)
    return not isinstance(value, type) and all(
        callable(getattr(kind, name, None)) for name in ("source", "sample", "writer")
    )


@runtime_checkable
class Table(Protocol):
    """Steps, and what draws them. A ``timeout_s`` of ``None``: a table of this process has no
    limit, a client that of `connect`.

    Threads: any.

    Attributes
    ----------
    capacity : int | None
        Largest number of steps kept; ``None`` while it depends on an unknown schema.
    schema : Schema | None
        Schema of a step; ``None`` while it is unknown.
    nbytes : int | None
        Shared memory of the full table; ``None`` while the schema is unknown.
    limiter : RateLimiter | None
        Bound on how far sampling and inserting may run ahead of each other.
    """

    @property
    def capacity(self) -> int | None: ...

    @property
    def schema(self) -> Schema | None: ...

    @property
    def nbytes(self) -> int | None: ...

    @property
    def limiter(self) -> RateLimiter | None: ...

    def __len__(self) -> int:
        """Return how many items can be drawn."""

    def writer(self, stream: Hashable | None = None, *, schema: SchemaLike | None = None) -> Writer:
        """What adds the steps of an actor.

        ``schema``: for a table that has none yet, rather than that of the first step.

        A table elsewhere takes more keywords, of how they travel.
        """

    def vector_writer(
        self,
        envs: int | VectorEnv,
        *,
        autoreset: AutoReset | None = None,
        streams: Sequence[Hashable] | None = None,
        schema: SchemaLike | None = None,
    ) -> VectorWriter:
        """Make a writer for a vector of environments."""

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

        Raises NotEnoughData where it cannot.
        """

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
    ) -> Source:
        """Make a source of the table, for a loader.

        Steps of a policy more than ``max_lag`` versions behind the newest are not drawn. The
        newest is the largest that could be drawn so far, or that was published to the table's
        feeder.
        """

    def get(self, index: Any, *, view: View | None = None) -> Batch:
        """Read steps by id.

        Ids that are gone are left out; ``index`` of the batch tells which are there.
        """

    def update_priorities(
        self, index: Any, priority: Any, *, timeout_s: float | None = None
    ) -> Applied:
        """Change priorities by id. Ids that are gone are counted."""

    def update(self, index: Any, /, *, timeout_s: float | None = None, **fields: Any) -> Applied:
        """Overwrite some fields by id. Ids that are gone are counted."""

    def delete(self, index: Any, *, timeout_s: float | None = None) -> Applied:
        """Remove items by id. Ids that are gone are counted."""

    def clear(self, *, timeout_s: float | None = None) -> None:
        """Remove all items, and end all open episodes.

        Ids continue; counts begin at zero, and with them the limiter.
        """

    def save(self, path: str | os.PathLike[str], *, timeout_s: float | None = None) -> SaveReport:
        """Write the whole table into a folder."""

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        number: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Replace the table's contents by those of a save."""

    def stats(self) -> TableStats:
        """Return the table's counts, and the calls that wait for it."""
