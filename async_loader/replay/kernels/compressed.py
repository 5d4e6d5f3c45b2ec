"""Kernels on the ring of compressed values. See table/compressed_ring.py, NOTE [floor]."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.compiled import kernel
from async_loader.replay.base.row_format import ROWS
from async_loader.replay.kernels.machine import after_loads, before_stores, copy, load, store
from async_loader.replay.kernels.writing import retire


@kernel(keeps_gil=True)
def retire_steps(g: Any, first: int, stop: int, changes: Any) -> None:
    """Retire the steps of these ids: the items that show them end."""
    for name in range(first, stop):
        retire(g, name, name % g[ROWS], changes)


@kernel(keeps_gil=True)
def raise_floor(word: int, floor: int) -> None:
    """Store the first position that may be read, before anything is written below it."""
    store(word, floor)
    before_stores()


@kernel(keeps_gil=True)
def put_values(ring: int, size: int, positions: Any, source: int, starts: Any, counts: Any) -> None:
    """Copy compressed values from ``source + starts[i]`` to their positions in the ring."""
    for i in range(len(positions)):
        copy(ring + positions[i] % size, source + starts[i], counts[i])


@kernel()
def take_values(
    ring: int, size: int, word: int, positions: Any, counts: Any, target: int, starts: Any
) -> int:
    """Copy compressed values from the ring to ``target + starts[i]``.

    Return the first position that was still whole when all were copied: the floor.
    """
    for i in range(len(positions)):
        copy(target + starts[i], ring + positions[i] % size, counts[i])
    after_loads()
    return load(word)


@kernel()
def copy_values(targets: Any, sources: Any, nbytes: int) -> None:
    """Copy values of ``nbytes`` from addresses to addresses."""
    for i in range(len(targets)):
        copy(targets[i], sources[i], nbytes)
