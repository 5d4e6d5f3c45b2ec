"""The two calls that an algorithm makes after each step.

# NOTE [cold calls]
Between two of these calls an algorithm trains, and nothing of them is in the processor's caches any
more: a call costs what it touches, some 100 ns each time. So each is one function, whose variables
lie side by side; the tensors of several draws are made together; and all that changes goes into the
kernel's table at once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from async_loader.compat.sb3.placed_draws import PlacedDraws
from async_loader.compat.sb3.staged_calls import StagedCalls
from async_loader.errors import Broken
from async_loader.replay.base.row_format import CURSOR
from async_loader.replay.table.table_state import TableState

OTHERS = (
    "the table of this buffer has other steps than those of add(), or lacks some of them: nothing "
    "else may write to it"
)

_legacy_random: Any = np.random  # numpy's stubs lack get_bit_generator
Adder = Callable[[Sequence[Any]], bool]
Drawer = Callable[[int, int, int], Sequence[torch.Tensor] | None]


class NewestId:
    """The id of the first environment's newest transition."""

    __slots__ = ("id",)

    def __init__(self, newest: int) -> None:
        self.id = newest


def adder(
    state: TableState,
    staged: StagedCalls | None,
    newest: NewestId,
    begin: weakref.WeakMethod[Callable[[], bool]],
) -> Adder:
    """Return a function that stages a call; see `PlacedSteps.add`.

    ``begin``: makes the table take staged calls. It is weak: a circle would keep the memory of a
    table until garbage is collected.
    """
    if staged is None:
        return lambda values: False
    rows, nbytes, columns = staged.rows, staged.call_bytes, staged.columns
    ends, ends_at, no_ends = staged.ends, staged.ends_at, bytes(rows)
    table, waiters, fields = state.table, state.waiters, range(len(columns))

    def add(values: Sequence[Any]) -> bool:
        with state.lock:
            if table.staged is not staged and not begin()():  # type: ignore[misc]
                return False
            if table.unfinished or state.closed:
                return False
            count = staged.count
            if not count and int(table.g[CURSOR]) != newest.id + rows:
                return False
            call = count // rows
            for i in fields:
                columns[i][call] = values[i]
            at = ends_at + call * nbytes
            if ends[at] if rows == 1 else ends[at : at + rows] != no_ends:
                return False
            staged.count = count + rows
            newest.id += rows
            if staged.count == staged.most or waiters.any_waits:
                try:
                    table.finish()
                finally:
                    waiters.ring()
        return True

    return add


def drawer(state: TableState, draws: PlacedDraws, newest: NewestId) -> Drawer:
    """Return a function that draws transitions; see `PlacedSteps.draw`."""
    kernel, kept_for, keep, more = draws.kernel, draws.kept, draws.keep, draws.more
    put, changing, nbytes = draws.put, draws.changing, draws.call_bytes
    geometry, ring, fields, staged_at = draws.geometry, draws.ring, draws.fields, draws.staged_at
    staged, n_envs, table = draws.staged, draws.n_envs, state.table
    bit_generator = _legacy_random.get_bit_generator

    def draw(count: int, most: int, next_position: int) -> Sequence[torch.Tensor] | None:
        if count > draws.most:
            return None
        with state.lock:
            if table.unfinished or state.closed:
                state.check_open()
                state.catch_up()
            ids, spare = kept_for.get(count) or keep(count)
            if not spare:
                more(count, spare)
            tensors, addresses = spare.pop()
            behind = 0 if staged is None else staged.count
            put(
                changing,
                0,
                next_position,
                newest.id,
                newest.id + n_envs - behind if behind else sys.maxsize,
                nbytes,
                most,
                *addresses,
            )
            random = bit_generator()
            if random is not draws.random:
                draws.use(random)
            with random.lock:
                gone = kernel(geometry, ring, fields, staged_at, ids)
        if gone:
            raise Broken(OTHERS)
        return tensors

    return draw
