"""The two calls that an algorithm makes after each step.

# NOTE [cold calls]
Between two of these calls an algorithm trains, and nothing of them is in the processor's caches any
more: a call costs what it touches, some 100 ns each time. So each is one function, whose variables
lie side by side; a draw makes its tensors like others that are kept, since an array, a view of it
and a tensor of that would take twice as long; and all that changes goes into the kernel's table at
once.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from async_loader.compat.sb3.placed_draws import PlacedDraws
from async_loader.compat.sb3.staged_calls import StagedCalls, look
from async_loader.errors import Broken
from async_loader.replay.base.row_format import CURSOR
from async_loader.replay.table.table_state import TableState

OTHERS = (
    "the table of this buffer has other steps than those of add(), or lacks some of them: nothing "
    "else may write to it"
)

_legacy_random: Any = np.random  # numpy's stubs lack get_bit_generator
_like: Any = torch.empty_like
_address: Any = torch.Tensor.data_ptr
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
    looks, no_ends, join = staged.looks, staged.no_ends, b"".join
    put, memory, nbytes, rows = staged.pack_into, staged.memory, staged.call_bytes, staged.rows

    def add(values: Sequence[Any]) -> bool:
        try:
            if list(map(look, values)) != looks:
                return False
            packed = join(values)
        except (AttributeError, TypeError):  # no arrays, or not contiguous
            return False
        if not packed.endswith(no_ends):
            return False
        with state.lock:
            table = state.table
            if table.staged is not staged and not begin()():  # type: ignore[misc]
                return False
            if table.rest is not None or state.closed:
                return False
            count = staged.count
            if not count and int(table.g[CURSOR]) != newest.id + rows:
                return False
            put(memory, count // rows * nbytes, packed)
            staged.count = count + rows
            newest.id += rows
            if staged.count == staged.most or state.waiters.any_waits:
                try:
                    table.finish()
                finally:
                    state.waiters.ring()
        return True

    return add


def drawer(state: TableState, draws: PlacedDraws, newest: NewestId) -> Drawer:
    """Return a function that draws transitions; see `PlacedSteps.draw`."""
    kernel, kept_for, keep = draws.kernel, draws.kept, draws.keep
    put, changing, nbytes = draws.put, draws.changing, draws.call_bytes
    geometry, ring, fields, staged_at = draws.geometry, draws.ring, draws.fields, draws.staged_at
    staged, n_envs = draws.staged, draws.n_envs
    bit_generator, like, address = _legacy_random.get_bit_generator, _like, _address

    def draw(count: int, most: int, next_position: int) -> Sequence[torch.Tensor] | None:
        if count > draws.most:
            return None
        with state.lock:
            if state.closed or state.writers is not None or state.table.rest is not None:
                state.check_open()
                state.catch_up()
            ids, kept = kept_for.get(count) or keep(count)
            tensors = [*map(like, kept)]
            behind = 0 if staged is None else staged.count
            put(
                changing,
                0,
                next_position,
                newest.id,
                newest.id + n_envs - behind if behind else sys.maxsize,
                nbytes,
                most,
                *map(address, tensors),
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
