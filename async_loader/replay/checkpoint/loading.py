"""Loads a checkpoint into a table: with the settings of the save, or with others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, SchemaError
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.base.row_format import FLAGS, ID, LOOKAHEAD, VERSION_ONE
from async_loader.replay.checkpoint import manifest
from async_loader.replay.checkpoint.manifest import Checkpoint
from async_loader.replay.checkpoint.writing import Saver, assigned_in, columns
from async_loader.replay.samplers.sampler import Sampler
from async_loader.replay.table.rebuild import tell_again
from async_loader.replay.table.sample import TableSampler
from async_loader.replay.table.storage import RowParts
from async_loader.replay.table.table import Table
from async_loader.replay.table.table_state import TableState


def load(
    make: Callable[..., Any],
    path: str | os.PathLike[str],
    number: int | None,
    overrides: dict[str, Any],
) -> Any:
    """See `ReplayBuffer.from_checkpoint`. ``make`` is called as ReplayBuffer is."""
    with contextlib.closing(Checkpoint.find(path, number)) as checkpoint:
        return _Loading(checkpoint, overrides).into(make)


def load_into(
    table_state: TableSampler,
    saver: Saver,
    path: str | os.PathLike[str],
    number: int | None,
    timeout_s: float | None,
) -> None:
    """See `ReplayBuffer.load`.

    Whatever can be refused is refused before any change. The files have been verified; one that
    changes afterwards leaves the table empty, and so may Ctrl-C.
    """
    with (
        saver.alone(path, timeout_s),
        contextlib.closing(Checkpoint.find(path, number)) as checkpoint,
    ):
        table_state.check_open()
        for _ in checkpoint.blocks("rows", "column", "ring"):
            continue
        loading = _Loading(
            checkpoint, {"sampler": table_state.sampler, "remover": table_state.remover}
        )
        loading.samplers()
        with table_state.lock:
            table_state.check_open()
            table_state.catch_up()
            loading.replace(table_state)
            table_state.seeds = np.random.SeedSequence(**checkpoint.manifest.settings["seeds"])
            table_state.forget()


class _Loading:
    def __init__(self, checkpoint: Checkpoint, overrides: dict[str, Any]) -> None:
        self._from, self._given = checkpoint, overrides
        self._saved, self._table = checkpoint.manifest.settings, checkpoint.manifest.table
        self._kept: dict[str, bool] = {}  # by role: whether the sampler goes on where it was

    def samplers(self) -> dict[str, Any]:
        """Return the sampler and the remover of the loaded table."""
        found = {}
        for role in ("sampler", "remover"):
            saved, given = self._saved[role], self._given.get(role)
            found[role] = manifest.settings_of(saved, role) if given is None else given
            self._kept[role] = given is None or manifest.settings_json(given) == saved
        return found

    def into(self, make: Callable[..., Any]) -> Any:
        given, saved = dict(self._given), self._saved
        if "capacity" not in given:
            given = {"max_bytes": saved["max_bytes"], **given}
        capacity = given.pop("capacity", saved["capacity"])
        if capacity is None:
            capacity = f"{given.pop('max_bytes')}B"
        if "view" not in given:
            given["view"] = manifest.settings_of(saved["view"], "view")
        given.setdefault("limiter", manifest.limiter_of(saved["limiter"]))
        given.setdefault("max_times_sampled", saved["max_times_sampled"])
        buffer = make(capacity, **{**given, **self.samplers()})
        table_state: TableState = buffer._table_state
        with table_state.lock:
            self.replace(table_state)
        if "seed" not in self._given:
            table_state.seeds = np.random.SeedSequence(**saved["seeds"])
        return buffer

    def replace(self, table_state: TableState) -> None:
        """Replace the table's contents. Under the lock."""
        saved, had_steps = self._table, table_state.ready
        if saved is not None:
            schema = manifest.schema_of(saved["schema"])
            if not had_steps:
                table_state.allocate(schema)
            if schema != table_state.shown_schema:
                raise SchemaError(
                    f"the checkpoint's steps are ({schema}), and the table's are "
                    f"({table_state.shown_schema}): use ReplayBuffer.from_checkpoint"
                )
            self._check(table_state, saved)
        elif not had_steps:  # neither has a step
            return
        table = table_state.table
        lookahead = int(table.g[LOOKAHEAD])
        table.storage.loading = True  # readers of other processes wait
        try:
            table_state.begin_again()
            if saved is not None:
                self._put(table_state, saved)
        except BaseException as error:
            table_state.begin_again()
            if had_steps:
                error.add_note(
                    "this came after the table's own steps had been taken out: the table is empty "
                    "now"
                )
            raise
        finally:
            table.storage.loading = False
            table_state.go_on(lookahead)
        if saved is not None:
            self._follow(table_state)

    def _put(self, table_state: TableState, saved: dict[str, Any]) -> None:
        """Fill an empty table. Under the lock."""
        table = table_state.table
        self._targets = self._rows(table, table_state.saved_rows, saved)
        self._columns = {about["name"]: raw for about, raw in self._from.blocks("column")}
        for name, array in columns(table_state).items():
            self._fill_column(name, array)
        streams = {manifest.name_of(name): last for name, last in saved["streams"]}
        known: list[tuple[Sampler, dict[str, Any]]] = []
        for role, one in (("sampler", table_state.sampler), ("remover", table_state.remover)):
            state = self._state(role, self._from.manifest.samplers.get(role))
            if state is not None and (role == "sampler" or table.free is not None):
                known.append((one, state))
                one.restore(state)
        table.restore(saved, streams)
        for one, state in known:  # what it gave by itself is not the largest that was given
            one.restore(state)
        table_state.carry_account(manifest.limiter_of(self._saved["limiter"]))

    def _fill_column(self, name: str, array: Array) -> None:
        there = self._targets >= 0
        if (raw := self._columns.get(name)) is not None:
            array[self._targets[there]] = raw.view(array.dtype)[there]

    def _state(self, role: str, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the state that a sampler goes on with, if it is made as the saved one was."""
        if state is None or not self._kept[role]:
            return None
        return {**state, "numbers": None} if "seed" in self._given and "numbers" in state else state

    def _follow(self, table_state: TableState) -> None:
        """Make the samplers of views of sequences that the table lacks. Under the lock."""
        for saved, state in self._from.manifest.samplers["sequences"]:
            view = manifest.settings_of(saved, "view")
            one = table_state.sequence_samplers.get(view)
            state = self._state("sampler", state)
            if one is None:
                with contextlib.suppress(ConfigError):  # with another capacity it cannot show them
                    one = table_state.follow(view, state)
                    self._fill_column(assigned_in(view), one.assigned)
                    if state is None:
                        tell_again(table_state.table, one)
            if one is not None and state is not None:
                one.restore(state)
                tell_again(table_state.table, one)
                one.restore(state)

    def _check(self, table_state: TableState, saved: dict[str, Any]) -> None:
        table, layout = table_state.table, table_state.table.storage.layout
        same = (layout.capacity, layout.rows) == (self._saved["capacity"], saved["rows"])
        ordered = table.free is None
        if saved["ordered"] != ordered or not (same or ordered):
            raise ConfigError(
                f"{table_state.remover!r}, capacity={layout.capacity}: this checkpoint's remover "
                f"took rows {'in' if saved['ordered'] else 'out of'} order, and its capacity is "
                f"{self._saved['capacity']}: load it with that remover, and out of order with that "
                "capacity"
            )
        if table.ring is not None and table.ring.size != saved["ring"][2]:
            raise ConfigError(
                "a checkpoint with compressed values is loaded with the capacity and the max_bytes "
                "that it was saved with: leave them out of from_checkpoint"
            )

    def _rows(self, table: Table, into: RowParts, saved: dict[str, Any]) -> Ids:
        """Write each saved row to its place. Return the places, -1 for rows that are left out.

        Processes that hold earlier ids may be reading the rows. So rows get their ids when all are
        written, and later versions than readers have seen: see kernels, NOTE [row lock].
        """
        storage, was_rows = table.storage, saved["rows"]
        layout, widths = storage.layout, into.widths
        names = np.full(layout.rows, -1, np.int64)
        flags = storage.heads()[:, FLAGS // 8].copy()
        targets = np.full(was_rows, -1, np.int64)
        for about, raw in self._from.blocks("rows"):
            count = about["count"]
            rows, raw = raw[: 8 * count].view(np.int64), raw[8 * count :]
            heads = raw[: count * widths[0]].reshape(count, -1)
            ids = np.ascontiguousarray(heads[:, :8]).view(np.int64)[:, 0] - 1
            found = np.where(ids >= 0, rows, -1)
            if saved["ordered"]:
                kept = ids >= max(0, saved["cursor"] - min(was_rows, layout.rows))
                found = np.where(kept, ids % layout.rows, -1)
            there, end = found >= 0, 0
            values = []
            for width in widths:
                begin, end = end, end + count * width
                values.append(raw[begin:end].reshape(count, width)[there])
            values[0] = _without_ids(values[0], flags[found[there]])
            into.put(found[there], ids[there], values)
            targets[rows], names[found[there]] = found, ids[there]
        if table.ring is not None:
            blocks = ((about["start"], raw) for about, raw in self._from.blocks("ring"))
            floor, head, _ = saved["ring"]
            table.ring.restore(floor, head, blocks, names)
        table.publish(names)
        return targets


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
