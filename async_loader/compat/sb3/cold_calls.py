"""The two calls that an algorithm makes after each step.

# NOTE [cold calls]
Between two of these calls an algorithm trains, and nothing of them is in the processor's caches any
more: a call costs what it touches, some 100 ns each time. So each is one function, whose variables
lie side by side; the tensors of several draws are made together; and all that changes goes into the
kernel's table at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from async_loader.compat.sb3.placed_draws import PlacedDraws
from async_loader.compat.sb3.step_block import StepBlock
from async_loader.errors import Broken
from async_loader.replay.base.row_format import CURSOR
from async_loader.replay.table.records import plain_heads
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


def adder(state: TableState, block: StepBlock, newest: NewestId) -> Adder:
    """Return a function that gathers a call; see `PlacedSteps.add`."""
    table, waiters, rows = state.table, state.waiters, len(block.reward)
    records = table.records
    columns, ends, no_ends = records.views[:-1], records.views[-2], bytes(rows)
    fields, known_to = range(len(columns)), None

    def add(values: Sequence[Any]) -> bool:
        nonlocal known_to
        with state.lock:
            count = records.count
            if records.limit <= rows:
                return False
            if known_to is not table.streams or not records.single:
                table.single()
                records.heads[:] = plain_heads(records.capacity)
                records.heads["stream"] = np.resize(block.stream_numbers(table), records.capacity)
                known_to, count = table.streams, 0
            elif count + rows > records.limit:
                table.finish()
                count = 0
            if not count:
                records.first = int(table.g[CURSOR])
            if records.first + count != newest.id + rows:
                return False
            stop = count + rows
            for i in fields:
                columns[i][count:stop] = values[i]
            if ends[count] if rows == 1 else ends[count:stop].tobytes() != no_ends:
                return False
            records.count = stop
            newest.id += rows
            if waiters.any_waits:
                try:
                    table.finish()
                finally:
                    waiters.ring()
        return True

    return add


def drawer(state: TableState, draws: PlacedDraws, newest: NewestId) -> Drawer:
    """Return a function that draws transitions; see `PlacedSteps.draw`."""
    kernel, kept_for, keep, more = draws.kernel, draws.kept, draws.keep, draws.more
    put, changing = draws.put, draws.changing
    geometry, ring, fields = draws.geometry, draws.ring, draws.fields
    gathered, n_envs, table = draws.gathered_at, draws.n_envs, state.table
    records = table.records
    bit_generator = _legacy_random.get_bit_generator

    def draw(count: int, most: int, next_position: int) -> Sequence[torch.Tensor] | None:
        if count > draws.most:
            return None
        with state.lock:
            if records.limit == 1 or not records.single:
                state.check_open()
                state.catch_up()
            ids, spare = kept_for.get(count) or keep(count)
            if not spare:
                more(count, spare)
            tensors, addresses = spare.pop()
            behind = records.count
            put(
                changing,
                0,
                next_position,
                newest.id,
                newest.id + n_envs - behind if behind else sys.maxsize,
                most,
                *addresses,
            )
            random = bit_generator()
            if random is not draws.random:
                draws.use(random)
            with random.lock:
                gone = kernel(geometry, ring, fields, gathered, ids)
        if gone:
            raise Broken(OTHERS)
        return tensors

    return draw
