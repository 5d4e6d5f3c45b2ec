"""What tables of a feeder and of a cluster have in common: their writers and sources."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, Generic, Literal, TypeVar

from async_loader.errors import ConfigError
from async_loader.feeder.client.reader_batches import Transport
from async_loader.feeder.client.writer import RemoteWriter, VectorTarget
from async_loader.feeder.client.writer_rows import WriterOptions
from async_loader.feeder.plain_values import plain_of, plain_view
from async_loader.feeder.wire import MOST_AHEAD, AboutReply, OpenReader, schema_of
from async_loader.lifecycle import LONGEST_S, Deadline, seconds_or_none
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.arguments import positive
from async_loader.replay.checkpoint.manifest import limiter_of
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers import Sampler
from async_loader.replay.table_methods import TableMethods
from async_loader.replay.views import View
from async_loader.schema import Schema, SchemaLike
from async_loader.source import Source
from async_loader.validation import seed_of, whole

TRY_ONCE_S = 1e-3
"""A timeout of 0 in an OPEN_READER, which has no time limit of 0."""
_MOST_IDLE = 16
S = TypeVar("S", bound=Source)
Kind = tuple[int, View | None]
"""A batch size and a view."""
Timeout = float | Deadline | None


D = TypeVar("D", bound=Any)


class IdleSources(Generic[D]):
    """Sources of `sample` that are kept open between calls. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Kind, D]] = []

    def take(self, kind: Kind, make: Callable[[], D]) -> D:
        """Return a source that no other call uses until `give_back` has it."""
        with self._lock:
            for i, (known, _) in enumerate(self._idle):
                if known == kind:
                    return self._idle.pop(i)[1]
        return make()

    def give_back(self, kind: Kind, source: D) -> None:
        """Keep a source for later calls; drop the one that was used longest ago."""
        with self._lock:
            self._idle.insert(0, (kind, source))
            rest, self._idle = self._idle[_MOST_IDLE:], self._idle[:_MOST_IDLE]
        for _, oldest in rest:
            oldest.drop()


