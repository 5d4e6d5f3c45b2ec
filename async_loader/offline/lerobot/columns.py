"""The rows of a dataset's parquet files, in memory that workers share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.offline.bad_data import Place
from async_loader.offline.lerobot.layout import DatasetLayout
from async_loader.offline.lerobot.parquet import array_of, read
from async_loader.shm.segment import Segment

_ALIGN = 64


class SharedColumns:
    """Arrays ``[frames, *shape]``, one for each feature of numbers.

    Parameters
    ----------
    segment : Segment
    kinds : list of (dtype, shape)
        Of the arrays, which lie in the segment in this order.
    """

    def __init__(
        self, segment: Segment, kinds: list[tuple[np.dtype[Any], tuple[int, ...]]]
    ) -> None:
        self._segment, self._kinds = segment, kinds
        self.arrays: list[npt.NDArray[Any]] = []
        begin = 0
        for dtype, shape in kinds:
            array: npt.NDArray[Any] = np.ndarray(shape, dtype, segment.bytes(), begin)
            self.arrays.append(array)
            begin += _room(dtype, shape)

    @classmethod
    def of(cls, layout: DatasetLayout) -> SharedColumns:
        """Read all files.

        Raises
        ------
        BadData
            For a file that is damaged, and rows that are not those of the episodes.
        OutOfMemory
        """
        kinds = [(dtype, (layout.frames, *shape)) for dtype, shape in layout.numbers.values()]
        nbytes = sum(_room(*kind) for kind in kinds)
        made = cls(Segment.create(max(nbytes, _ALIGN), "the columns of the dataset"), kinds)
        done = 0
        for path in layout.data:
            table, place = read(path, ["index", *layout.numbers]), Place(str(path))
            index = array_of(table, "index", (), path)
            stop = done + len(index)
            if stop > layout.frames or (index != np.arange(done, stop)).any():
                raise place.error(
                    "index", f"it holds other frames than {done} to {stop - 1} of "
                    f"{layout.frames}, which follow the files before: download the files again"
                )  # fmt: skip
            for (name, (_, shape)), array in zip(layout.numbers.items(), made.arrays, strict=True):
                array[done:stop] = array_of(table, name, shape, path)
            done = stop
        if done < layout.frames:
            raise Place(str(layout.data[-1])).error(
                "index", f"the files end at frame {done} of {layout.frames}: download them again"
            )
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedColumns, (self._segment, self._kinds)


def _room(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return -(-int(np.prod(shape)) * dtype.itemsize // _ALIGN) * _ALIGN
