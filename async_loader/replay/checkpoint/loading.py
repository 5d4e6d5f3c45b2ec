"""Loads a checkpoint into a table: with the settings of the save, or with others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint, SchemaError
from async_loader.replay.array_types import Bytes, Ids
from async_loader.replay.base.row_format import FLAGS, ID, LOOKAHEAD, VERSION_ONE
from async_loader.replay.checkpoint import manifest, settings
from async_loader.replay.checkpoint.compressed import put_back
from async_loader.replay.checkpoint.reading import Checkpoint, open_chain, with_remedy
from async_loader.replay.checkpoint.snapshot import columns, index_type, row_parts
from async_loader.replay.checkpoint.writing import PreviousSave, Saver
from async_loader.replay.samplers.random_numbers import seeds_of
from async_loader.replay.table.rebuild import tell_again
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.storage import StorageLayout
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import Sequences
from async_loader.schema import Schema


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
            table_state.seeds = seeds_of(saved["seeds"], 0)
        if self._from.newest.table is not None:
            with table_state.lock:
                self._fill(table_state, buffer._saver, "capacity" in given or "max_bytes" in given)
        if "seed" not in given:
            table_state.seeds = seeds_of(saved["seeds"])
        return buffer

    def _sampler(self, role: str) -> Any:
        saved = self._saved[role]
        if role not in self._given:
            self._kept[role] = True
            return settings.sampler_of(saved, role)
        self._kept[role] = settings.sampler_json(self._given[role]) == saved
        return self._given[role]

    def _fill(self, table_state: TableState, saver: Saver, other_size: bool) -> None:
        """Allocate the table, and fill it. Under the lock."""
        schema, was = self._schema_and_layout()
        layout = table_state.layout_of(schema) if other_size else was
        same = layout.capacity == was.capacity
        if same:  # with as many rows as were saved
            layout = StorageLayout.of(schema, was.capacity, was.spare, layout.ring[1])
        table_state.allocate(schema, layout)
        self._check(table_state, same)
        self._put(table_state, saver, was, same)
        table_state.go_on(0)
        self._follow(table_state)

    def replace(self, table_state: TableState, table_sampler: TableSampler, saver: Saver) -> None:
        """Replace the table's contents.

        Whatever can be refused is refused before any change. The files have been verified; one that
        changes afterwards leaves the table empty, and so may Ctrl-C.
        """
        for role in ("sampler", "remover"):
            self._sampler(role)
        with table_state.lock:
            table_state.own_alone()
            if not table_state.ready:
                if self._from.newest.table is not None:
                    self._fill(table_state, saver, other_size=True)
            else:
                self._replace(table_state, saver)
            table_state.seeds = seeds_of(self._saved["seeds"])
            table_sampler.forget()

    def _schema_and_layout(self) -> tuple[Schema, StorageLayout]:
        saved = self._table
        schema = manifest.schema_of(saved["schema"])
        return schema, StorageLayout.of(
            schema,
            self._saved["capacity"],
            saved["rows"] - self._saved["capacity"],
            saved["ring"][2] if "ring" in saved else None,
        )

    @property
    def _table(self) -> dict[str, Any]:
        saved = self._from.newest.table
        assert saved is not None
        return saved

    def _replace(self, table_state: TableState, saver: Saver) -> None:
        table = table_state.table
        lookahead, layout = int(table.g[LOOKAHEAD]), table.storage.layout
        saver.last = None
        if self._from.newest.table is None:  # it was saved before its first step
            table_state.begin_again()
            table_state.go_on(lookahead)
            return
        schema, was = self._schema_and_layout()
        if schema != table_state.schema:
            raise SchemaError(
                f"the checkpoint's steps are ({schema}), and the table's are "
                f"({table_state.schema}): use ReplayBuffer.from_checkpoint"
            )
        same = (layout.capacity, layout.rows) == (was.capacity, was.rows)
        self._check(table_state, same)
        table.storage.loading = True  # readers of other processes wait
        try:
            table_state.begin_again()
            self._put(table_state, saver, was, same)
        except BaseException as error:
            table_state.begin_again()
            saver.last = None
            error.add_note(
                "this came after the table's own steps had been taken out: the table is empty now"
            )
            raise
        finally:
            table.storage.loading = False
            table_state.go_on(lookahead)
        self._follow(table_state)

    def _put(self, table_state: TableState, saver: Saver, was: StorageLayout, same: bool) -> None:
        """Fill an empty table. Under the lock."""
        table, saved = table_state.table, self._table
        targets, first = self._rows(table, was)
        there = targets >= 0
        known = self._from.columns()
        for name, array in columns(table).items():
            if (raw := known.get(name)) is not None:
                array[targets[there]] = raw.view(array.dtype)[there]
        streams = {manifest.name_of(name): last for name, last in saved["streams"]}
        roles = [("sampler", table_state.sampler), ("remover", table_state.remover)]
        for role, one in roles:
            state = self._state(role, self._from.newest.samplers.get(role))
            if state is not None and (role == "sampler" or table.free is not None):
                one.restore(state)
        table.restore(saved, streams, first)
        table_state.carry_account(settings.limiter_of(self._saved["limiter"]))
        saver.last = (
            PreviousSave(self._from.root, self._from.newest)
            if same and self._kept["remover"] and table.ring is None  # which has other positions
            else None
        )

    def _state(self, role: str, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the state that a sampler goes on with, if it is made as the saved one was."""
        if state is None or not self._kept[role]:
            return None
        return {**state, "numbers": None} if "seed" in self._given and "numbers" in state else state

    def _follow(self, table_state: TableState) -> None:
        """Make the samplers of views of sequences that the table lacks. Under the lock."""
        for saved, state in self._from.newest.samplers.get("sequences", ()):
            view = settings.view_of(saved)
            assert isinstance(view, Sequences)
            known = table_state.sequence_samplers.get(view)
            state = self._state("sampler", state)
            if known is None:
                with contextlib.suppress(ConfigError):  # with another capacity it cannot show them
                    table_state.follow(view, state)
            elif state is not None:
                known.restore(state)
                tell_again(table_state.table, known)

    def _check(self, table_state: TableState, same: bool) -> None:
        table, saved = table_state.table, self._table
        if not saved["ordered"] and table.free is None:
            raise ConfigError(
                "this checkpoint's rows were taken out of order by "
                f"{self._saved['remover']['$class']}, and {table_state.remover!r} "
                "overwrites them in order: pass another remover"
            )
        if not saved["ordered"] and not same:
            raise ConfigError(
                f"capacity={table_state.capacity}: this checkpoint has {self._saved['capacity']}, "
                "and its remover takes rows out of order, so that there is no newest part of it: "
                "load it with the capacity that it has"
            )
        if (
            saved["ordered"]
            and table.free is not None
            and (not same or saved["lookahead"] > table.g[LOOKAHEAD])
        ):
            raise ConfigError(
                f"{table_state.remover!r} takes rows out of order, and this checkpoint was "
                "overwritten in order: load it with the capacity that it has, and without n-step "
                "returns having been drawn from it"
            )

    def _rows(self, table: Table, was: StorageLayout) -> tuple[Ids, int]:
        """Write each saved row to its place. Return the places, -1 for rows that are left out, and
        the first id for whose compressed values there is room.

        Processes that hold earlier ids may be reading the rows. So rows get their ids when all are
        written, and later versions than readers have seen: see kernels, NOTE [row lock].
        """
        storage, saved = table.storage, self._table
        layout, parts = storage.layout, row_parts(storage)
        names = np.full(layout.rows, -1, np.int64)
        flags = storage.heads()[:, FLAGS // 8].copy()
        targets = np.full(was.rows, -1, np.int64)
        for block in self._from.rows([part.shape[1] for part in parts], was.rows, index_type(was)):
            ids = np.ascontiguousarray(block.parts[0][:, :8]).view(np.int64)[:, 0] - 1
            found = np.where(ids >= 0, block.rows, -1)
            if saved["ordered"]:
                kept = (ids >= 0) & (ids >= saved["cursor"] - min(was.rows, layout.rows))
                found = np.where(kept, ids % layout.rows, -1)
            targets[block.rows] = found
            there = found >= 0
            where = found[there]
            names[where] = ids[there]
            block.parts[0] = _without_ids(block.parts[0], flags[np.maximum(found, 0)])
            for part, values in zip(parts, block.parts, strict=True):
                part[where] = values if there.all() else values[there]
        first = 0
        if table.ring is not None:
            first = put_back(storage, table.ring, self._from, saved["ring"][:2], names)
        table.publish(names)
        return targets, first


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