class RemoteTable(TableMethods, Generic[S]):
    """A table in other processes.

    Attributes
    ----------
    name : str
    """

    name: str
    _timeout_s: float

    @abstractmethod
    def _about(self, timeout_s: Timeout = None) -> AboutReply:
        """Return what it says of itself."""

    @abstractmethod
    def _place(self) -> Any:
        """Return the table of a feeder that a new writer writes to."""

    @abstractmethod
    def _source(
        self, wanted: OpenReader, view: View | None, prefetch: int | None, transport: Transport
    ) -> S:
        """See `source`."""

    def _deadline(self, timeout_s: Timeout) -> Deadline:
        """Return the deadline of a call; ``None``: that of the client. Raises ConfigError."""
        if isinstance(timeout_s, Deadline):
            return timeout_s
        limit = seconds_or_none("timeout_s", timeout_s)
        return Deadline(self._timeout_s if limit is None else limit)

    @property
    def schema(self) -> Schema | None:
        """Schema of a step; ``None`` while it is unknown."""
        spec = self._about().schema
        return None if spec is None else schema_of(spec)

    @property
    def limiter(self) -> RateLimiter | None:
        """How far sampling and inserting may run ahead of each other.

        Each shard of a cluster limits by itself. Batches take from each in proportion to what it
        holds, so that the ratio holds in the sum.
        """
        return limiter_of(self._about().limiter)

    @explain_wrong_names
    def writer(
        self,
        stream: Hashable | None = None,
        *,
        schema: SchemaLike | None = None,
        batch_rows: int = WriterOptions.batch_rows,
        linger_ms: float = WriterOptions.linger_ms,
        buffer_bytes: int = WriterOptions.buffer_bytes,
        overflow: Literal["block", "drop_oldest"] = "block",
    ) -> RemoteWriter:
        """Return a new writer.

        It is opened in the background; its first call that waits raises the errors of that. Of a
        cluster it is bound to one shard: on this host, or the next in turn. All its
        streams stay there. When the shard is lost it keeps what is not acknowledged, and goes on
        with the process that takes the shard's place.

        Parameters
        ----------
        stream : hashable, optional
            Of steps that name none; by default a new one.
        schema : Schema, or what `Schema.of` takes, optional
            For a table that has none yet, rather than the schema of the first step.
        batch_rows : int
            Rows of a message that is sent at once.
        linger_ms : float
            After which a message with fewer rows is sent, counted from its first row; to a queue
            it is sent at once, unless another is under way.
        buffer_bytes : int
            Bytes of rows that are kept until they are acknowledged. For a queue a writer keeps no
            more rows than the queue takes, and one message.
        overflow : "block" | "drop_oldest"
            When there are more: let `append` wait, or drop the oldest message that was never sent.

        Raises
        ------
        ConfigError, SchemaError, Closed, Broken
        """
        made: RemoteWriter = self._place()._open_writer(
            RemoteWriter,
            stream,
            schema,
            batch_rows=batch_rows,
            linger_ms=linger_ms,
            buffer_bytes=buffer_bytes,
            overflow=overflow,
        )
        return made

    def _vector_target(self, schema: SchemaLike | None) -> Any:
        return self._place()._open_writer(VectorTarget, None, schema)

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
        prefetch: int | None = None,
        transport: Transport = "auto",
        timeout_s: float | None = None,
    ) -> S:
        """Return a source for ``AsyncDataLoader(source, batch_size)``.

        The loader makes one itself when it is given the table.

        Parameters
        ----------
        view : Transitions | Sequences | Hindsight, optional
            By default the table's. The functions of `Hindsight` are called here.
        sampler : Sampler, optional
            A sampler of the source's own, which the feeder makes from these settings.
        min_size : int
            Items that each batch waits for, of all shards together.
        seed : int, optional
            Of a cluster: the same seed, rank and shards whose tables do not change give the same
            batches.
        rank, world_size : int
            Of data-parallel learners: each draws a stream of its own. Of a queue each item goes to
            one of them.
        max_lag : int, optional
            As `ReplayBuffer.source`; the newest version is the one that was published to the
            feeder (of ``policy``, for the field ``policy_version``), or else the newest stored.
        prefetch : int, optional
            Batches on their way or waiting here; those of a queue hold their places in it. 64 at
            most, and over a socket no more than the feeder's ``in_flight_bytes``. By default 4 to
            32 by size, at most 8 with weights, and as many as a loader plans. With 0 a batch is
            drawn when `plan` waits for it. Of a cluster: those of each shard.
        transport : "auto" | "shm" | "tcp"
            How batches come from a feeder on this machine: written into memory of this process, or
            through its sockets (ipc too). "auto" uses memory, or logs why not; "shm" raises then.
        timeout_s : float, optional
            For a batch, after which Timeout is raised; ``None``: as long as the loader waits.

        Raises
        ------
        ConfigError, Unsupported
        """
        if whole("rank", rank, 0) >= whole("world_size", world_size, 1):
            raise ConfigError(f"rank={rank} of world_size={world_size}: ranks count from 0")
        limit = seconds_or_none("timeout_s", timeout_s)
        wanted = OpenReader(
            table=self.name,
            batch_size=1,
            view=plain_view(view),
            rank=rank,
            world_size=world_size,
            seed=None if seed is None else seed_of(seed),
            timeout_s=None if limit is None or limit > LONGEST_S else max(limit, TRY_ONCE_S),
            together=MOST_AHEAD,
            min_size=positive("min_size", min_size),
            sampler=None if sampler is None else plain_of(sampler),
            max_lag=None if max_lag is None else whole("max_lag", max_lag, 0),
        )
        return self._source(wanted, view, prefetch, transport)
