"""Frames out of video files, by their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import MissingExtra
from async_loader.offline.bad_data import Place

Frame = npt.NDArray[np.uint8]
_AHEAD = 32
"""Frames that are decoded on the way, where a jump to a key frame would not pay."""
_NOWHERE = 1 << 62
_AGAIN = "it is cut off or damaged, copy or download it again"


def av_module() -> Any:
    """Return PyAV. Raises MissingExtra."""
    try:
        import av
    except ImportError as error:
        raise MissingExtra(
            'PyAV is not installed: pip install "async_loader[lerobot]", or pip install av'
        ) from error
    return av


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

    def __init__(self, path: Path, shape: tuple[int, int, int], fps: float) -> None:
        self._av, self._place, self._fps = av_module(), Place(str(path)), fps
        try:
            self._container: Any = self._av.open(str(path))
            self._stream: Any = self._container.streams.video[0]
        except (self._av.FFmpegError, OSError, IndexError) as error:
            raise self._place.error(
                None, f"it cannot be read as video ({error}): {_AGAIN}"
            ) from None
        self._stream.codec_context.thread_count = 1  # workers decode beside each other
        there = (self._stream.codec_context.height, self._stream.codec_context.width, 3)
        if there != shape:
            self.close()
            raise self._place.error(
                None, f"its frames are {list(there)}, and meta/info.json says {list(shape)}: "
                "correct that, or download the file again"
            )  # fmt: skip
        self._frames: Iterator[Any] = iter(())
        self._at = _NOWHERE  # the frame that was decoded last

    @property
    def frames(self) -> int:
        """Frames that the file says it has; 0 if it does not say."""
        return int(self._stream.frames)

    def up_to(self, number: int) -> Iterator[tuple[int, Frame]]:
        """Yield decoded frames, with their numbers, the last of which is ``number``.

        Raises
        ------
        BadData
            If the file does not have it.
        """
        if not 0 < number - self._at <= _AHEAD:
            self._jump(number)
        last = -1
        while (frame := self._next(number)) is not None:
            last = self._at = round(float(frame.pts * self._stream.time_base) * self._fps)
            if last > number:
                break
            yield last, frame.to_ndarray(format="rgb24")
            if last == number:
                return
        self._at = _NOWHERE
        raise self._place.error(
            None, f"frame {number} is not in it, the last that was found is {last}: {_AGAIN}"
        )

    def _next(self, number: int) -> Any:
        """Return the next decoded frame on the way to ``number``, ``None`` at the end."""
        try:
            return next(self._frames, None)
        except (self._av.FFmpegError, OSError) as error:
            self._at = _NOWHERE
            raise self._place.error(
                None, f"frame {number} cannot be decoded ({error}): {_AGAIN}"
            ) from None

    def _jump(self, number: int) -> None:
        """Go to the key frame before a frame."""
        self._at = _NOWHERE
        try:
            offset = int(number / self._fps / self._stream.time_base)
            self._container.seek(offset, stream=self._stream, backward=True)
        except (self._av.FFmpegError, OSError) as error:
            raise self._place.error(
                None, f"frame {number} cannot be found ({error}): {_AGAIN}"
            ) from None
        self._frames = self._container.decode(self._stream)

    def close(self) -> None:
        """Close the file."""
        self._container.close()
