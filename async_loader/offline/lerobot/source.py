"""A LeRobot dataset as a source: frames drawn uniformly, of all episodes or some."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, Unsupported
from async_loader.lifecycle import Patience
from async_loader.names import explain_wrong_names
from async_loader.offline.bad_data import Place
from async_loader.offline.lerobot.columns import SharedColumns
from async_loader.offline.lerobot.frame_cache import FrameCache
from async_loader.offline.lerobot.layout import DatasetLayout, Ids
from async_loader.offline.lerobot.reader import LeRobotReader
from async_loader.offline.lerobot.video import VideoFile
from async_loader.replay.arguments import bytes_of
from async_loader.schema import Field, Schema
from async_loader.source import Applied, Rows
from async_loader.tree import Node
from async_loader.validation import path_of

_TOLERANCE = 1e-4
"""Seconds, between an offset of a window and the frame that is there."""


class LeRobotSource:
    """The frames of a LeRobot dataset of version 3, for an `AsyncDataLoader`.

    A batch has an array for each feature of numbers, ``[batch, *shape]``, and for each video,
    uint8 ``[batch, height, width, 3]``; beside them ``episode_index``, ``frame_index``,
    ``timestamp`` (s), ``task_index`` (of `tasks`) and ``index``, the frame in the dataset.

    Numbers are read into shared memory when the source is made. Workers decode videos, and share
    what they have decoded: the cache is one for all of them, and never larger than it was said.

    Threads: `plan` by one, all else by any.

    Parameters
    ----------
    folder : str | os.PathLike
        Of the dataset: it holds ``meta/info.json``.
    fields : sequence of str, optional
        The features that batches have. By default all numbers and videos.
    windows : mapping of str to sequence of float, optional
        Seconds from the frame that is drawn, each a multiple of ``1 / fps``, as LeRobot's
        ``delta_timestamps``. The feature is ``[batch, values, *shape]`` then. Beyond the ends of
        the episode its first or last frame is shown, and ``NAME_is_pad``, bool
        ``[batch, values]``, is true.
    episodes : sequence of int, optional
        Those that frames are drawn of. By default all.
    cache : int | str
        Shared memory for decoded frames at most, in bytes or as in ``"1GiB"``.
    seed : int, optional

    Attributes
    ----------
    tasks : tuple of str
        By ``task_index``.
    fps : float

    Raises
    ------
    BadData
        For files that are missing or damaged, and for another version of the format.
    ConfigError
        For arguments that cannot work.
    OutOfMemory
        If the numbers do not fit the memory.
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
        cache: int | str = "256MiB",
        seed: int | None = None,
    ) -> None:
        layout = DatasetLayout.of(Path(path_of("folder", folder)), _names(fields))
        room = bytes_of("cache", cache)
        frames = {name: _frames(name, at, layout) for name, at in (windows or {}).items()}
        self._frames = _of_episodes(layout, episodes)
        for videos in layout.videos.values():
            _check_videos(layout, videos.paths, videos.shape, videos.file, videos.first)
        sizes = [int(np.prod(videos.shape)) for videos in layout.videos.values()]
        shared = FrameCache(room, max(sizes)) if sizes else None
        columns = SharedColumns.of(layout, self._frames if frames else None)
        self._reader = LeRobotReader(layout, _schema(layout, frames), frames, columns, shared)
        self._rng = np.random.default_rng(seed)
        self.tasks, self.fps = layout.tasks, layout.fps

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


def _names(fields: object) -> Collection[str] | None:
    if fields is None:
        return None
    if isinstance(fields, str) or not isinstance(fields, Collection) or not fields:
        raise ConfigError(f"fields={fields!r}: it is a list of features, as in ['action']")
    return fields


def _frames(name: str, at: Sequence[float], layout: DatasetLayout) -> Ids:
    """Return a window in frames from the one that is drawn."""
    if name not in layout.numbers and name not in layout.videos:
        known = ", ".join([*layout.numbers, *layout.videos])
        raise ConfigError(f"windows: there is no feature {name!r} that is read, but {known}")
    seconds = np.asarray(at, np.float64)
    if seconds.ndim != 1 or not len(seconds) or not np.isfinite(seconds).all():
        raise ConfigError(f"windows[{name!r}]={at!r}: it is a list of seconds, as in [-0.1, 0.0]")
    frames = np.rint(seconds * layout.fps).astype(np.int64)
    apart = np.abs(frames / layout.fps - seconds)
    if (apart > _TOLERANCE).any():
        wrong = float(seconds[int(apart.argmax())])
        raise ConfigError(
            f"windows[{name!r}]: {wrong} s is no multiple of 1 / {layout.fps:g} s, and the frames "
            f"are that far apart: say {float(frames[int(apart.argmax())] / layout.fps):.6g}"
        )
    return frames


def _of_episodes(layout: DatasetLayout, episodes: Sequence[int] | None) -> Ids:
    """Return the frames of these episodes."""
    count = len(layout.start)
    if episodes is None:
        return np.arange(layout.frames)
    chosen = np.asarray(episodes)
    if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
        raise ConfigError(f"episodes={episodes!r}: it is a list of whole numbers, as in [0, 1]")
    if chosen.min() < 0 or chosen.max() >= count:
        raise ConfigError(f"episodes: the dataset has {count}, 0 to {count - 1}")
    return np.concatenate(
        [np.arange(layout.start[i], layout.stop[i]) for i in np.unique(chosen).tolist()]
    )


def _schema(layout: DatasetLayout, windows: Mapping[str, Ids]) -> Schema:
    kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = dict(layout.numbers)
    kinds |= {name: (np.dtype(np.uint8), one.shape) for name, one in layout.videos.items()}
    for name, frames in windows.items():
        dtype, shape = kinds[name]
        kinds[name] = dtype, (len(frames), *shape)
        kinds[f"{name}_is_pad"] = np.dtype(np.bool_), (len(frames),)
    fields = tuple(Field(shape, dtype, name=name) for name, (dtype, shape) in kinds.items())
    structure = Node(dict, tuple(kinds), (None,) * len(kinds))
    return Schema(structure, fields).with_field("index", np.int64)


def _check_videos(
    layout: DatasetLayout,
    paths: Sequence[Path],
    shape: tuple[int, int, int],
    file: Ids,
    first: Ids,
) -> None:
    """Raise BadData for a file that cannot be opened, or has fewer frames than its episodes."""
    ends = first + layout.stop - layout.start
    for number, path in enumerate(paths):
        opened = VideoFile(path, shape, layout.fps)
        try:
            there, needed = opened.frames, int(ends[file == number].max())
        finally:
            opened.close()
        if there and there < needed:
            raise Place(str(path)).error(
                None, f"it has {there} frames, and its episodes have {needed}: it is cut off, "
                "copy or download it again"
            )  # fmt: skip
