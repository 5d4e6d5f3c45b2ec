"""The rows of a dataset's parquet files, in memory that workers share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.offline.bad_data import Place
from async_loader.offline.lerobot.layout import DatasetLayout, Ids
from async_loader.offline.lerobot.parquet import array_of, read
from async_loader.shm.segment import Segment

_ALIGN = 64
_TIME_S = 1e-4
"""By how much a timestamp may be off, beside its rounding: what LeRobot allows."""


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
    def of(cls, layout: DatasetLayout, timed: Ids | None = None) -> SharedColumns:
        """Read all files.

        ``timed``: frames whose timestamps have to be as far apart as the frames.

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
            table = read(
                path, list(dict.fromkeys(["index", *layout.numbers])), _beside(layout, timed)
            )
            place = Place(str(path))
            index = array_of(table, "index", (), path)
            stop = done + len(index)
            if stop > layout.frames or (index != np.arange(done, stop)).any():
                raise place.error(
                    "index", f"it holds other frames than {done} to {stop - 1} of "
                    f"{layout.frames}, which follow the files before: download the files again"
                )  # fmt: skip
            for (name, (_, shape)), array in zip(layout.numbers.items(), made.arrays, strict=True):
                array[done:stop] = array_of(table, name, shape, path)
            if timed is not None and "timestamp" in table.column_names:
                _check_times(layout, timed, done, array_of(table, "timestamp", (), path), place)
            done = stop
        if done < layout.frames:
            raise Place(str(layout.data[-1])).error(
                "index", f"the files end at frame {done} of {layout.frames}: download them again"
            )
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedColumns, (self._segment, self._kinds)


def _beside(layout: DatasetLayout, timed: Ids | None) -> list[str]:
    return ["timestamp"] if timed is not None and "timestamp" not in layout.numbers else []


def _check_times(
    layout: DatasetLayout, timed: Ids, first: int, times: npt.NDArray[Any], place: Place
) -> None:
    """Raise BadData where a frame does not follow the one before it at the dataset's rate."""
    if len(times) < 2:
        return
    frames = np.arange(first, first + len(times))
    episode = np.searchsorted(layout.stop, frames, side="right")
    chosen = np.isin(episode, np.searchsorted(layout.stop, timed, side="right"))
    apart = np.diff(times.astype(np.float64))
    rounding = 2 * np.spacing(np.abs(times[1:]).astype(np.float32)).astype(np.float64)
    wrong = np.abs(apart - 1 / layout.fps) > _TIME_S + rounding
    wrong &= (episode[1:] == episode[:-1]) & chosen[1:]
    if wrong.any():
        at = int(wrong.argmax())
        raise Place(place.file, int(episode[at])).error(
            "timestamp",
            f"frame {int(frames[at + 1] - layout.start[episode[at]])} comes {apart[at]:.4g} s "
            f"after the one before it, and frames are {1 / layout.fps:.4g} s apart: windows in "
            "seconds would show other frames, so correct it, or leave the episode out by episodes=",
        )


def _room(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return -(-int(np.prod(shape)) * dtype.itemsize // _ALIGN) * _ALIGN
