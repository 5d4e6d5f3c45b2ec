"""LeRobot datasets, version 3: parquet and video on a disk as a source for a loader.

::

    with AsyncDataLoader(LeRobotSource("datasets/pusht"), 64, num_workers=4) as loader:
        batch = next(loader)  # "observation.image": uint8 [64, height, width, 3], "action", ...
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, Unsupported, of_extra
from async_loader.lifecycle import Patience
from async_loader.names import explain_wrong_names
from async_loader.offline.bad_data import Place
from async_loader.offline.lerobot_files import (
    Array,
    VideoFile,
    features_of,
    read_columns,
    read_info,
    read_tasks,
)
from async_loader.public_names import set_public_names
from async_loader.schema import Field, Schema, samples_of
from async_loader.source import Applied, Rows, Seed, Window
from async_loader.sources.columns import SharedArrays
from async_loader.tree import Node
from async_loader.validation import path_of

__all__ = ["LeRobotSource"]
set_public_names(globals())

Ids = npt.NDArray[np.int64]
_TOLERANCE = 1e-4
"""Seconds between a frame and where it is looked for: what LeRobot allows."""
_OPEN_FILES = 8


@dataclass(frozen=True, slots=True)
class _Videos:
    """The files of one video feature: where each episode's first frame lies in them."""

    paths: tuple[Path, ...]
    shape: tuple[int, ...]
    file: Ids
    first: Ids


class LeRobotSource:
    """The frames of a LeRobot dataset of version 3, for an `AsyncDataLoader`.

    A batch has an array for each feature of numbers, ``[batch, *shape]``, and for each video,
    uint8 ``[batch, height, width, 3]``; beside them ``episode_index``, ``frame_index``,
    ``timestamp`` (s), ``task_index`` (of `tasks`) and ``index``, the frame in the dataset.

    Numbers are read into memory when the source is made; workers decode videos.

    Threads: `plan` by one, all else by any.

    Parameters
    ----------
    folder : str | os.PathLike
        Of the dataset: it holds ``meta/info.json``.
    fields : sequence of str, optional
        The features that batches have. By default all numbers and videos.
    windows : mapping of str to sequence of float, optional
        Seconds from the frame that is drawn, each a multiple of ``1 / fps``, as LeRobot's
        ``delta_timestamps``. The frames have to lie ``1 / fps`` apart. The feature is
        ``[batch, values, *shape]`` then. Beyond the ends of the episode its first or last frame is
        shown, and ``NAME_is_pad``, bool ``[batch, values]``, is true.
    episodes : sequence of int, optional
        Those that frames are drawn of. By default all.
    seed : int, optional

    Attributes
    ----------
    tasks : tuple of str
        By ``task_index``.
    fps : float

    Raises
    ------
    BadData
        For parquet files that are missing or damaged, for another version of the format, and with
        windows for a timestamp that does not follow the one before by ``1 / fps``. Videos are
        opened when a frame of them is drawn.
    ConfigError
        For arguments that cannot work.
    MissingExtra
        Without pyarrow, or PyAV where there are videos.
    """

    @explain_wrong_names
    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        fields: Sequence[str] | None = None,
        windows: Mapping[str, Sequence[float]] | None = None,
        episodes: Sequence[int] | None = None,
        seed: int | None = None,
    ) -> None:
        if fields is not None and (isinstance(fields, str) or not isinstance(fields, Collection)):
            raise ConfigError(f"fields={fields!r}: it is a list of features, as in ['action']")
        root = Path(path_of("folder", folder))
        info = read_info(root)
        place = Place(str(root / "meta/info.json"))
        features = features_of(info, fields, place)
        self.fps, self.tasks = float(info["fps"]), read_tasks(root)
        shapes = {name: shape for name, (dtype, shape) in features.items() if dtype == "video"}
        meta = _episodes(root, list(shapes))
        start, stop = meta["dataset_from_index"], meta["dataset_to_index"]
        if not np.array_equal([*start, info["total_frames"]], [0, *stop]):
            raise place.error(
                None,
                f"it says {info['total_frames']} frames, and the episodes of meta/episodes do not "
                f"follow each other from 0 to that (the last ends at {stop[-1]}): files are "
                "missing, download them again",
            )
        self._frames = _of_episodes(start, stop, episodes)
        shown = {key: _window(key, at, self.fps, features) for key, at in (windows or {}).items()}
        kinds = {name: one for name, one in features.items() if name not in shapes}
        paths, _ = _paths(root, info, "data_path", meta, "data")
        read = {"index": (), **{name: shape for name, (_, shape) in kinds.items()}}
        moved = any(frames.any() for frames in shown.values())
        columns = read_columns(paths, read | ({"timestamp": ()} if moved else {}))
        if not np.array_equal(columns["index"], np.arange(stop[-1])):
            raise Place(str(paths[-1])).error(
                "index", f"the files do not hold the frames 0 to {stop[-1] - 1}, each once and in "
                "order: download them again"
            )  # fmt: skip
        if moved:
            _check_times(columns["timestamp"], self._frames, start, self.fps, Place(str(root)))
        videos = {key: _videos(root, info, key, one, meta, self.fps) for key, one in shapes.items()}
        numbers = SharedArrays([columns[name].astype(dtype) for name, (dtype, _) in kinds.items()])
        images = {name: ("uint8", shape) for name, shape in shapes.items()}
        schema = _schema({**kinds, **images}, shown)
        self._reader = LeRobotReader(
            schema, numbers, tuple(kinds), videos, shown, start, stop, self.fps
        )
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        """Return the number of frames that are drawn from."""
        return len(self._frames)

    @property
    def schema(self) -> Schema:
        """The fields of a batch, without the batch dimension."""
        return self._reader.schema

    def plan(self, batch_size: int, patience: Patience) -> Rows:
        """Draw frames uniformly, with replacement."""
        return Rows(self._frames[self._rng.integers(0, len(self._frames), batch_size)])

    def reader(self) -> LeRobotReader:
        """Return the reader of frames, for this or any other process."""
        return self._reader

    def update_priorities(self, index: Any, priority: Any) -> Applied:
        """Raise Unsupported: frames are drawn uniformly."""
        raise Unsupported("a LeRobot dataset has no priorities: leave update_priorities out")

    def __repr__(self) -> str:
        return f"<LeRobotSource {len(self):,} frames ({self.schema})>"


