"""The methods of a table of rollouts, in this process and in a feeder."""

from __future__ import annotations

import itertools
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.samplers import Sampler
from async_loader.rollouts.groups import Member, OpenGroup, Prompts, ticket
from async_loader.rollouts.port import Port
from async_loader.rollouts.prompts import NEXT
from async_loader.rollouts.schema import Array, GroupSchema, Ragged, cast_array
from async_loader.rollouts.source import Keep, RolloutSource, checked_learner
from async_loader.rollouts.states import MEMBER_BITS
from async_loader.rollouts.stats import RolloutStats
from async_loader.source import Applied
from async_loader.table import Batch
from async_loader.validation import whole

_PARTS = itertools.count(1)


class RolloutMethods:
    """A table of rollouts, wherever it is."""

    _port: Port
    _sources: weakref.WeakSet[RolloutSource]

    @abstractmethod
    def _about(self) -> Mapping[str, Any]:
        """Return its settings, and where it stands."""

    @property
    @abstractmethod
    def group_schema(self) -> GroupSchema:
        """The fields."""

    def _ask(
        self, name: str, arrays: Mapping[str, Array] | None = None, /, **arguments: Any
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        port = self._port
        return port.answer(port.ask(name, arguments, arrays or {}), port.timeout_s)

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

    # -- generators --------------------------------------------------------------------------------

    @explain_wrong_names
    def groups(
        self,
        prompts: Iterable[Any],
        *,
        name: str = "prompts",
        epochs: int | None = 1,
        size: int | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[OpenGroup]:
        """Yield a group for each prompt, when there is a slot for it.

        The end of the loop's body commits it. If the body raises, or is left by ``break``, the
        prompt is given back, and tried again. The same happens if this process dies, or does not
        commit within ``deadline_s``. The loop ends when there are no more prompts, and none can be
        given back.

        Parameters
        ----------
        prompts : sequence, or iterable of plain values
            A sequence is numbered by the table: generators that name it alike share it, and one
            that starts again goes on where they were. An iterable belongs to one generator; its
            values travel to the table (numbers, text, lists, dicts), and one that starts again
            passes over those that were drawn.
        name : str
            Of the prompts, under which the table counts them.
        epochs : int | None
            How often a sequence is passed; ``None``: without end.
        size : int, optional
            Members of each group, rather than those of the table.
        timeout_s : float, optional
            For each slot; ``None``: as long as it takes.

        Raises
        ------
        Timeout
            Says who holds the slots.
        """
        port, about = self._port, self._about()
        supply = Prompts(prompts, epochs, int(about["cursors"].get(name, 0)))
        group: OpenGroup | None = None
        try:
            while True:
                committing = [] if group is None or group.over else group.ask_commit()
                arguments = supply.arguments()
                pending = port.ask(
                    "reserve",
                    {
                        "name": name, "ticket": ticket(), **arguments,
                        **({} if size is None else {"size": whole("size", size, 1)}),
                    },
                    wait_s=timeout_s,
                )  # fmt: skip
                if group is not None:
                    group.committed(committing, port.timeout_s)
                    group = None
                granted, _ = port.answer(pending, timeout_s)
                if "end" in granted:
                    return
                if "number" in arguments:
                    supply.sent()
                if "next" in granted:
                    continue
                prompt = supply.granted(granted)
                group = OpenGroup(port, self.group_schema, granted, prompt)
                yield group
        finally:
            if group is not None and not group.over:
                group.abort("the loop was left", timeout_s=port.timeout_s)

    @explain_wrong_names
    def reserve(
        self,
        prompt: Any = None,
        *,
        name: str = "reserved",
        size: int | None = None,
        timeout_s: float | None = None,
    ) -> OpenGroup:
        """Reserve one group: `groups` for a program that has its own loop over prompts.

        Its prompt, a plain value, comes again if it is given back: the group that is returned may
        be for another one, see `OpenGroup.prompt`.

        Parameters
        ----------
        prompt : plain value
        name, size, timeout_s
            As for `groups`.
        """
        port = self._port
        arguments = {"name": name, "ticket": ticket(), "number": NEXT, "value": prompt}
        if size is not None:
            arguments["size"] = whole("size", size, 1)
        granted, _ = port.answer(port.ask("reserve", arguments, wait_s=timeout_s), timeout_s)
        return OpenGroup(port, self.group_schema, granted, granted["value"])

    def extend(
        self,
        batch: Mapping[str, Any],
        *,
        prompts: Sequence[Any] | None = None,
        name: str = "reserved",
        timeout_s: float | None = None,
    ) -> list[int]:
        """Add whole groups that are there already, in one call; return their ids.

        Parameters
        ----------
        batch : dict of arrays
            As `source` gives them: ragged fields one behind the other with ``offsets``, other
            fields ``[members, ...]``, fields of groups ``[groups, ...]``, and ``group``
            ``[members]``, from 0 on in order. Fields may be left out, and come later.
        prompts : sequence of plain values, optional
            For the groups.
        name, timeout_s
            As for `reserve`: it waits for slots for all.
        """
        schema = self.group_schema
        group = np.asarray(tensors.to_array(batch["group"]), np.int64)
        sizes = np.bincount(group) if len(group) else np.zeros(0, np.int64)
        if (np.diff(group) < 0).any() or not sizes.all():
            raise SchemaError("`group` counts from 0 on, each group's members together")
        arrays: dict[str, Array] = {
            "lengths": np.diff(np.asarray(tensors.to_array(batch["offsets"]))).astype(np.int64),
            "sizes": sizes,
        }
        for one, value in batch.items():
            if one in schema.fields:
                if isinstance(schema.fields[one], Ragged) and one in schema.group:
                    raise SchemaError(f"field {one!r} is ragged and of the group: say reserve()")
                given, keeps = np.asarray(tensors.to_array(value)), self._port.keeps
                arrays[one] = cast_array(one, given, schema.fields[one].dtype, copy=keeps)
        listed = [None] * len(sizes) if prompts is None else list(prompts)
        if len(listed) != len(sizes):
            raise ConfigError(f"{len(listed)} prompts for {len(sizes)} groups: one for each")
        return self._extend(arrays, listed, name, timeout_s)

    def _extend(
        self, arrays: dict[str, Array], prompts: list[Any], name: str, timeout_s: float | None
    ) -> list[int]:
        """As `extend`, in as many calls as it takes."""
        nbytes, schema = sum(one.nbytes for one in arrays.values()), self.group_schema
        if nbytes > self._port.most_bytes and len(prompts) > 1:
            half = len(prompts) // 2
            members = int(arrays["sizes"][:half].sum())
            tokens = int(arrays["lengths"][:members].sum())
            cuts = dict.fromkeys(schema.ragged, tokens)
            cuts |= dict.fromkeys((*schema.small, "lengths"), members)
            first = {one: values[: cuts.get(one, half)] for one, values in arrays.items()}
            last = {one: values[cuts.get(one, half) :] for one, values in arrays.items()}
            return [
                *self._extend(first, prompts[:half], name, timeout_s),
                *self._extend(last, prompts[half:], name, timeout_s),
            ]
        arguments = {"name": name, "ticket": ticket(), "prompts": prompts}
        pending = self._port.ask("extend", arguments, arrays, wait_s=timeout_s)
        return list(self._port.answer(pending, timeout_s)[0]["groups"])

    def finish(self, name: str = "reserved") -> None:
        """There are no more prompts of this name: learners come to an end, when all have."""
        self._ask("finish", name=name)

    # -- late fields -------------------------------------------------------------------------------

    @explain_wrong_names
    def members(
        self,
        needs: Sequence[str],
        give: Sequence[str] = (),
        *,
        name: str = "",
        ahead: int = 1,
        timeout_s: float | None = None,
    ) -> Iterator[Member]:
        """Yield each member that has some fields and lacks others, once, as soon as it is there.

        Loops of the same ``needs``, ``give`` and ``name`` share them, in any processes. What a loop
        has and does not finish goes to another one.

        Parameters
        ----------
        needs, give : sequence of str
            Fields that all members of its group have; fields that it gets by `Member.update`.
            Without ``give`` each member is yielded.
        ahead : int
            Members that are taken at a time.
        timeout_s : float, optional
            For each; ``None``: as long as it takes. The loop ends when no member can come any more.
        """
        port, wanted = self._port, (needs, give)
        needs, give = ([one] if isinstance(one, str) else list(one) for one in wanted)
        task = {
            "needs": needs, "give": give, "name": name, "most": whole("ahead", ahead, 1),
            "loop": ticket(),
        }  # fmt: skip
        turns = itertools.count()
        done: list[int] = []
        open_: list[int] = []
        try:
            while True:
                pending = port.ask(
                    "claim", {**task, "done": done, "turn": next(turns)}, wait_s=timeout_s
                )
                head, arrays = port.answer(pending, timeout_s)
                if "end" in head:
                    return
                done, open_ = [], list(head["members"])
                fields: list[dict[str, Array]] = [{} for _ in open_]
                for key, value in arrays.items():
                    place, _, field = key.partition(".")
                    fields[int(place)][field] = value
                for i, one in enumerate(list(open_)):
                    yield Member(port, self.group_schema, one, fields[i])
                    open_.remove(one)
                    done.append(one)
        finally:
            if open_:
                port.tell("unclaim", {"members": open_})

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
        seed: int | None = None,
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
        learner = checked_learner(
            needs=None if needs is None else list(schema.named("needs", needs)),
            fields=None if fields is None else list(schema.named("fields", fields)),
            judges=keep is not None,
            max_times_sampled=max_times_sampled,
            tokens=tokens,
            cost=list(cost),
            overlong=overlong,
            world_size=world_size,
            sampler=self._sampler(sampler),
            rank=rank,
        )
        batch = int(self._about()["batch"])
        source = RolloutSource(self._port, schema, next(_PARTS), learner, rank, keep, batch, self)
        self._sources.add(source)
        return source

    def _sampler(self, sampler: Sampler | None) -> Any:
        """Return a sampler as it travels."""
        return sampler

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
        found = self._ask("update", arrays)[0]
        return Applied(found["applied"], found["stale"])

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Set priorities of groups, by ids of their members: of each group the largest counts."""
        arrays = {
            "index": np.ascontiguousarray(tensors.to_ids(index).reshape(-1)),
            "priority": np.ascontiguousarray(tensors.to_array(priority), np.float64).reshape(-1),
        }
        found = self._ask("prioritize", arrays)[0]
        return Applied(found["applied"], found["stale"])

    def delete(self, index: Any) -> Applied:
        """End the groups of these members, if they are ready: their slots are free."""
        groups = np.unique(tensors.to_ids(index) >> MEMBER_BITS).tolist()
        found = self._ask("delete", groups=groups)[0]
        return Applied(found["applied"], found["stale"])

    def get(self, index: Any) -> Batch:
        """Return the groups of these members that are there, as a batch; it changes nothing."""
        groups = np.unique(tensors.to_ids(index) >> MEMBER_BITS).tolist()
        return self._ask("get", groups=groups)[1]

    def clear(self) -> None:
        """End all groups and forget all prompts. Versions and ids go on."""
        self._ask("clear")
