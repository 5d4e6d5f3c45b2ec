"""LeRobot datasets, version 3: parquet and video on a disk as a source for a loader.

::

    with AsyncDataLoader(LeRobotSource("datasets/pusht"), 64, num_workers=4) as loader:
        batch = next(loader)  # "observation.image": uint8 [64, height, width, 3], "action", ...
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader.errors import ConfigError, Unsupported, of_extra
from async_loader.lifecycle import Patience
from async_loader.name_hints import explain_wrong_names
from async_loader.offline.bad_data import Place
from async_loader.offline.lerobot_files import (
    Array,
    Kind,
    features_of,
    open_video,
    paths_of,
    read_columns,
    read_episodes,
    read_info,
    read_tasks,
)
from async_loader.public_names import set_public_names
from async_loader.schema import Field, Schema
from async_loader.source import Applied, Rows, Seed, Window
from async_loader.sources.columns import SchemaReader, SharedArrays
from async_loader.validation import path_of

__all__ = ["LeRobotSource"]
set_public_names(globals())

Ids = npt.NDArray[np.int64]
_TOLERANCE = 1e-4
"""Seconds between a frame and where it is looked for: what LeRobot allows."""


class _Videos(NamedTuple):
    """The files of one video feature: where each episode's first frame lies in them."""

    paths: list[Path]
    file: Ids
    shape: tuple[int, ...]
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
        root = Path(path_of("folder", folder))
        info = read_info(root)
        self.fps, total = float(info["fps"]), int(info["total_frames"])
        features = features_of(info["features"], fields)
        shapes = {name: shape for name, (dtype, shape) in features.items() if dtype == "video"}
        kinds = {name: one for name, one in features.items() if name not in shapes}
        shown = {key: _window(key, at, self.fps, features) for key, at in (windows or {}).items()}
        episode = read_episodes(root, list(shapes))
        start, stop = episode["dataset_from_index"], episode["dataset_to_index"]
        self._frames = _of_episodes(start, stop, episodes)
        paths, _ = paths_of(root, info["data_path"], episode, "data")
        read = {"index": (), "timestamp": (), **{name: shape for name, (_, shape) in kinds.items()}}
        columns = read_columns(paths, read)
        whole = np.array_equal([*start, total], [0, *stop])
        if not whole or not np.array_equal(columns["index"], np.arange(total)):
            raise Place(str(paths[-1])).error(
                "index",
                f"the episodes do not hold the frames 0 to {total - 1}, each once and in order: "
                "files are missing, download them again",
            )
        if any(frames.any() for frames in shown.values()):
            _check_times(columns["timestamp"], self._frames, start, self.fps, str(root))
        self.tasks = read_tasks(root)
        if shapes:
            of_extra("av", "lerobot")
        videos = {
            key: _Videos(
                *paths_of(root, info["video_path"], episode, f"videos/{key}", video_key=key),
                shape,
                np.rint(episode[f"videos/{key}/from_timestamp"] * self.fps).astype(np.int64),
            )
            for key, shape in shapes.items()
        }
        numbers = SharedArrays([columns[name].astype(dtype) for name, (dtype, _) in kinds.items()])
        self._reader = LeRobotReader(
            _schema(features, shown), numbers, tuple(kinds), videos, shown, start, stop, self.fps
        )
        weakref.finalize(self._reader, open_video.cache_clear)
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
class LeRobotReader(SchemaReader):
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
                path, asks = videos.paths[number], (os.getpid(), threading.get_ident())
                image = open_video(path, videos.shape, self.fps, *asks).frame(at)
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

    def close(self) -> None:
        """Close the video files that are open in this process."""
        open_video.cache_clear()


def _of_episodes(start: Ids, stop: Ids, episodes: Sequence[int] | None) -> Ids:
    """Return the frames of these episodes."""
    chosen = np.arange(len(start)) if episodes is None else np.asarray(episodes)
    if chosen.dtype.kind not in "iu" or not np.isin(chosen, np.arange(len(start))).all():
        raise ConfigError(
            f"episodes={episodes!r}: it is a list of numbers from 0 to {len(start) - 1}"
        )
    return np.concatenate([np.arange(start[i], stop[i]) for i in np.unique(chosen)])


def _window(name: str, at: Sequence[float], fps: float, features: Mapping[str, Any]) -> Ids:
    """Return a window in frames from the one that is drawn."""
    if name not in features:
        known = ", ".join(features)
        raise ConfigError(f"windows: there is no feature {name!r} that is read, but {known}")
    seconds = np.atleast_1d(np.asarray(at, np.float64))
    frames = np.rint(seconds * fps).astype(np.int64)
    wrong = np.flatnonzero(~(np.abs(frames / fps - seconds) <= _TOLERANCE))
    if len(wrong):
        raise ConfigError(
            f"windows[{name!r}]: {seconds[wrong[0]]} s is no multiple of 1 / {fps:g} s, and the "
            f"frames are that far apart: say {frames[wrong[0]] / fps:.6g}"
        )
    return frames


def _check_times(times: Array, frames: Ids, start: Ids, fps: float, folder: str) -> None:
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
        raise Place(folder, episode).error(
            "timestamp",
            f"frame {later[at] - start[episode]} comes {apart[at]:.6g} s after the one before, "
            f"and windows count on 1 / fps = {1 / fps:.6g} s: leave the episode out with "
            "episodes=, or record it again",
        )


def _schema(features: Mapping[str, Kind], windows: Mapping[str, Ids]) -> Schema:
    fields = {}
    for name, (dtype, shape) in features.items():
        window = windows[name].shape if name in windows else ()
        fields[name] = Field((*window, *shape), "uint8" if dtype == "video" else dtype)
        if window:
            fields[f"{name}_is_pad"] = Field(window, "bool")
    return Schema.of(fields).with_field("index", np.int64)
