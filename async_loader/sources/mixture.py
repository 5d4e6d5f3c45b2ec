"""Several tables as one source, in shares that hold in every batch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import CannotSend, Closed, ConfigError, Unsupported
from async_loader.lifecycle import ClosedAtExit, Patience
from async_loader.name_hints import explain_wrong_names
from async_loader.public_names import set_public_names
from async_loader.schema import Schema
from async_loader.source import (
    END,
    AnyThread,
    Applied,
    Foresighted,
    Leasing,
    Plan,
    Reader,
    Ready,
    Source,
    Updating,
    finishes,
)
from async_loader.sources.columns import ColumnsSource
from async_loader.sources.mixture_member import MixtureMember, empty_rows, in_all, split_by_source
from async_loader.sources.mixture_rows import (
    MOST_SOURCES,
    Ids,
    MixedSchema,
    numbers_of,
    own_ids,
)
from async_loader.table import Table, is_table
from async_loader.validation import real, seed_of, whole

__all__ = ["Mixture"]
set_public_names(globals())

Member = Any
"""A Table, a Source, or (in a sequence of pairs) a dict of columns."""


class Mixture(ClosedAtExit):
    """Several tables as one source: each batch has rows of all of them, in these shares.

    For example half of a batch from demonstrations and half from what the agent has just done, as
    in RLPD (Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", section
    4.1: "symmetric sampling").

    A batch of n rows has ``floor(n * share)`` or ``ceil(n * share)`` of each source, and
    ``n * share`` in the mean: cumulated shares are rounded by one random number a batch (systematic
    sampling). The rows of a batch lie source after source, in the order in which these were given.

    ``index`` identifies the source too: its number is in the bits from 56 on, so that the ids of
    the first source are those of its table. `update_priorities`, `update` and `delete`, also those
    of a loader, pass each row to its own source; see `numbers` and `ids` too.

    Weights correct, within the rows of each source, for how that source's sampler chose them, and
    are normalised by it alone: that one source has more rows than another is what the shares ask
    for, and is not corrected, and large weights of one source do not shrink those of another. A
    source without weights has weight 1 where another has some, and ``redelivered`` is False where a
    source does not say it.

    The mixture ends when one of its sources ends. A source that delivers batches which were made
    elsewhere (a table of a feeder) is asked for ``ceil(n * share)`` rows each time; what is over
    goes into the next batch. The sources are waited for one after the other; `waiting_for` names
    the one that is waited for.

    Threads: as a `Source`, `draw_now` included. Batches are made by the thread that draws them,
    not by workers. Cost: those of the sources, some 50 us a batch, and one more copy of the rows.

    Parameters
    ----------
    shares : mapping of Table or Source to float, or sequence of (Table, Source or dict, float)
        Above 0, in any unit: they are divided by their sum. A sequence may name one table several
        times, through sources with views or samplers of their own, and may hold dicts of columns.
    seed : int, optional
        For the rounding, and for the sources that are made here of tables and columns; sources that
        were given have seeds of their own.

    Raises
    ------
    ConfigError
        For shares that are no numbers above 0, sources that cannot be mixed, another Mixture, and
        sources whose rows differ in name, shape or dtype of a field. What is not
        known yet is compared when the first batch is planned.
    """

    @explain_wrong_names
    def __init__(
        self,
        shares: Mapping[Table | Source, float] | Sequence[tuple[Member, float]],
        *,
        seed: int | None = None,
    ) -> None:
        if seed is not None:
            seed = seed_of(seed)
        pairs = _pairs(shares)
        total = sum((share for _, share in pairs), Fraction(0))
        seeds = np.random.SeedSequence(seed).spawn(len(pairs) + 1)
        self._rng = np.random.default_rng(seeds[-1])
        self._seed = int(seeds[-1].generate_state(1)[0])
        self._members: list[MixtureMember] = []
        self._made = contextlib.ExitStack()  # closes the sources that are made here
        self._closed = False
        self._ended = False
        self._counts: tuple[int, list[int]] | None = None  # of the batch that is being planned
        self._at: MixtureMember | None = None
        self._mixed: MixedSchema | None = None
        self._batches = 0
        with contextlib.ExitStack() as undo:
            undo.push(self._made)
            for number, (what, share) in enumerate(pairs):
                own = None if seed is None else int(seeds[number].generate_state(1, np.uint64)[0])
                source = self._source(number, what, None if own is None else own >> 1)
                table = what if is_table(what) else None
                self._members.append(MixtureMember(number, source, share / total, table))
            for member in self._members:
                if finishes(member.source) is not None:
                    raise ConfigError(
                        f"source {member.number} of the mixture has a view with whole='ragged', "
                        "and rows of a mixture have the same shape: say whole=True"
                    )
                if (shards := getattr(member.source, "shards", 1)) > 1:
                    raise ConfigError(
                        f"source {member.number} of the mixture is a cluster of {shards} shards, "
                        "and an index has room for the number of a shard or of a source: name the "
                        "tables of the shards, client.shard(name).table(name), each with its share"
                    )
            self._mix()
            undo.pop_all()

    def _source(self, number: int, what: Any, seed: int | None) -> Source:
        if isinstance(what, Mixture):
            raise ConfigError(
                f"source {number} of the mixture is a Mixture: name its tables here, each with its "
                "share multiplied by that of the mixture"
            )
        if is_table(what):
            made = what.source(seed=seed)
            close = getattr(made, "close", None)
            if close is not None:
                self._made.callback(close)
            return made
        if isinstance(what, Mapping):
            return ColumnsSource(what, seed)
        if not isinstance(what, type) and isinstance(what, Source) and isinstance(what, AnyThread):
            return what
        raise ConfigError(
            f"source {number} of the mixture is {what!r}: give a table, a dict of columns, or a "
            "Source with draw_now, such as table.source(view=...)"
        )

    # -- planning ----------------------------------------------------------------------------------

    def plan(self, batch_size: int, patience: Patience) -> Plan:
        """Make a batch of rows of all sources. Waits for one source after the other."""
        plan = self._planned(batch_size, lambda source, count: source.plan(count, patience))
        assert plan is not None
        return plan

    def draw_now(self, batch_size: int) -> Plan | None:
        """See `AnyThread`."""
        return self._planned(
            batch_size, lambda source, count: cast(AnyThread, source).draw_now(count)
        )

    def _planned(self, batch_size: int, ask: Callable[[Source, int], Plan | None]) -> Plan | None:
        if self._closed:
            raise Closed("this mixture was closed: make another")
        if self._ended:
            return END
        counts = self._rounded(batch_size)
        for member, count in zip(self._members, counts, strict=True):
            self._at = member
            # also of a source that gives no row this time: its fields have to be known
            wanted = max(count, int(member.schema is None))
            there = member.fill(wanted, batch_size, ask, (self._seed, self._batches))
            if there is None:
                return None
            if not there:
                self._ended, self._at = True, None
                return END
        self._at, self._counts = None, None
        mixed = self._mix()
        assert mixed is not None
        arrays = empty_rows(mixed.schema, batch_size)
        at, leases = 0, []
        for member, count in zip(self._members, counts, strict=True):
            for piece in member.take(count):
                stop = at + len(piece.arrays[0])
                mixed.write(member.number, [one[at:stop] for one in arrays], piece.arrays)
                at = stop
                if piece.lease is not None:
                    leases.append((member.number, piece.lease, piece.ends))
        self._batches += 1
        batch = tree.rebuild_batch(mixed.schema.structure, arrays)
        return Ready(batch, True, tuple(leases) or None)

    def _rounded(self, batch_size: int) -> list[int]:
        """Return how many rows of each source the next batch has."""
        if self._counts is None or self._counts[0] != batch_size:
            shift = float(self._rng.random())
            cumulated = accumulate(member.share * batch_size for member in self._members)
            bounds = [0, *(int(one) + int(float(one % 1) + shift) for one in cumulated)]
            self._counts = batch_size, [high - low for low, high in pairwise(bounds)]
        return self._counts[1]

    def _mix(self) -> MixedSchema | None:
        """Return what the sources have in common; ``None`` while not all of them know their rows.

        Compares those that do.
        """
        if self._mixed is None:
            for member in self._members:
                _ = member.schema or member.reader
            known = [member for member in self._members if member.schema is not None]
            if known:
                schemas = [cast(Schema, member.schema) for member in known]
                mixed = MixedSchema(
                    schemas,
                    [member.name for member in known],
                    [getattr(member.source, "sequences", False) for member in known],
                )
                self._mixed = mixed if len(known) == len(self._members) else None
        return self._mixed

    def state_dict(self) -> dict[str, Any] | None:
        """See `Resumable`: the states of all sources; ``None`` if one of them has none."""
        members = [member.state() for member in self._members]
        if any(state is None for state, _ in members):
            return None
        generator = self._rng.bit_generator.state
        return {"generator": generator, "seed": self._seed, "batches": self._batches,
                "counts": self._counts, "members": members}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Resumable`.

        Raises
        ------
        ConfigError
            If the state is of another number of sources.
        """
        if len(state["members"]) != len(self._members):
            raise ConfigError(
                f"the state is of a mixture of {len(state['members'])} sources, and this one has "
                f"{len(self._members)}: make it as it was then"
            )
        self._rng.bit_generator.state = state["generator"]
        self._seed, self._counts = state["seed"], state["counts"]
        self._batches = whole("batches", state["batches"], 0)
        self._ended, self._at = False, None
        for member, (of_source, taken) in zip(self._members, state["members"], strict=True):
            member.load(of_source, whole("taken", taken, 0))

    def reader(self) -> Reader | None:
        """Return None: `plan` reads the rows of all sources."""
        return None

    def waiting_for(self) -> str | None:
        """Name the source that `plan` waits for, and say what it waits for."""
        member = self._at
        return None if member is None else member.waiting_for()

    def note_ahead(self, batch_size: int, batches: int) -> None:
        """See `Foresighted`: each source is told of its rows."""
        for member in self._members:
            if isinstance(member.source, Foresighted):
                member.source.note_ahead(member.most(batch_size), batches)

    # -- leases, see `Leasing` ---------------------------------------------------------------------

    def hand_out(self, lease: object) -> bool:
        """See `Leasing.hand_out`.

        If one part of a batch was delivered again elsewhere, the others return to their sources
        when the loader closes.
        """
        handed_out = [source.hand_out(one) for source, one, _ in self._leased(lease)]
        return all(handed_out)

    def settle(self, lease: object) -> None:
        """See `Leasing.settle`."""
        for source, one, ends in self._leased(lease):
            if ends:
                source.settle(one)

    def _leased(self, lease: object) -> list[tuple[Leasing, object, bool]]:
        parts = cast(tuple[tuple[int, object, bool], ...], lease)
        return [
            (cast(Leasing, self._members[number].source), one, ends) for number, one, ends in parts
        ]

    def release(self, timeout_s: float) -> None:
        """See `Leasing.release`. Rows of other sources are kept for the next loader."""
        for member in self._members:
            member.release(timeout_s)

    # -- by index ----------------------------------------------------------------------------------

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each source; their sum is 1."""
        return tuple(float(member.share) for member in self._members)

    def numbers(self, index: Any) -> Ids:
        """Return the number of each row's source, counted from 0: int64, the shape of ``index``.

        -1 for places of a sequence without a step.
        """
        return numbers_of(tensors.to_ids(index))

    def ids(self, index: Any) -> Ids:
        """Return the ids that the rows have in their own tables: int64, the shape of ``index``.

        -1 for places of a sequence without a step.
        """
        return own_ids(tensors.to_ids(index))

    @explain_wrong_names
    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Set the priorities of rows by index, each in its own source.

        Rows of sources without priorities are left out, and not counted.

        Raises
        ------
        Unsupported
            If none of the rows is of a source with priorities.
        """
        applied, refused = [], None
        for member, ids, (values,) in self._by_source(index, priority=priority):
            try:
                applied.append(member.source.update_priorities(ids, np.asarray(values, np.float64)))
            except Unsupported as error:
                refused = error
        if refused is not None and not applied:
            raise refused
        return in_all(applied, index)

    def update(self, index: Any, /, **fields: Any) -> Applied:
        """Set some fields of rows by index, each in its own source: see `Table.update`.

        Raises
        ------
        Unsupported
            Before anything is changed, if one of the sources cannot be changed.
        """
        parts = self._by_source(index, **fields)
        for member, _, _ in parts:
            if not isinstance(member.source, Updating):
                raise Unsupported(f"rows of {member.name} cannot be changed: give a table there")
        applied = [
            cast(Updating, member.source).update(ids, **dict(zip(fields, values, strict=True)))
            for member, ids, values in parts
        ]
        return in_all(applied, index)

    @explain_wrong_names
    def delete(self, index: Any, *, timeout_s: float | None = None) -> Applied:
        """Remove rows by index, each from its own table: see `Table.delete`.

        Raises
        ------
        Unsupported
            Before anything is removed, if one of the sources was not given as a table.
        """
        parts = self._by_source(index)
        for member, _, _ in parts:
            if member.table is None:
                raise Unsupported(
                    f"{member.name} was not given as a table: say table.delete(mixture.ids(index))"
                )
        applied = [
            cast(Table, member.table).delete(ids, timeout_s=timeout_s) for member, ids, _ in parts
        ]
        return in_all(applied, index)

    def _by_source(self, index: Any, **values: Any) -> list[tuple[MixtureMember, Ids, list[Any]]]:
        parts = split_by_source(index, len(self._members), values)
        return [(self._members[number], ids, picked) for number, ids, picked in parts]

    # -- the end -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the sources that were made here of tables. May be called again.

        Sources that were given stay open.
        """
        self._closed = True
        self._made.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        parts = ", ".join(
            f"{float(member.share):.3g} of "
            f"{type(member.source if member.table is None else member.table).__name__}"
            for member in self._members
        )
        return f"<Mixture {parts} {state}>"

    def __reduce__(self) -> Any:
        raise CannotSend("a mixture stays in the process of its tables: hand it to a loader there")


def _pairs(shares: Any) -> list[tuple[Any, Fraction]]:
    pairs = list(shares.items()) if isinstance(shares, Mapping) else shares
    remedy = "say Mixture({table: 0.5, other: 0.5}), or give a list of pairs"
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(one, list | tuple) and len(one) == 2 for one in pairs
    ):
        raise ConfigError(f"shares is {shares!r}: {remedy}")
    if not 1 <= len(pairs) <= MOST_SOURCES:
        raise ConfigError(f"{len(pairs)} sources: a mixture has 1 to {MOST_SOURCES}, {remedy}")
    for number, (_, share) in enumerate(pairs):
        if not 0 < real(share) < math.inf:
            raise ConfigError(
                f"the share of source {number} is {share!r}: give a number above 0, and leave out "
                "a source of which there shall be none"
            )
    # as it is written: a share of 0.1 is a tenth
    return [(what, Fraction(repr(float(share)))) for what, share in pairs]