@dataclass(eq=False)
class LeRobotReader:
    """Reads frames by their index in the dataset: numbers from memory, images from videos.

    One thread at a time.
    """

    schema: Schema
    numbers: SharedArrays
    names: tuple[str, ...]
    videos: dict[str, _Videos]
    windows: dict[str, Ids]
    start: Ids
    stop: Ids
    fps: float

    def __post_init__(self) -> None:
        self._open: OrderedDict[Path, VideoFile] = OrderedDict()
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": OrderedDict()}

    def read(self, index: Ids, into: Window, seed: Seed) -> None:
        """Fill ``into`` with the frames of ``index``. Raises BadData for a damaged video."""
        episode = np.searchsorted(self.stop, index, side="right")
        fields = {f.name: out for f, out in zip(self.schema.fields, into.fields, strict=True)}
        for name, column in zip(self.names, self.numbers.arrays, strict=True):
            fields[name][...] = column[self._shown(name, index, episode, fields)]
        for name, videos in self.videos.items():
            shown = self._shown(name, index, episode, fields)
            rows = (len(index), *[1] * (shown.ndim - 1))
            frame = shown + (videos.first - self.start)[episode].reshape(rows)
            file = np.broadcast_to(videos.file[episode].reshape(rows), frame.shape)
            which = np.stack([file, frame]).reshape(2, -1)
            each, place = np.unique(which, axis=1, return_inverse=True)
            for i, (number, at) in enumerate(each.T.tolist()):
                image = self._file(videos, number).frame(at)
                fields[name][(place.reshape(frame.shape) == i).nonzero()] = image
        fields["index"][...] = index

    def _shown(self, name: str, index: Ids, episode: Ids, fields: dict[str, Array]) -> Ids:
        """Return which frames a feature shows, ``[rows]`` or ``[rows, values]``; note which of
        them lie outside of the episode, and are its first or last.
        """
        if name not in self.windows:
            return index
        wanted = index[:, None] + self.windows[name]
        shown: Ids = wanted.clip(self.start[episode][:, None], self.stop[episode][:, None] - 1)
        fields[f"{name}_is_pad"][...] = shown != wanted
        return shown

    def _file(self, videos: _Videos, number: int) -> VideoFile:
        if self._pid != os.getpid():  # a fork shares the place in a file with its parent
            self._open, self._pid = OrderedDict(), os.getpid()
        path = videos.paths[number]
        opened = self._open.pop(path, None) or VideoFile(path, videos.shape, self.fps)
        self._open[path] = opened
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return opened

    def fetch(self, index: Ids, seed: Seed) -> Sequence[Any]:
        """Return frames as samples."""
        arrays = [np.empty((len(index), *f.shape), f.dtype) for f in self.schema.fields]
        self.read(index, Window(arrays), seed)
        return samples_of(self.schema, arrays)

    def close(self) -> None:
        """Close the video files that are open in this process."""
        while self._open:
            self._open.popitem()[1].close()


def _episodes(root: Path, videos: Sequence[str]) -> dict[str, Array]:
    """Return columns of meta/episodes, in the order of the episodes."""
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not files:
        raise Place(str(root / "meta/episodes")).error(
            None, "there are no parquet files: download them again"
        )
    names = ["episode_index", "dataset_from_index", "dataset_to_index"]
    for prefix in ("data", *(f"videos/{key}" for key in videos)):
        names += [f"{prefix}/chunk_index", f"{prefix}/file_index"]
    names += [f"videos/{key}/from_timestamp" for key in videos]
    columns = read_columns(files, dict.fromkeys(names, ()))
    order = np.argsort(columns["episode_index"], kind="stable")
    if not len(order):
        raise Place(str(files[0])).error(None, "it has no episodes: record some first")
    return {name: array[order] for name, array in columns.items()}


