"""What `connect("embedded")` starts, in a thread of the test's process: a process takes a second to
start.
"""

from __future__ import annotations

import tempfile
import threading

import msgspec

from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.settings_reader import settings_of


class NearFeeder:
    """In place of `Embedded`, of which it has what clients use."""

    def __init__(self, settings: ServerSettings) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="al-")
        self.address = f"ipc://{self._folder.name}/feeder"
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(settings))  # as to a process
        bound = msgspec.structs.replace(settings_of(sent, ServerSettings), bind=self.address)
        try:
            self._feeder = FeederProcess(bound, private=True)
        except BaseException:
            self._folder.cleanup()
            raise
        self._thread = threading.Thread(target=self._feeder.run)
        self._thread.start()

    def fate(self) -> None:
        return None

    def close(self) -> None:
        self._feeder.stop()
        self._thread.join()
        del self._feeder  # pytest keeps the client until after it was looked at what is left
        self._folder.cleanup()
