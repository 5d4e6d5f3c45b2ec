"""Has the disk bring in the rows of a plan before they are read."""

from __future__ import annotations

import mmap

import numpy as np

from async_loader.replay.array_types import Ids
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.table.storage import Storage
from async_loader.shm.hugepages import advise

_PAGE = mmap.PAGESIZE


def read_ahead(storage: Storage, read_plan: ReadPlan, ids: Ids) -> None:
    """Ask the kernel for all pages of a batch at once, where reading would ask for one page after
    the other. Waits for none of them.

    The steps that an item shows beside its own are taken to lie in the rows around it, as those of
    a single stream do. Where streams are mixed, other rows are brought in, and reading waits for
    some.
    """
    layout = storage.layout
    sources = {one.source for one in read_plan.outputs}
    columns = [place for i, place in enumerate(layout.places) if i in sources]
    rows = ids % layout.rows
    first = np.maximum(rows - read_plan.depth + 1, 0)
    end = np.minimum(rows + read_plan.span + 1, layout.rows)
    for offset, stride in {(0, layout.stride), *(c for c in columns if c[1] != layout.stride)}:
        bring_in(storage.base, offset + first * stride, offset + end * stride)


def bring_in(base: int, begins: Ids, ends: Ids) -> None:
    """Ask for the bytes from ``begins`` to ``ends``, which count from ``base``, the beginning of a
    page. Waits for none of them.
    """
    for begin, end in zip((begins // _PAGE).tolist(), (-(-ends // _PAGE)).tolist(), strict=True):
        advise(base + begin * _PAGE, (end - begin) * _PAGE, mmap.MADV_WILLNEED)