def _of_episodes(start: Ids, stop: Ids, episodes: Sequence[int] | None) -> Ids:
    """Return the frames of these episodes."""
    chosen = np.arange(len(start)) if episodes is None else np.asarray(episodes)
    if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
        raise ConfigError(f"episodes={episodes!r}: it is a list of whole numbers, as in [0, 1]")
    if chosen.min() < 0 or chosen.max() >= len(start):
        raise ConfigError(f"episodes: the dataset has {len(start)}, 0 to {len(start) - 1}")
    return np.concatenate([np.arange(start[i], stop[i]) for i in np.unique(chosen)])


def _window(name: str, at: Sequence[float], fps: float, features: Mapping[str, Any]) -> Ids:
    """Return a window in frames from the one that is drawn."""
    if name not in features:
        known = ", ".join(features)
        raise ConfigError(f"windows: there is no feature {name!r} that is read, but {known}")
    seconds = np.asarray(at, np.float64)
    if seconds.ndim != 1 or not len(seconds) or not np.isfinite(seconds).all():
        raise ConfigError(f"windows[{name!r}]={at!r}: it is a list of seconds, as in [-0.1, 0.0]")
    frames = np.rint(seconds * fps).astype(np.int64)
    wrong = np.flatnonzero(np.abs(frames / fps - seconds) > _TOLERANCE)
    if len(wrong):
        raise ConfigError(
            f"windows[{name!r}]: {seconds[wrong[0]]} s is no multiple of 1 / {fps:g} s, and the "
            f"frames are that far apart: say {frames[wrong[0]] / fps:.6g}"
        )
    return frames


def _paths(
    root: Path, info: Mapping[str, Any], template: str, meta: Mapping[str, Array], prefix: str,
    **names: str,
) -> tuple[tuple[Path, ...], Ids]:  # fmt: skip
    """Return the files of all episodes, each once, and which of them each episode is in."""
    both = np.stack([meta[f"{prefix}/chunk_index"], meta[f"{prefix}/file_index"]], axis=1)
    each, which = np.unique(both.astype(np.int64), axis=0, return_inverse=True)
    try:
        paths = [
            root / info[template].format(chunk_index=chunk, file_index=file, **names)
            for chunk, file in each.tolist()
        ]
    except (KeyError, IndexError, ValueError, AttributeError, TypeError):
        raise Place(str(root / "meta/info.json")).error(
            template, f"{info.get(template)!r} is no path of version 3: download it again"
        ) from None
    return tuple(paths), which.reshape(-1)


def _videos(
    root: Path, info: Mapping[str, Any], key: str, shape: tuple[int, ...],
    meta: Mapping[str, Array], fps: float,
) -> _Videos:  # fmt: skip
    """Return the files of a video feature."""
    of_extra("av", "lerobot")
    prefix = f"videos/{key}"
    paths, file = _paths(root, info, "video_path", meta, prefix, video_key=key)
    first = np.rint(meta[f"{prefix}/from_timestamp"].astype(np.float64) * fps).astype(np.int64)
    return _Videos(paths, shape, file, first)


def _check_times(times: Array, frames: Ids, start: Ids, fps: float, place: Place) -> None:
    """Raise BadData for a frame that does not lie ``1 / fps`` after the one before it.

    ``frames``: those that are drawn, whole episodes of them.
    """
    rounding = float(np.spacing(np.abs(times).max(where=np.isfinite(times), initial=0)))
    later = frames[~np.isin(frames, start)]
    apart = times.astype(np.float64)[later] - times.astype(np.float64)[later - 1]
    wrong = ~(np.abs(apart - 1 / fps) <= _TOLERANCE + rounding)
    if wrong.any():
        at = int(wrong.argmax())
        episode = int(np.searchsorted(start, later[at], side="right")) - 1
        raise Place(place.file, episode).error(
            "timestamp",
            f"frame {later[at] - start[episode]} comes {apart[at]:.6g} s after the one before, "
            f"and windows count on 1 / fps = {1 / fps:.6g} s: leave the episode out with "
            "episodes=, or record it again",
        )


def _schema(
    features: Mapping[str, tuple[str, tuple[int, ...]]], windows: Mapping[str, Ids]
) -> Schema:
    kinds = dict(features)
    for name, frames in windows.items():
        dtype, shape = kinds[name]
        kinds[name] = dtype, (len(frames), *shape)
        kinds[f"{name}_is_pad"] = "bool", (len(frames),)
    fields = tuple(Field(shape, dtype, name=name) for name, (dtype, shape) in kinds.items())
    structure = Node(dict, tuple(kinds), (None,) * len(kinds))
    return Schema(structure, fields).with_field("index", np.int64)
