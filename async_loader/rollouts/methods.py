"""The methods of a table of rollouts, in this process and in a feeder."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.samplers import Sampler
from async_loader.replay.samplers.sampler import check_sampler
from async_loader.rollouts.producers import ProducerMethods
from async_loader.rollouts.schema import Array, cast_array
from async_loader.rollouts.source import Keep, RolloutSource, checked_learner
from async_loader.rollouts.states import MEMBER_BITS
from async_loader.rollouts.stats import RolloutStats
from async_loader.source import Applied
from async_loader.table import Batch
from async_loader.validation import version_of

_PARTS = itertools.count(1)


class RolloutMethods(ProducerMethods):
    """A table of rollouts, wherever it is."""

    _sources: weakref.WeakSet[RolloutSource]

    @property
    def version(self) -> int:
        """The newest version that was published."""
        return int(self._about()["version"])

    @property
    def step(self) -> int:
        """The number of batches that were drawn, also before it was restored."""
        return int(self._about()["step"])

    def __len__(self) -> int:
        """Return the number of groups that are ready."""
        return self.stats().states["ready"]

    def stats(self) -> RolloutStats:
        """Return counts by state and by reason, ages, lags, and what waits for what."""
        return RolloutStats.of(self._ask("status")[0])

    # -- learners ----------------------------------------------------------------------------------

    @explain_wrong_names
    def source(
        self,
        *,
        needs: Sequence[str] | None = None,
        fields: Sequence[str] | None = None,
        keep: Keep | None = None,
        sampler: Sampler | None = None,
        max_times_sampled: int | None = 1,
        tokens: int | None = None,
        cost: tuple[float, float] = (1.0, 0.0),
        overlong: str = "alone",
        rank: int = 0,
        world_size: int = 1,
    ) -> RolloutSource:
        """Return a source for ``AsyncDataLoader(source)``. Each batch is one step of the learner.

        A batch has values of ragged fields one behind the other, and ``offsets`` int32
        ``[members + 1]`` (``cu_seqlens``); other fields ``[members, ...]``; fields of groups
        ``[groups, ...]``; ``group`` ``[members]``, which of these; ``index`` ``[members]``, ids;
        ``lag`` ``[members]``, versions since the group was begun; ``redelivered`` ``[members]``;
        ``micro`` ``[micro-batches + 1]``, where each begins; ``prompt_index`` ``[groups]``.

        Parameters
        ----------
        needs : sequence of str, optional
            Fields that a group must have; by default all.
        fields : sequence of str, optional
            Those of a batch; by default all that its groups have.
        keep : callable, optional
            Is given the fields of a group that are not ragged, as arrays ``[members, ...]``; a
            group for which it is false is ended as "filtered", and gives its slot back.
        sampler : Sampler, optional
            The order in which groups are chosen, by default the oldest first.
        max_times_sampled : int | None
            How often a group is given; for more than once the table has ``replay=``. Then
            ``max_lag`` holds for the first time.
        tokens : int, optional
            Of a micro-batch at most; each rank has the same number of these, and none is empty:
            see `micro_batches`.
        cost : (float, float)
            ``a, b``: a member of L tokens costs ``a * L + b * L ** 2``; ranks and micro-batches get
            equal shares.
        overlong : "alone" | "error"
            A member of more than ``tokens`` is a micro-batch alone, or its group is ended and
            `next` raises ConfigError.
        rank, world_size : int
            Of data-parallel learners, which share each batch: a group is on one of them.

        Raises
        ------
        ConfigError, SchemaError
        """
        schema = self.group_schema
        if keep is not None and not callable(keep):
            raise ConfigError(f"keep={keep!r}: give a function of a group, or leave it out")
        learner = checked_learner(
            needs=None if needs is None else list(schema.named("needs", needs)),
            fields=None if fields is None else list(schema.named("fields", fields)),
            judges=keep is not None, max_times_sampled=max_times_sampled, tokens=tokens,
            cost=list(cost), overlong=overlong, world_size=world_size,
            sampler=None if sampler is None else self._sampler(check_sampler("sampler", sampler)),
            rank=rank,
        )  # fmt: skip
        batch = int(self._about()["batch"])
        source = RolloutSource(self._port, schema, next(_PARTS), learner, rank, keep, batch, self)
        self._sources.add(source)
        return source

    def _sampler(self, sampler: Sampler) -> Any:
        """Return a sampler as it travels."""
        return sampler

    def publish(self, version: int) -> None:
        """There is a newer policy: what learners of this process were given is trained.

        In a feeder, `Client.publish` does this, unless weights go another way.
        """
        number = version_of(version)
        self._settle(hold=True)
        self._ask("publish", version=number)

    def settle(self) -> None:
        """Note that all batches that this process was given are trained."""
        self._settle(hold=False)

    def _settle(self, hold: bool) -> bool:
        """As `settle`; ``hold``: the next step waits for the version that is published now.

        Return whether there was anything.
        """
        used = [one for one in (source.used() for source in list(self._sources)) if one]
        for part, step in used:
            self._ask("settle", part=part, step=step, hold=hold)
        return bool(used)

    def _release_hold(self) -> bool:
        """No version follows."""
        self._ask("release_hold")
        return True

    # -- by id -------------------------------------------------------------------------------------

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set fields that are not ragged, by ids of members.

        Parameters
        ----------
        index : int64 array [rows]
            As in batches.
        **fields
            Arrays ``[rows, ...]``. Of a field of the group the first row of each counts.
        """
        ids = np.ascontiguousarray(tensors.to_ids(index).reshape(-1))
        arrays = {"index": ids}
        for name, value in fields.items():
            (known,) = self.group_schema.named("update", name)
            field = self.group_schema.fields[known]
            given = np.asarray(tensors.to_array(value))
            if name in self.group_schema.ragged or given.shape != (len(ids), *field.shape):
                raise SchemaError(
                    f"field {name!r} has shape {list(given.shape)}, {len(ids)} ids take "
                    f"{[len(ids), *field.shape]}; a ragged field is set member by member"
                )
            arrays[name] = cast_array(name, given, field.dtype)
        return self._apply("update", arrays)

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Set priorities of groups, by ids of their members: of each group the largest counts."""
        arrays = {
            "index": np.ascontiguousarray(tensors.to_ids(index).reshape(-1)),
            "priority": np.ascontiguousarray(tensors.to_array(priority), np.float64).reshape(-1),
        }
        rows, given = map(len, arrays.values())
        if rows != given:
            raise SchemaError(f"{given} priorities for {rows} ids: give one for each")
        return self._apply("prioritize", arrays)

    def delete(self, index: Any) -> Applied:
        """End the groups of these members, if they are ready: their slots are free."""
        groups = np.unique(tensors.to_ids(index) >> MEMBER_BITS).tolist()
        return self._apply("delete", groups=groups)

    def _apply(
        self, name: str, arrays: Mapping[str, Array] | None = None, **arguments: Any
    ) -> Applied:
        return Applied(**self._ask(name, arrays, **arguments)[0])

    def get(self, index: Any) -> Batch:
        """Return the groups of these members that are there, as a batch; it changes nothing."""
        groups = np.unique(tensors.to_ids(index) >> MEMBER_BITS).tolist()
        return self._ask("get", groups=groups)[1]

    def clear(self) -> None:
        """End all groups and forget all prompts. Versions and ids go on."""
        self._ask("clear")
