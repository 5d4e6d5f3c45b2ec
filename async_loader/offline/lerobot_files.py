"""The files of a LeRobot dataset, version 3: parquet by pyarrow, video by PyAV."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import of_extra
from async_loader.offline.bad_data import Place

Array = npt.NDArray[Any]
_AGAIN = "copy or download it again"
_NEEDED = ("codebase_version", "fps", "total_frames", "data_path", "features")
_AHEAD = 32
"""Frames that are decoded on the way, where a jump to a key frame would not pay."""
_NOWHERE = 1 << 62


def read_info(root: Path) -> dict[str, Any]:
    """Return what ``meta/info.json`` says. Raises BadData."""
    path = root / "meta/info.json"
    place = Place(str(path))
    with place.reading("the meta/info.json of a LeRobot dataset"):
        info: dict[str, Any] = json.loads(path.read_text())
        missing = [name for name in _NEEDED if name not in info]
    if missing:
        raise place.error(missing[0], f"there is no such entry: {_AGAIN}")
    if not str(info["codebase_version"]).startswith("v3."):
        raise place.error(
            "codebase_version",
            f"the dataset is of version {info['codebase_version']}, and v3.0 is read: convert it "
            "with LeRobot's lerobot.scripts.convert_dataset_v21_to_v30",
        )
    return info


def features_of(
    info: Mapping[str, Any], fields: Collection[str] | None, place: Place
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of each feature that is read: numbers, and "video"."""
    listed = info["features"]
    for name in fields or ():
        if name not in listed:
            raise place.error(name, f"there is no such feature, it has {', '.join(listed)}")
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, one in listed.items():
        if name == "index" or (fields is not None and name not in fields):
            continue
        dtype, shape = str(one["dtype"]), tuple(int(n) for n in one.get("shape", (1,)))
        if dtype == "video" and shape[:1] == (3,) != shape[2:]:
            shape = (*shape[1:], 3)
        numbers = hasattr(np, dtype) or dtype == "bool"
        if numbers or (dtype == "video" and len(shape) == 3 and shape[2] == 3):
            found[name] = dtype, () if shape == (1,) else shape
        elif dtype in ("video", "image") or fields is not None:
            raise place.error(
                name,
                f"it is {dtype} of {list(shape)}, and numbers and videos of 3 colours are read: "
                "leave it out with fields=",
            )
    return found


def read_columns(
    paths: Sequence[Path], columns: Mapping[str, tuple[int, ...] | None]
) -> dict[str, Array]:
    """Return columns of parquet files, one file after the other, as ``[rows, *shape]``; with
    ``None`` as arrays of objects.

    Raises
    ------
    BadData
        For a file that is not there or damaged, and a column that is missing or of another shape.
    MissingExtra
    """
    parquet = of_extra("pyarrow.parquet", "lerobot")
    parts: dict[str, list[Array]] = {name: [] for name in columns}
    for path in paths:
        place = Place(str(path))
        with place.reading("parquet"):
            there = parquet.read_schema(path).names
            for name in columns:
                if name not in there:
                    names = ", ".join(there[:20])
                    raise place.error(name, f"there is no such column, it has {names}")
            table = parquet.read_table(path, columns=list(columns))
        for name, shape in columns.items():
            column = table.column(name)
            values = column.combine_chunks()
            while hasattr(values.type, "value_type"):
                values = values.flatten()
            array: Array = values.to_numpy(zero_copy_only=False)
            if shape is not None:
                rows = len(column)
                if len(array) != rows * math.prod(shape) or array.dtype.kind not in "biuf":
                    raise place.error(
                        name,
                        f"{rows} rows hold {len(array)} values of {array.dtype}, and "
                        f"meta/info.json says {list(shape)} for each: correct the shape there, or "
                        f"{_AGAIN}",
                    )
                array = array.reshape(rows, *shape)
            parts[name].append(array)
    return {name: np.concatenate(found) for name, found in parts.items()}


def read_tasks(root: Path) -> tuple[str, ...]:
    """Return the texts of tasks, by ``task_index``."""
    path = root / "meta/tasks.parquet"
    index = read_columns([path], {"task_index": ()})["task_index"]
    parquet = of_extra("pyarrow.parquet", "lerobot")
    names = [name for name in parquet.read_schema(path).names if name != "task_index"]
    text = read_columns([path], dict.fromkeys(names[-1:]))
    named = dict(zip(index.tolist(), *text.values(), strict=True)) if text else {}
    return tuple(str(named.get(i, "")) for i in range(1 + max(named, default=-1)))


class VideoFile:
    """One open video file. One thread.

    Parameters
    ----------
    path : Path
    shape : (int, int, int)
        Of a frame: height, width, 3.
    fps : float

    Raises
    ------
    BadData
        If it cannot be opened, or has other frames.
    MissingExtra
    """

    def __init__(self, path: Path, shape: tuple[int, ...], fps: float) -> None:
        self._place, self._fps = Place(str(path)), fps
        with self._place.reading("video"):
            self._container: Any = of_extra("av", "lerobot").open(str(path))
            self._stream: Any = self._container.streams.video[0]
        codec = self._stream.codec_context
        codec.thread_count = 1  # workers decode beside each other
        if (codec.height, codec.width, 3) != shape:
            self.close()
            raise self._place.error(
                None, f"its frames are {[codec.height, codec.width, 3]}, and meta/info.json says "
                f"{list(shape)}: correct that, or {_AGAIN}"
            )  # fmt: skip
        self._decoded: Iterator[Any] = iter(())
        self._at = _NOWHERE  # the frame that was decoded last

    def frame(self, number: int) -> Array:
        """Decode a frame. Raises BadData if the file does not have it."""
        at, self._at = self._at, _NOWHERE
        with self._place.reading(f"video at frame {number}"):
            if not 0 < number - at <= _AHEAD:
                offset = int(number / self._fps / self._stream.time_base)
                self._container.seek(offset, stream=self._stream, backward=True)
                self._decoded = self._container.decode(self._stream)
            for frame in self._decoded:
                found = round(float(frame.pts * self._stream.time_base) * self._fps)
                if found == number:
                    self._at = number
                    return frame.to_ndarray(format="rgb24")  # type: ignore[no-any-return]
                if found > number:
                    break
            raise EOFError("the file does not have it")

    def close(self) -> None:
        """Close the file."""
        self._container.close()
