"""Draws of transitions by place, whose arrays are what Stable-Baselines3 wants."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from async_loader.compat.sb3.staged_calls import StagedCalls
from async_loader.compat.sb3.transitions import TransitionFormat
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.base import place_table as p
from async_loader.replay.base.field_table import (
    ARRAY_ADDRESS,
    ARRAY_STRIDE,
    NBYTES,
    READING,
    ROW_ADDRESS,
    ROW_STRIDE,
    WRITING,
)
from async_loader.replay.table.storage import Storage

_legacy_random: Any = np.random  # numpy's stubs lack get_bit_generator
_ALIGN = 64
_KEPT = 8
_BYTES = 1 << 20
"""Of a draw that keeps the GIL."""


class PlacedDraws:
    """Draws transitions by place, those that are staged too.

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
        shown = storage.layout.schema.fields[:-1]
        self._shown = [(field.dtype, field.shape, field.nbytes) for field in shown]
        self._shown[-1] = (np.dtype(np.float32), (1,), 4)
        self._shown[-2] = (self._shown[-2][0], (1,), self._shown[-2][2])
        self._fields = np.zeros((len(shown), READING), np.int64)
        places_of = zip(storage.layout.places, shown, strict=False)
        self._fields[:, [ROW_ADDRESS, ROW_STRIDE, NBYTES]] = [
            (storage.base + offset, stride, field.nbytes) for (offset, stride), field in places_of
        ]
        self._from = np.zeros((len(shown), WRITING), np.int64)
        self._ring = np.zeros(p.PLACES, np.int64)
        self._ring[p.SIZE], self._ring[p.ENVS] = size, form.n_envs
        if staged is not None:
            self._from = staged.fields[: len(shown)].copy()
            self._ring[p.CALL_BYTES] = staged.call_bytes
        self._blocks: dict[int, tuple[np.dtype[Any], Any, Ids]] = {}
        self.most = 0 if storage.on_disk else _BYTES // storage.layout.schema.nbytes

    def draw(
        self, count: int, most: int, next_position: int, newest: int
    ) -> Sequence[Array] | None:
        """Draw from the first ``most`` positions, into new arrays; ``None`` if some transition is
        not in the table. Takes the lock of the random numbers; under that of the table.

        The arrays: those of the observations, of the next observations, the action, the reward
        ``[rows, 1]``, and a float32 array ``[rows, 1]``, 1 where the episode terminated.
        ``next_position``: the next to be overwritten. ``newest``: the id of the first environment's
        newest transition.
        """
        ring, staged = self._ring, self._staged
        block, pick, fields = self._blocks.get(count) or self._block(count)
        random = _legacy_random.get_bit_generator()
        if random is not self._random:
            self._use(random)
        ring[p.NEXT], ring[p.NEWEST], ring[p.MOST] = next_position, newest, most
        ring[p.STAGED_FROM] = (
            newest + self._n_envs - staged.count
            if staged is not None and staged.count
            else sys.maxsize
        )
        ids, *arrays = pick(np.empty((), block))
        with random.lock:
            gone = self._draw_places(self._geometry, ring, fields, self._from, ids)
        return None if gone else arrays

    def _use(self, random: Any) -> None:
        """Draw with this bit generator from now on."""
        interface = random.ctypes
        self._ring[p.RANDOM] = ctypes.cast(interface.next_uint32, ctypes.c_void_p).value or 0
        self._ring[p.RANDOM_STATE] = interface.state_address
        self._random = random  # keeps both alive

    def _block(self, count: int) -> tuple[np.dtype[Any], Any, Ids]:
        """Lay out the arrays of that many transitions, behind their ids."""
        starts, end = [0], 8 * count
        for dtype, shape, _ in self._shown:
            starts.append(-(-end // _ALIGN) * _ALIGN)
            end = starts[-1] + count * dtype.itemsize * int(np.prod(shape))
        formats: list[tuple[np.dtype[Any], tuple[int, ...]]] = [(np.dtype(np.int64), (count,))]
        formats += [(dtype, (count, *shape)) for dtype, shape, _ in self._shown]
        block = np.dtype(
            {
                "names": [str(i) for i in range(len(formats))],
                "formats": formats,
                "offsets": starts,
                "itemsize": end,
            }
        )
        fields = self._fields.copy()
        fields[:, ARRAY_ADDRESS] = starts[1:]
        fields[:, ARRAY_STRIDE] = [
            dtype.itemsize * int(np.prod(shape)) for dtype, shape, _ in self._shown
        ]
        if len(self._blocks) == _KEPT:
            self._blocks.clear()
        self._blocks[count] = made = block, itemgetter(*(block.names or ())), fields
        return made
