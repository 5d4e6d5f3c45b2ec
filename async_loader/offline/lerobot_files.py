"""The files of a LeRobot dataset, version 3: parquet by pyarrow, video by PyAV."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, of_extra
from async_loader.offline.bad_data import Place

Array = npt.NDArray[Any]
Kind = tuple[str, tuple[int, ...]]
"""Dtype of a feature, which may be "video", and its shape."""
_AHEAD = 32
"""Frames that are decoded on the way, where a jump to a key frame would not pay."""
_NOWHERE = 1 << 62
_OPEN_FILES = 8


def read_info(root: Path) -> dict[str, Any]:
    """Return what ``meta/info.json`` says. Raises BadData."""
    place = Place(str(root / "meta/info.json"))
    with place.reading("the meta/info.json of a LeRobot dataset"):
        info: dict[str, Any] = json.loads(Path(place.file).read_text())
        version = str(info["codebase_version"])
        if not version.startswith("v3."):
            raise place.error(
                "codebase_version",
                f"the dataset is of version {version}, and v3.0 is read: convert it with "
                "LeRobot's lerobot.scripts.convert_dataset_v21_to_v30",
            )
        return info


def features_of(listed: Mapping[str, Any], fields: Sequence[str] | None) -> dict[str, Kind]:
    """Return the features that are read."""
    if isinstance(fields, str) or (unknown := set(fields or ()) - listed.keys()):
        named = fields if isinstance(fields, str) else min(unknown)
        raise ConfigError(f"fields: {named!r} is not in a list of features of {', '.join(listed)}")
    found: dict[str, Kind] = {}
    for name in listed.keys() - {"index"} if fields is None else set(fields) - {"index"}:
        one = listed[name]
        dtype, shape = str(one["dtype"]), tuple(int(n) for n in one.get("shape", (1,)))
        if dtype == "video" and shape[:1] == (3,) != shape[2:]:
            shape = (*shape[1:], 3)
        if hasattr(np, dtype) or dtype == "bool" or (dtype == "video" and shape[2:] == (3,)):
            found[name] = dtype, () if shape == (1,) else shape
        elif dtype in ("video", "image") or fields is not None:
            raise ConfigError(
                f"feature {name!r} is {dtype} of {list(shape)}, and numbers and videos of 3 "
                "colours are read: leave it out with fields="
            )
    return {name: found[name] for name in listed if name in found}


def read_columns(paths: Sequence[Path], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return columns of parquet files, one file after the other, as ``[rows, *shape]``."""
    parquet = of_extra("pyarrow.parquet", "lerobot")
    parts: dict[str, list[Array]] = {name: [] for name in shapes}
    for path in paths:
        with Place(str(path)).reading("parquet"):
            table = parquet.read_table(path, columns=list(shapes))
            for name, shape in shapes.items():
                values = table.column(name).combine_chunks()
                while hasattr(values.type, "value_type"):
                    values = values.flatten()
                array: Array = values.to_numpy(zero_copy_only=False)
                parts[name].append(array.reshape(len(table), *shape))
    return {name: np.concatenate(found) for name, found in parts.items()}


def read_tasks(root: Path) -> tuple[str, ...]:
    """Return the texts of tasks, by ``task_index``."""
    path = root / "meta/tasks.parquet"
    parquet = of_extra("pyarrow.parquet", "lerobot")
    with Place(str(path)).reading("parquet"):
        columns = parquet.read_table(path).to_pydict()
        index = columns.pop("task_index")
        named = dict(zip(index, *columns.values(), strict=True))
        return tuple(str(named.get(i, "")) for i in range(1 + max(named, default=-1)))


def read_episodes(root: Path, videos: Sequence[str]) -> dict[str, Array]:
    """Return columns of meta/episodes, in the order of the episodes."""
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    names = ["episode_index", "dataset_from_index", "dataset_to_index"]
    for prefix in ("data", *(f"videos/{key}" for key in videos)):
        names += [f"{prefix}/chunk_index", f"{prefix}/file_index"]
    names += [f"videos/{key}/from_timestamp" for key in videos]
    columns = read_columns(files, dict.fromkeys(names, ())) if files else {}
    if not files or not len(columns["episode_index"]):
        raise Place(str(root / "meta/episodes")).error(
            None, "there are no episodes in parquet files: download them again"
        )
    order = np.argsort(columns["episode_index"], kind="stable")
    return {name: array[order] for name, array in columns.items()}


def paths_of(
    root: Path, template: str, episode: Mapping[str, Array], prefix: str, **names: str
) -> tuple[list[Path], npt.NDArray[np.int64]]:
    """Return the files of all episodes, each once, and which of them each episode is in."""
    both = np.stack([episode[f"{prefix}/chunk_index"], episode[f"{prefix}/file_index"]], axis=1)
    each, which = np.unique(both.astype(np.int64), axis=0, return_inverse=True)
    paths = [
        root / template.format(chunk_index=chunk, file_index=file, **names)
        for chunk, file in each.tolist()
    ]
    return paths, which.reshape(-1)


class VideoFile:
    """One open video file, of frames of a shape. One thread. Raises BadData and MissingExtra."""

    def __init__(self, path: Path, shape: tuple[int, ...], fps: float) -> None:
        self._place, self._shape, self._fps = Place(str(path)), shape, fps
        with self._place.reading("video"):
            self._container: Any = of_extra("av", "lerobot").open(str(path))
            weakref.finalize(self, self._container.close)
            self._stream: Any = self._container.streams.video[0]
        self._stream.codec_context.thread_count = 1  # workers decode beside each other
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
                    image: Array = frame.to_ndarray(format="rgb24")
                    if image.shape != self._shape:
                        raise ValueError(f"{image.shape}, and meta/info.json says {self._shape}")
                    return image
                if found > number:
                    break
            raise EOFError("the file does not have it")


@lru_cache(_OPEN_FILES)
def open_video(
    path: Path, shape: tuple[int, ...], fps: float, process: int, thread: int
) -> VideoFile:
    """Return an open file of this thread alone, also after a fork, which shares the place in it.

    Parameters
    ----------
    process, thread : int
        Those that ask.
    """
    return VideoFile(path, shape, fps)
