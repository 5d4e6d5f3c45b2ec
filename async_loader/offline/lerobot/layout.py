"""What a LeRobot dataset consists of: its features, episodes and files, out of its folder meta.

The layout is that of version 3.0: ``meta/info.json``, ``meta/tasks.parquet``,
``meta/episodes/chunk-000/file-000.parquet``, and data and videos in files of many episodes each.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.offline.bad_data import Place
from async_loader.offline.lerobot.parquet import array_of, read
from async_loader.schema import supported

Ids = npt.NDArray[np.int64]
_INFO = "meta/info.json"
_NEEDED = ("codebase_version", "fps", "total_frames", "data_path", "features")
_OF_ROWS = ("timestamp", "frame_index", "episode_index", "task_index")


@dataclass(frozen=True, slots=True)
class Videos:
    """The files of one video feature, and where each episode's frames lie in them.

    Attributes
    ----------
    paths : tuple of Path
    shape : (int, int, int)
        Of a frame: height, width, 3.
    file, first : int64 array [episodes]
        Which of the paths, and the number of the episode's first frame in it.
    """

    paths: tuple[Path, ...]
    shape: tuple[int, int, int]
    file: Ids
    first: Ids


@dataclass(frozen=True, slots=True)
class DatasetLayout:
    """The features, the episodes and the files of a dataset.

    Attributes
    ----------
    root : Path
    fps : float
    numbers : dict of str to (dtype, shape)
        The features in parquet, by name.
    videos : dict of str to Videos
    start, stop : int64 array [episodes]
        The first frame of each episode, and the one after its last, in the dataset.
    data : tuple of Path
        The parquet files with the frames' rows, in order.
    tasks : tuple of str
        By ``task_index``.
    """

    root: Path
    fps: float
    numbers: dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
    videos: dict[str, Videos]
    start: Ids
    stop: Ids
    data: tuple[Path, ...]
    tasks: tuple[str, ...]

    @property
    def frames(self) -> int:
        return int(self.stop[-1])

    @classmethod
    def of(cls, root: Path, fields: Collection[str] | None) -> DatasetLayout:
        """Read what is in ``meta``.

        ``fields``: the features to be read; by default all numbers and videos.

        Raises
        ------
        BadData
            For files that are missing or damaged, and another version of the format.
        MissingExtra
        """
        info = _info(root)
        place = Place(str(root / _INFO))
        features = _features(info["features"], fields, place)
        shown = [name for name, one in features.items() if one["dtype"] == "video"]
        names = ["data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index"]
        for key in shown:
            names += [f"videos/{key}/{what}" for what in ("chunk_index", "file_index")]
        meta = _episodes(root, names, [f"videos/{key}/from_timestamp" for key in shown])
        start, stop = meta["dataset_from_index"], meta["dataset_to_index"]
        if start[0] != 0 or (start[1:] != stop[:-1]).any() or stop[-1] != info["total_frames"]:
            raise place.error(
                None,
                f"it says {info['total_frames']} frames, and the episodes of meta/episodes do not "
                f"follow each other from 0 to that (the last ends at {stop[-1]}): files are "
                "missing, download them again",
            )
        numbers = {
            name: (np.dtype(one["dtype"]), _number_shape(one))
            for name, one in features.items()
            if one["dtype"] != "video"
        }
        data, _ = _paths(root, info, "data_path", meta, "data", {})
        videos = {key: _videos(root, info, key, features[key], meta, place) for key in shown}
        fps = float(info["fps"])
        return cls(root, fps, numbers, videos, start, stop, data, _tasks(root))


def _info(root: Path) -> dict[str, Any]:
    path = root / _INFO
    place = Place(str(path))
    if not path.is_file():
        raise place.error(
            None, "there is no such file: name the folder of a LeRobot dataset, which has it"
        )
    try:
        info = json.loads(path.read_text())
        missing = [name for name in _NEEDED if name not in info]
    except (ValueError, TypeError) as error:
        raise place.error(None, f"it cannot be read ({error}): download it again") from None
    version = "" if "codebase_version" in missing else str(info["codebase_version"])
    if version and not version.startswith("v3."):
        raise place.error(
            "codebase_version",
            f"the dataset is of version {version}, and v3.0 is read: convert it with LeRobot's "
            "lerobot.scripts.convert_dataset_v21_to_v30",
        )
    if missing:
        raise place.error(missing[0], "there is no such entry: download the file again")
    if not isinstance(info["features"], dict) or not info["features"] or not info["fps"] > 0:
        raise place.error("features", "it lists no features, or fps is not above 0")
    return dict(info)


def _features(
    listed: Mapping[str, Any], fields: Collection[str] | None, place: Place
) -> dict[str, Mapping[str, Any]]:
    """Return the features that are read, by name."""
    for name in fields or ():
        if name not in listed:
            raise place.error(name, f"there is no such feature, it has {', '.join(listed)}")
    found: dict[str, Mapping[str, Any]] = {}
    for name, one in listed.items():
        if name == "index" or (fields is not None and name not in fields):
            continue
        if one["dtype"] == "image":
            raise place.error(
                name,
                "its images lie in the parquet files: convert them to video with LeRobot's "
                "tools, or leave the feature out with fields=",
            )
        if one["dtype"] == "video" or _is_number(one):
            found[name] = one
        elif fields is not None:
            raise place.error(name, f"it is {one['dtype']}, which is no number: leave it out")
    for name in _OF_ROWS if fields is None else ():
        found.setdefault(name, {"dtype": "float32" if name == "timestamp" else "int64"})
    return found


def _is_number(feature: Mapping[str, Any]) -> bool:
    try:
        return supported(np.dtype(feature["dtype"]))
    except TypeError:
        return False


def _number_shape(feature: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tuple(int(n) for n in feature.get("shape", (1,)))
    return () if shape == (1,) else shape


def _episodes(root: Path, numbers: list[str], times: list[str]) -> dict[str, npt.NDArray[Any]]:
    """Return columns of meta/episodes, in the order of the episodes."""
    files = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise Place(str(root / "meta" / "episodes")).error(
            None, "there are no parquet files: download them again"
        )
    parts = [(path, read(path, ["episode_index", *numbers, *times])) for path in files]
    columns = {
        name: np.concatenate([array_of(table, name, (), path) for path, table in parts])
        for name in ("episode_index", *numbers, *times)
    }
    order = np.argsort(columns.pop("episode_index"), kind="stable")
    if not len(order):
        raise Place(str(files[0])).error(None, "it has no episodes: record some first")
    return {
        name: array[order].astype(np.float64 if name in times else np.int64)
        for name, array in columns.items()
    }


def _paths(
    root: Path,
    info: Mapping[str, Any],
    template: str,
    meta: Mapping[str, npt.NDArray[Any]],
    prefix: str,
    names: dict[str, str],
) -> tuple[tuple[Path, ...], Ids]:
    """Return the files of all episodes, each once, and which of them each episode is in.

    Raises BadData for one that is not there.
    """
    both = np.stack([meta[f"{prefix}/chunk_index"], meta[f"{prefix}/file_index"]], axis=1)
    each, which = np.unique(both, axis=0, return_inverse=True)
    paths = []
    for chunk, file in each.tolist():
        try:
            path = root / info[template].format(chunk_index=chunk, file_index=file, **names)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            raise Place(str(root / _INFO)).error(
                template, f"{info.get(template)!r} is no path of version 3: download it again"
            ) from None
        if not path.is_file():
            raise Place(str(path)).error(
                None, "there is no such file, and episodes lie in it: download it again"
            )
        paths.append(path)
    return tuple(paths), which.reshape(-1).astype(np.int64)


def _videos(
    root: Path,
    info: Mapping[str, Any],
    key: str,
    feature: Mapping[str, Any],
    meta: Mapping[str, npt.NDArray[Any]],
    place: Place,
) -> Videos:
    shape = tuple(int(n) for n in feature["shape"])
    if len(shape) == 3 and shape[0] == 3 and shape[2] != 3:
        shape = (shape[1], shape[2], shape[0])
    if len(shape) != 3 or shape[2] != 3:
        raise place.error(
            key, f"its frames are {list(feature['shape'])}, and height, width and 3 colours are "
            "read: leave it out with fields="
        )  # fmt: skip
    paths, which = _paths(root, info, "video_path", meta, f"videos/{key}", {"video_key": key})
    first = np.rint(meta[f"videos/{key}/from_timestamp"] * float(info["fps"])).astype(np.int64)
    return Videos(paths, (shape[0], shape[1], 3), which, first)


def _tasks(root: Path) -> tuple[str, ...]:
    path = root / "meta" / "tasks.parquet"
    table = read(path)
    text = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or not text:
        raise Place(str(path)).error("task_index", "it has no such column, or no tasks beside it")
    column = "task" if "task" in text else text[0]
    named = dict(
        zip(table.column("task_index").to_pylist(), table.column(column).to_pylist(), strict=True)
    )
    return tuple(str(named.get(i, "")) for i in range(1 + max(named, default=-1)))
