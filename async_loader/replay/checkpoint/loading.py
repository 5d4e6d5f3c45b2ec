"""Loads a checkpoint into a table: with the settings of the save, or with others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint, SchemaError
from async_loader.interrupts import SignalsDeferred
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.base.row_format import FLAGS, ID, LOOKAHEAD, VERSION_ONE
from async_loader.replay.checkpoint import encoding, resizing, settings
from async_loader.replay.checkpoint.compressed import put_back
from async_loader.replay.checkpoint.reading import Checkpoint, open_chain, with_remedy
from async_loader.replay.checkpoint.sequences import SavedSequences
from async_loader.replay.checkpoint.snapshot import (
    STATE_TYPES,
    as_bytes,
    index_type,
    row_parts,
    state_parts,
)
from async_loader.replay.checkpoint.writing import PreviousSave, Saver
from async_loader.replay.samplers import Sampler
from async_loader.replay.stream_names import pass_over
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.sequence_sampler import SequenceSampler
from async_loader.replay.table.storage import StorageLayout
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_state import TableState
from async_loader.schema import Schema

_NUMBERS = ("generator", "ahead")
"""The names that samplers give to the state of their random numbers.

See samplers/random_numbers.py.
"""
_COUNTS = ("draws", "largest")
"""The names that samplers give to what holds for any items: how many batches were drawn, as
schedules count them, and the largest priority ever given, which an item without one gets.
"""


def load(
    make: Callable[..., Any],
    path: str | os.PathLike[str],
    number: int | None,
    overrides: dict[str, Any],
) -> Any:
    """See `ReplayBuffer.from_checkpoint`. ``make`` is called as ReplayBuffer is."""
    with open_chain(path, number) as checkpoint:
        try:
            return _Loading(checkpoint, overrides).into(make)
        except CorruptCheckpoint as error:
            raise with_remedy(error, checkpoint.root, checkpoint.newest.number) from None


def load_into(
    table_state: TableState,
    table_sampler: TableSampler,
    saver: Saver,
    path: str | os.PathLike[str],
    number: int | None,
    timeout_s: float | None,
) -> None:
    """See `ReplayBuffer.load`."""
    try:
        with saver.alone(path, timeout_s), open_chain(path, number) as checkpoint:
            table_state.check_open()
            try:
                checkpoint.verify()
                _Loading(
                    checkpoint, {"sampler": table_state.sampler, "remover": table_state.remover}
                ).replace(table_state, table_sampler, saver)
            except CorruptCheckpoint as error:
                found = with_remedy(error, checkpoint.root, checkpoint.newest.number)
                for note in getattr(error, "__notes__", ()):
                    found.add_note(note)
                raise found from None
    finally:
        saver.ended()


class _Loading:
    def __init__(self, checkpoint: Checkpoint, overrides: dict[str, Any]) -> None:
        self._from, self._given = checkpoint, overrides
        self._saved = checkpoint.newest.settings
        self._kept: dict[str, bool] = {}  # by role: whether the sampler goes on where it was

    def into(self, make: Callable[..., Any]) -> Any:
        given, saved = self._given, self._saved
        samplers = {role: self._sampler(role) for role in ("sampler", "remover")}
        capacity = given.get("capacity", saved["capacity"])
        max_bytes: Any = given.get("max_bytes", None if "capacity" in given else saved["max_bytes"])
        buffer = make(
            f"{max_bytes}B" if capacity is None else capacity,
            **samplers,
            limiter=given["limiter"]
            if "limiter" in given
            else settings.limiter_of(saved["limiter"]),
            view=given["view"] if "view" in given else settings.view_of(saved.get("view")),
            max_times_sampled=given.get("max_times_sampled", saved["max_times_sampled"]),
            seed=given.get("seed"),
            disk=given.get("disk"),
            max_bytes=None if capacity is None else max_bytes,
        )
        table_state: TableState = buffer._table_state
        if "seed" not in given:
            # The samplers get the seeds that they had, and later sources get new ones.
            table_state.seeds = settings.seeds_of(saved["seeds"], 0)
        if self._from.newest.table is not None:
            with table_state.lock:
                self._fill(
                    table_state,
                    self._from.newest.table,
                    buffer._saver,
                    "capacity" in given or "max_bytes" in given,
                )
        if "seed" not in given:
            table_state.seeds = settings.seeds_of(saved["seeds"])
        return buffer

    def _sampler(self, role: str) -> Any:
        saved = self._saved[role]
        if role not in self._given:
            self._kept[role] = True
            return settings.sampler_of(saved, role)
        passed = settings.sampler_json(self._given[role])
        self._kept[role] = passed == saved
        return self._given[role]

    def _fill(
        self, table_state: TableState, saved: dict[str, Any], saver: Saver, other_size: bool
    ) -> None:
        """Allocate the table, and fill it. Under the lock."""
        schema, was = self._schema_and_layout(saved)
        layout = table_state.layout_of(schema) if other_size else was
        same = layout.capacity == was.capacity
        if same:  # with as many rows as were saved
            layout = StorageLayout.of(schema, was.capacity, was.spare, layout.ring[1])
        table_state.allocate(schema, layout)
        self._check(table_state, table_state.table, saved, same)
        arrays = self._put(table_state, saved, saver, was, same)
        table_state.go_on(0)
        self._sequences(arrays, same).follow(table_state)

    def replace(self, table_state: TableState, table_sampler: TableSampler, saver: Saver) -> None:
        """Replace the table's contents.

        Whatever can be refused is refused before any change. The files have been verified; one that
        changes afterwards leaves the table empty.
        """
        for role in ("sampler", "remover"):
            self._sampler(role)
        saved = self._from.newest.table
        with SignalsDeferred(), table_state.lock:
            table_state.own_alone()
            if saved is None:
                self._fill_with_nothing(table_state, saver)
            elif table_state.ready:
                self._replace(table_state, saved, saver)
            else:
                self._fill(table_state, saved, saver, other_size=True)
            table_state.seeds = settings.seeds_of(self._saved["seeds"])
            table_sampler.forget()

    def _schema_and_layout(self, saved: dict[str, Any]) -> tuple[Schema, StorageLayout]:
        schema = encoding.schema_of(saved["schema"])
        return schema, StorageLayout.of(
            schema,
            self._saved["capacity"],
            saved["rows"] - self._saved["capacity"],
            saved["ring"][2] if "ring" in saved else None,
        )

    def _fill_with_nothing(self, table_state: TableState, saver: Saver) -> None:
        """Empty the table: it was saved before its first step."""
        if table_state.ready:
            lookahead = int(table_state.table.g[LOOKAHEAD])
            table_state.begin_again()
            table_state.go_on(lookahead)
        saver.last = None

    def _replace(self, table_state: TableState, saved: dict[str, Any], saver: Saver) -> None:
        before = table_state.table
        schema, was = self._schema_and_layout(saved)
        if schema != table_state.schema:
            raise SchemaError(
                f"the checkpoint's steps are ({schema}), and the table's are "
                f"({table_state.schema}): use ReplayBuffer.from_checkpoint"
            )
        layout, lookahead = before.storage.layout, int(before.g[LOOKAHEAD])
        same = (layout.capacity, layout.rows) == (was.capacity, was.rows)
        self._check(table_state, before, saved, same)
        before.storage.loading = True  # readers of other processes wait
        try:
            table_state.begin_again()
            arrays = self._put(table_state, saved, saver, was, same, in_place=True)
            sequences = self._sequences(arrays, same)
            for one in table_state.table.samplers:
                if isinstance(one, SequenceSampler):
                    sequences.tell(table_state, one)
                elif one is not table_state.sampler:
                    table_state.table.tell_all(one)
        except BaseException as error:
            table_state.begin_again()
            saver.last = None
            error.add_note(
                "this came after the table's own steps had been taken out: the table is empty now"
            )
            raise
        finally:
            before.storage.loading = False
            table_state.go_on(lookahead)
        sequences.follow(table_state)

    def _put(
        self,
        table_state: TableState,
        saved: dict[str, Any],
        saver: Saver,
        was: StorageLayout,
        same: bool,
        in_place: bool = False,
    ) -> Mapping[str, Array]:
        """Fill an empty table. Return the arrays of the save. Under the lock."""
        table = table_state.table
        arrays = self._from.arrays()
        targets, first = self._rows(table, saved, was, in_place)
        self._states(table, targets, was)
        table.lend_as_saved(saved)
        oldest = max(first, saved["cursor"] - table.window)
        if not same or first:
            resizing.retire(table, oldest)
        streams = [encoding.name_of(name) for name in saved["streams"]]
        pass_over(streams)
        table.restore({**saved, "top": saved["top"] if same else 0}, streams, arrays["last"])
        table.deleted = table.inserted - len(table)
        self._restore_free(table, saved, arrays)
        self._restore_samplers(table_state, arrays, same, targets)
        if table_state.limits is not None:
            table_state.limits.needed = saved["needed"]
        table.expire_old(saved["window"])
        table_state.carry_account(settings.limiter_of(self._saved["limiter"]))
        saver.last = (
            PreviousSave(self._from.root, self._from.newest, arrays)
            if same and self._kept["remover"] and table.ring is None  # which has other positions
            else None
        )
        return arrays

    def _sequences(self, arrays: Mapping[str, Array], same: bool) -> SavedSequences:
        numbers = _NUMBERS if "seed" in self._given else ()
        return SavedSequences(
            self._from.newest.samplers,
            arrays,
            numbers,
            self._lasting if self._kept["sampler"] else None,
            same,
            self._saved["sampler"]["settings"],
            self._from.newest.table["rows"] if self._from.newest.table is not None else 0,
        )

    def _lasting(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of a sampler's state that holds with another capacity too."""
        kept = {
            name: state[name]
            for name in _COUNTS
            if name in state and not isinstance(state[name], np.ndarray)
        }
        if "seed" not in self._given and all(name in state for name in _NUMBERS):
            kept |= {name: state[name] for name in _NUMBERS}
        return kept

    def _check(
        self, table_state: TableState, table: Table, saved: dict[str, Any], same: bool
    ) -> None:
        ordered = "unused" not in saved
        if not ordered and table.free is None:
            raise ConfigError(
                "this checkpoint's rows were taken out of order by "
                f"{self._saved['remover']['$class']}, and {table_state.remover!r} "
                "overwrites them in order: pass another remover"
            )
        if not ordered and not same:
            raise ConfigError(
                f"capacity={table_state.capacity}: this checkpoint has {self._saved['capacity']}, "
                "and its remover takes rows out of order, so that there is no newest part of it: "
                "load it with the capacity that it has"
            )
        if (
            ordered
            and table.free is not None
            and (not same or saved["lookahead"] > table.g[LOOKAHEAD])
        ):
            raise ConfigError(
                f"{table_state.remover!r} takes rows out of order, and this checkpoint was "
                "overwritten in order: load it with the capacity that it has, and without n-step "
                "returns having been drawn from it"
            )

    def _rows(
        self, table: Table, saved: dict[str, Any], was: StorageLayout, in_place: bool
    ) -> tuple[Ids, int]:
        """Write each saved row to its place. Return the places, -1 for rows that are left out, and
        the first id for whose compressed values there is room.

        ``in_place``: processes that hold earlier ids may be reading the rows. Rows get their ids
        when all are written, and later versions than readers have seen: see kernels, NOTE [row
        lock].
        """
        layout, parts = table.storage.layout, row_parts(table.storage)
        names, flags = (
            np.full(layout.rows, -1, np.int64),
            table.storage.heads()[:, FLAGS // 8].copy(),
        )
        targets = np.full(was.rows, -1, np.int64)
        for block in self._from.rows([part.shape[1] for part in parts], was.rows, index_type(was)):
            ids = np.ascontiguousarray(block.parts[0][:, :8]).view(np.int64)[:, 0] - 1
            if "unused" in saved:
                found = np.where(ids >= 0, block.rows, -1)
            else:
                found = resizing.places(ids, saved["cursor"], was.rows, layout.rows)
            targets[block.rows] = found
            there = found >= 0
            if in_place:
                names[found[there]] = ids[there]
                block.parts[0] = _without_ids(block.parts[0], flags[np.maximum(found, 0)])
            whole = bool(there.all())
            where = found if whole else found[there]
            into: Any = where
            if (
                len(where)
                and where[-1] - where[0] == len(where) - 1
                and (np.diff(where) == 1).all()
            ):
                # one copy in place of one for each row
                into = slice(int(where[0]), int(where[0]) + len(where))
            for part, values in zip(parts, block.parts, strict=True):
                part[into] = values if whole else values[there]
        first = 0
        if table.ring is not None:
            ids = names if in_place else table.storage.heads()[:, ID // 8] - 1
            saved_ring = saved["ring"][:2]
            first = put_back(table.storage, table.ring, self._from, saved_ring, ids)
        if in_place:
            table.publish(names)
        return targets, first

    def _states(self, table: Table, targets: Ids, was: StorageLayout) -> None:
        ours = state_parts(table)
        for rows, values in self._from.state(STATE_TYPES, was.rows, index_type(was)):
            found = targets[rows]
            there = found >= 0
            for name, array in ours.items():
                if name in values:
                    as_bytes(array)[found[there]] = as_bytes(
                        np.ascontiguousarray(values[name][there])
                    )

    def _restore_free(
        self, table: Table, saved: dict[str, Any], arrays: Mapping[str, Array]
    ) -> None:
        if table.free is None:
            return
        if "unused" in saved:
            table.free.restore({"unused": saved["unused"], "free": arrays["free"]})
            return
        # the oldest first, and before them those that never held a step
        empty = np.flatnonzero(table.items.alive == 0)
        ordered = empty[np.argsort(table.ids[empty], kind="stable")]
        table.free.restore({"unused": table.storage.layout.rows, "free": ordered})

    def _restore_samplers(
        self, table_state: TableState, arrays: Mapping[str, Array], same: bool, targets: Ids
    ) -> None:
        """Restore the samplers with unchanged settings in unchanged rows; tell the others of every
        item, as the saved ones were told.
        """
        table = table_state.table
        for role, one in (("sampler", table_state.sampler), ("remover", table_state.remover)):
            if role == "remover" and table.free is None:
                continue
            states = self._from.newest.samplers
            state = encoding.joined(states[role], arrays) if role in states else {}
            if self._kept[role] and state and same:
                if "seed" in self._given:
                    state = {
                        **state,
                        **{name: one.state()[name] for name in _NUMBERS if name in state},
                    }
                one.restore(state)
                continue
            self._tell(table, one, state, role, targets)
        self._end_worn(table, table_state)

    def _tell(
        self, table: Table, sampler: Sampler, state: dict[str, Any], role: str, targets: Ids
    ) -> None:
        """Tell a sampler of the items that are in other rows, or that another sampler knew."""
        there = table.in_order()
        saved_in = np.full(len(table.ids), -1, np.int64)
        saved_in[targets[targets >= 0]] = np.flatnonzero(targets >= 0)
        given = np.full(len(targets), np.nan)
        if len(table.given):
            given[saved_in[there]] = table.given[there]
        settings = self._saved[role]["settings"]
        rows, priority = resizing.as_told(state, settings, saved_in[there], given)
        kept = self._lasting(state) if self._kept[role] else {}
        if kept:  # before it is told of items, whose priorities depend on it
            sampler.restore({**sampler.state(), **kept})
        sampler.insert(targets[rows], priority)
        if kept:  # what it was told is not of now
            sampler.restore({**sampler.state(), **kept})

    def _end_worn(self, table: Table, table_state: TableState) -> None:
        """End items that were drawn as often as the table now allows."""
        if table_state.max_times_sampled:
            table.remove(
                np.flatnonzero(
                    (table.items.alive != 0) & (table.times >= table_state.max_times_sampled)
                )
            )


def _without_ids(packed: Bytes, before: Ids) -> Bytes:
    """Return packed rows without ids, and with versions above those of the rows that they replace
    (``before``: flags).
    """
    made = np.array(packed)
    words = made.view(np.int64)
    words[:, ID // 8] = 0
    flags = words[:, FLAGS // 8]
    version = (np.maximum(flags, before) // (2 * VERSION_ONE) + 1) * (2 * VERSION_ONE)
    words[:, FLAGS // 8] = flags % VERSION_ONE + version
    return made
