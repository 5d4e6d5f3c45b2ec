"""What draws of transitions by place need; cold_calls.py makes them."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import torch

from async_loader.compat.sb3.transitions import TransitionFormat
from async_loader.replay.array_types import Ids
from async_loader.replay.base import place_table as p
from async_loader.replay.base.field_table import (
    ARRAY_STRIDE,
    NBYTES,
    READING,
    ROW_ADDRESS,
    ROW_STRIDE,
)
from async_loader.replay.table.table import Table

Target = tuple[list[torch.Tensor], list[int]]
_KEPT = 8
_TOGETHER, _TOGETHER_BYTES = 31, 1 << 20
_BYTES = 1 << 20
"""Of a draw that keeps the GIL."""


class PlacedDraws:
    """What the kernel that draws transitions by place is called with.

    Those that are only gathered are drawn too.

    The tensors of a draw, on the CPU: those of the observations, of the next observations, the
    action, the reward ``[rows, 1]``, and a float32 tensor ``[rows, 1]``, 1 where the episode
    terminated.

    Parameters
    ----------
    table : Table
        With the fields of the observations, the next observations, action, reward, ``terminated``
        and ``truncated``.
    form : TransitionFormat
    size : int
        Positions.

    Attributes
    ----------
    kernel : callable
    most : int
        Transitions that are read at once: reading keeps the GIL.
    geometry, ring, fields, gathered_at : int64 arrays
        Its arguments, before the ids: see place_table.py and kernels/places.py.
    put, changing : callable, memoryview
        ``put(changing, 0, ...)`` writes what changes with each draw: the position that is written
        next, the newest id, the first one that is only gathered, the positions that can be drawn,
        and the addresses of the tensors.
    random : BitGenerator | None
        What numbers are drawn with.
    kept : dict
        By the size of a draw: room for ids, and tensors, with their addresses, for later draws.
    """

    def __init__(self, table: Table, form: TransitionFormat, size: int) -> None:
        from async_loader.replay.kernels import places  # late: see compiled.py

        self.kernel = places.draw_places
        self.random: Any = None
        storage = table.storage
        self.geometry, self.n_envs = storage.geometry, form.n_envs
        # without `truncated`: what it says is in `terminated`
        stored = storage.layout.schema.fields[:-1]
        shown = [(field.dtype, field.shape) for field in stored]
        shown[-2:] = [(shown[-2][0], (1,)), (np.dtype(np.float32), (1,))]
        self._shown = shown
        self.fields = np.zeros((len(shown), READING), np.int64)
        places_of = zip(storage.layout.places, stored, strict=False)
        self.fields[:, [ROW_ADDRESS, ROW_STRIDE, NBYTES]] = [
            (storage.base + offset, stride, field.nbytes) for (offset, stride), field in places_of
        ]
        self.fields[:, ARRAY_STRIDE] = [
            dtype.itemsize * int(np.prod(shape)) for dtype, shape in shown
        ]
        self.gathered_at = table.fields_of(table.records.views)[: len(shown)]
        self.ring = np.zeros(p.TARGETS + len(shown), np.int64)
        self.ring[p.SIZE], self.ring[p.ENVS] = size, form.n_envs
        self.put = struct.Struct(f"{p.TARGETS - p.NEXT + len(shown)}q").pack_into
        self.changing = self.ring[p.NEXT :].data
        self.kept: dict[int, tuple[Ids, list[Target]]] = {}
        self.most = 0 if storage.on_disk else _BYTES // storage.layout.schema.nbytes

    def use(self, random: Any) -> None:
        """Draw with this bit generator from now on."""
        interface = random.ctypes
        self.ring[p.RANDOM] = ctypes.cast(interface.next_uint32, ctypes.c_void_p).value or 0
        self.ring[p.RANDOM_STATE] = interface.state_address
        self.random = random  # keeps both alive

    def keep(self, count: int) -> tuple[Ids, list[Target]]:
        """Make room for the ids of that many transitions, and a list for the tensors of draws."""
        if len(self.kept) == _KEPT:
            self.kept.clear()
        made: tuple[Ids, list[Target]] = np.empty(count, np.int64), []
        self.kept[count] = made
        return made

    def more(self, count: int, spare: list[Target]) -> None:
        """Make the tensors of some draws, of a few if they are large."""
        first = [torch.from_numpy(np.empty((count, *shape), dtype)) for dtype, shape in self._shown]
        nbytes = sum(tensor.nbytes for tensor in first)
        others = min(_TOGETHER, _TOGETHER_BYTES // max(1, nbytes))
        like, address = torch.empty_like, torch.Tensor.data_ptr
        for tensors in (first, *([*map(like, first)] for _ in range(others))):
            spare.append((tensors, [*map(address, tensors)]))
