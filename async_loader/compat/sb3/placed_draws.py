"""Draws of transitions by place, whose tensors are what Stable-Baselines3 wants.

# NOTE [cold draws]
Between two draws an algorithm trains, and nothing of this is in the processor's caches any more: a
draw costs what it touches. So one kernel draws the numbers and reads, tensors are made like others
that are kept (an array, a view of it and a tensor of that would take twice as long), and all that
changes goes into the kernel's table at once.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from async_loader.compat.sb3.staged_calls import StagedCalls
from async_loader.compat.sb3.transitions import TransitionFormat
from async_loader.replay.array_types import Ids
from async_loader.replay.base import place_table as p
from async_loader.replay.base.field_table import (
    ARRAY_STRIDE,
    NBYTES,
    READING,
    ROW_ADDRESS,
    ROW_STRIDE,
    WRITING,
)
from async_loader.replay.table.storage import Storage

_legacy_random: Any = np.random  # numpy's stubs lack get_bit_generator
_like: Any = torch.empty_like
_address: Any = torch.Tensor.data_ptr
_KEPT = 8
_BYTES = 1 << 20
"""Of a draw that keeps the GIL."""


class PlacedDraws:
    """Draws transitions by place, those that are staged too. See NOTE [cold draws].

    Parameters
    ----------
    storage : Storage
        With the fields of the observations, the next observations, action, reward, ``terminated``
        and ``truncated``.
    form : TransitionFormat
    size : int
        Positions.
    staged : StagedCalls | None

    Attributes
    ----------
    most : int
        Transitions that are read at once: reading keeps the GIL.
    """

    def __init__(
        self, storage: Storage, form: TransitionFormat, size: int, staged: StagedCalls | None
    ) -> None:
        from async_loader.replay.kernels import places  # late: see compiled.py

        self._draw_places = places.draw_places
        self._random: Any = None
        self._geometry, self._staged, self._n_envs = storage.geometry, staged, form.n_envs
        # without `truncated`: what it says is in `terminated`
        stored = storage.layout.schema.fields[:-1]
        shown = [(field.dtype, field.shape) for field in stored]
        shown[-2:] = [(shown[-2][0], (1,)), (np.dtype(np.float32), (1,))]
        self._shown = shown
        self._fields = np.zeros((len(shown), READING), np.int64)
        places_of = zip(storage.layout.places, stored, strict=False)
        self._fields[:, [ROW_ADDRESS, ROW_STRIDE, NBYTES]] = [
            (storage.base + offset, stride, field.nbytes) for (offset, stride), field in places_of
        ]
        self._fields[:, ARRAY_STRIDE] = [
            dtype.itemsize * int(np.prod(shape)) for dtype, shape in shown
        ]
        self._from = np.zeros((len(shown), WRITING), np.int64)
        self._ring = np.zeros(p.TARGETS + len(shown), np.int64)
        self._ring[p.SIZE], self._ring[p.ENVS] = size, form.n_envs
        self._call_bytes = 0
        if staged is not None:
            self._from = staged.fields[: len(shown)].copy()
            self._call_bytes = staged.call_bytes
        self._put = struct.Struct(f"{p.TARGETS - p.NEXT + len(shown)}q").pack_into
        self._changing = self._ring[p.NEXT :].data
        self._kept: dict[int, tuple[Ids, list[torch.Tensor]]] = {}
        self.most = 0 if storage.on_disk else _BYTES // storage.layout.schema.nbytes

    def draw(
        self, count: int, most: int, next_position: int, newest: int
    ) -> Sequence[torch.Tensor] | None:
        """Draw from the first ``most`` positions, into new tensors; ``None`` if some transition is
        not in the table. Takes the lock of the random numbers; under that of the table.

        The tensors, on the CPU: those of the observations, of the next observations, the action,
        the reward ``[rows, 1]``, and a float32 tensor ``[rows, 1]``, 1 where the episode
        terminated. ``next_position``: the next to be overwritten. ``newest``: the id of the first
        environment's newest transition.
        """
        staged = self._staged
        ids, kept = self._kept.get(count) or self._keep(count)
        tensors = [*map(_like, kept)]
        behind = 0 if staged is None else staged.count
        self._put(
            self._changing,
            0,
            next_position,
            newest,
            newest + self._n_envs - behind if behind else sys.maxsize,
            self._call_bytes,
            most,
            *map(_address, tensors),
        )
        random = _legacy_random.get_bit_generator()
        if random is not self._random:
            self._use(random)
        with random.lock:
            gone = self._draw_places(self._geometry, self._ring, self._fields, self._from, ids)
        return None if gone else tensors

    def _use(self, random: Any) -> None:
        """Draw with this bit generator from now on."""
        interface = random.ctypes
        self._ring[p.RANDOM] = ctypes.cast(interface.next_uint32, ctypes.c_void_p).value or 0
        self._ring[p.RANDOM_STATE] = interface.state_address
        self._random = random  # keeps both alive

    def _keep(self, count: int) -> tuple[Ids, list[torch.Tensor]]:
        """Make room for the ids of that many transitions, and tensors like those of their draws."""
        if len(self._kept) == _KEPT:
            self._kept.clear()
        made = (
            np.empty(count, np.int64),
            [torch.from_numpy(np.empty((count, *shape), dtype)) for dtype, shape in self._shown],
        )
        self._kept[count] = made
        return made
