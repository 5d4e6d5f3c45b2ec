"""Reads frames of a dataset into batches, in any process: numbers from shared memory, images from
videos through the shared cache.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.offline.lerobot.columns import SharedColumns
from async_loader.offline.lerobot.frame_cache import FrameCache
from async_loader.offline.lerobot.layout import DatasetLayout, Ids, Videos
from async_loader.offline.lerobot.video import VideoFile
from async_loader.schema import Schema, samples_of
from async_loader.source import Seed, Window

_OPEN_FILES = 8
_FILE = 1 << 32
"""Numbers of frames in the cache, from file to file."""


class LeRobotReader:
    """Reads frames by their index in the dataset.

    One thread at a time.

    Parameters
    ----------
    layout : DatasetLayout
    schema : Schema
    windows : dict of str to int64 array [values]
        Frames from the one that is drawn, for features that show more than that.
    columns : SharedColumns
    cache : FrameCache | None
        ``None`` for a dataset without videos.
    """

    def __init__(
        self,
        layout: DatasetLayout,
        schema: Schema,
        windows: dict[str, Ids],
        columns: SharedColumns,
        cache: FrameCache | None,
    ) -> None:
        self.schema = schema
        self._layout, self._windows, self._columns, self._cache = layout, windows, columns, cache
        self._fields = {field.name: i for i, field in enumerate(schema.fields)}
        self._open: OrderedDict[tuple[str, int], VideoFile] = OrderedDict()
        self._pid = os.getpid()

    def read(self, index: Ids, into: Window, seed: Seed) -> None:
        """Fill ``into`` with the frames of ``index``. Raises BadData for a damaged video."""
        episode = np.searchsorted(self._layout.stop, index, side="right")
        for name, column in zip(self._layout.numbers, self._columns.arrays, strict=True):
            into.fields[self._fields[name]][...] = column[self._shown(name, index, episode, into)]
        for at, (name, videos) in enumerate(self._layout.videos.items()):
            shown = self._shown(name, index, episode, into)
            out = into.fields[self._fields[name]]
            where = np.indices(shown.shape).reshape(shown.ndim, -1).T.tolist()
            targets = [out[tuple(place)] for place in where]
            owner = episode.repeat(shown.size // max(1, len(index)))
            first = videos.first[owner] + shown.reshape(-1) - self._layout.start[owner]
            self._read_video(at, name, videos, videos.file[owner], first, targets)
        into.fields[self._fields["index"]][...] = index

    def _shown(self, name: str, index: Ids, episode: Ids, into: Window) -> Ids:
        """Return which frames a feature shows, ``[rows]`` or ``[rows, values]``; note which of
        them lie outside of the episode, and are its first or last.
        """
        window = self._windows.get(name)
        if window is None:
            return index
        wanted = index[:, None] + window
        low, high = self._layout.start[episode][:, None], self._layout.stop[episode][:, None] - 1
        shown: Ids = np.clip(wanted, low, high)
        into.fields[self._fields[f"{name}_is_pad"]][...] = shown != wanted
        return shown

    def _read_video(
        self,
        at: int,
        name: str,
        videos: Videos,
        files: Ids,
        frames: Ids,
        targets: Sequence[npt.NDArray[Any]],
    ) -> None:
        """Copy frames out of the cache, or decode them, in the order in which they lie in files."""
        assert self._cache is not None
        base = sum(len(one.paths) for one in list(self._layout.videos.values())[:at])
        for i in np.lexsort((frames, files)).tolist():
            file, frame = int(files[i]), int(frames[i])
            key = (base + file) * _FILE + frame
            if self._cache.get(key, targets[i]):
                continue
            for number, decoded in self._file(name, videos, file).up_to(frame):
                self._cache.put(key - frame + number, decoded)
                if number == frame:
                    targets[i][...] = decoded

    def _file(self, name: str, videos: Videos, file: int) -> VideoFile:
        if self._pid != os.getpid():  # a fork shares the place in a file with its parent
            self._open, self._pid = OrderedDict(), os.getpid()
        opened = self._open.pop((name, file), None)
        if opened is None:
            opened = VideoFile(videos.paths[file], videos.shape, self._layout.fps)
        self._open[name, file] = opened
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

    def __reduce__(self) -> tuple[Any, ...]:
        return LeRobotReader, (
            self._layout,
            self.schema,
            self._windows,
            self._columns,
            self._cache,
        )
