"""What a kill would leave of a kept table: at each line of the package that changes it, and after
each row that a kernel writes.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from async_loader import ReplayBuffer
from async_loader.replay.buffer import shared_table
from async_loader.replay.kept import pages

_WHERE = (
    "/replay/kept/file.py",
    "/server/kept_leases.py",
    "/server/batch_scheduler.py",
    "/server/insert_queue.py",
    *(
        f"/replay/table/{name}.py"
        for name in (
            "by_id", "compressed_ring", "items", "nonblocking_table", "rebuild", "streams", "table",
        )
    ),
)  # fmt: skip
Files = dict[str, bytes]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some kilobytes, which are copied often."""
    monkeypatch.setattr(pages, "STREAMS", 64)
    monkeypatch.setattr(pages, "PRODUCERS", 64)
    return


def put_back(folder: Path, files: Files) -> None:
    """Make a folder as a kill has left it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


class Points:
    """Collects what a kill would leave in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, list[Files]()
        self._last: object = None

    def take(self) -> None:
        """Copy the folder, if it has changed."""
        files = {
            path.name: path.read_bytes()
            for path in self.folder.iterdir()
            if not path.name.endswith(".new")
        }
        seen = {name: zlib.crc32(content) for name, content in files.items()}
        if seen != self._last:
            self._last = seen
            self.found.append(files)

    def _trace(self, frame: Any, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(_WHERE):
            return None
        if event == "line":
            self.take()
        return self._trace

    def during(self, buffer: ReplayBuffer, call: Callable[[], object]) -> list[Files]:
        """Return what a kill would leave within a call."""
        table, self.found, self._last = shared_table(buffer).table, [], None
        kernels, points = table._k, self

        class OneByOne:
            def __getattr__(self, name: str) -> Any:
                return getattr(kernels, name)

            @staticmethod
            def write(*arguments: Any) -> None:
                *given, start, stop, free, ids, changes = arguments
                for i in range(start, stop):
                    kernels.write(*given, i, i + 1, free, ids, changes)
                    points.take()

        table._k = OneByOne()
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(before)
            table._k = kernels
        self.take()
        return self.found
