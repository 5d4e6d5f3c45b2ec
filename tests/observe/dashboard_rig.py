"""A feeder in a thread of the test, as `async-loader serve` runs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings


@contextlib.contextmanager
def feeder(tmp_path, size: str = "replay:1000") -> Iterator[FeederProcess]:
    settings = ServerSettings.of([size], bind=f"ipc://{tmp_path}/feeder")
    process = FeederProcess(settings)
    thread = threading.Thread(target=process.run)
    thread.start()
    try:
        yield process
    finally:
        process.stop()
        thread.join(60)
