"""The frames of the last ten minutes, and the thread that adds one each second."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from async_loader.errors import AsyncLoaderError
from async_loader.lifecycle import every
from async_loader.observe.cluster_status import paired
from async_loader.observe.dashboard.frame import frame_of

EVERY_S = 1.0
KEPT = 600
_POINT = ("in_per_s", "out_per_s", "size", "queued_rows", "nbytes", "samples_per_insert")


class History:
    """Frames as JSON, and what the page's curves need of older ones.

    Parameters
    ----------
    status : callable
        Returns the status of a feeder, or of a cluster; an error of this package makes a frame that
        says so.

    Notes
    -----
    Threads: `note` belongs to one thread; all else may be called from any.
    """

    def __init__(self, status: Callable[[], Mapping[str, Any]]) -> None:
        self._status = status
        self._before: Mapping[str, Any] | None = None
        self._points: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._news = threading.Condition()
        self._newest = b""
        self._count = 0
        self._closed = False

    def note(self) -> None:
        """Ask for a status, and add its frame."""
        try:
            status = self._status()
        except (AsyncLoaderError, RuntimeError) as error:  # also a status changed while it is read
            self._add({"error": str(error)}, None)
            return
        frame = frame_of(*paired(status, self._before))
        self._before = status
        self._add(frame, _point(frame))

    def _add(self, frame: dict[str, Any], point: dict[str, Any] | None) -> None:
        if point is not None:
            self._points.append(point)
        text = json.dumps(frame, allow_nan=False, separators=(",", ":")).encode()
        with self._news:
            self._newest, self._count = text, self._count + 1
            self._news.notify_all()

    def newest(self) -> bytes:
        """Return the newest frame as JSON; empty before the first."""
        return self._newest

    def points(self) -> bytes:
        """Return the points of the curves as JSON, oldest first."""
        return json.dumps(list(self._points), separators=(",", ":")).encode()

    def follow(self, wait_s: float) -> Iterator[bytes | None]:
        """Return each new frame, from the newest on; ``None`` after ``wait_s`` without one.

        Ends with `close`.
        """
        seen = 0
        while not self._closed:
            with self._news:
                if self._count == seen and not self._closed:
                    self._news.wait(wait_s)
                count, text = self._count, self._newest
            if self._closed:
                return
            yield text if count > seen else None
            seen = count

    def close(self) -> None:
        """End all `follow`. May be called again."""
        with self._news:
            self._closed = True
            self._news.notify_all()

    def kept_up(self) -> Any:
        """Return a context in which a thread calls `note` each second."""
        return every(EVERY_S, self.note, "async-loader-dashboard")


def _point(frame: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "t": frame["uptime_s"],
        "tables": {
            one["name"]: {
                **{key: one[key] for key in _POINT},
                **one["blocked"],
                "lag": max((lag.get("lag", 0) for lag in one["policies"].values()), default=0),
            }
            for one in frame["tables"]
        },
    }
