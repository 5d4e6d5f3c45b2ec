"""A feeder of given tables in a thread of the test's process."""

from __future__ import annotations

import contextlib
import tempfile
import threading

from async_loader.feeder import connect
from async_loader.feeder.server import Server
from async_loader.feeder.settings import LimitSettings, ServiceSettings
from async_loader.feeder.wire import Plane


class Feeder:
    """A server in a thread, on ipc, that can be stopped and followed by another one."""

    def __init__(self, folder, tables, memory=True, **settings):
        self.address = f"ipc://{folder}/f"
        endpoints = {
            Plane.CONTROL: self.address,
            Plane.INSERT: f"{self.address}.insert",
            Plane.PULL: f"{self.address}.pull",
        }
        self.memory = f"{folder}/f.memory" if memory else None
        self.server = Server(
            tables, endpoints, memory=self.memory, settings=ServiceSettings(drain_s=0.0, **settings)
        )
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()

    def die(self):
        """End as one that is killed: clients are not told."""
        self.server._send_ends = lambda reason: None
        self.close()

    def close(self):
        if self._thread.is_alive():
            self.server.stop()
            self.server.stop()
            self._thread.join()
        self.server.__dict__.clear()  # pytest keeps it until after it was looked at what is left


@contextlib.contextmanager
def serving(buffer, memory=True, **limits):
    """A client of a feeder with one table."""
    with tempfile.TemporaryDirectory() as folder:
        feeder = Feeder(folder, {"t": buffer}, memory, limits=LimitSettings(**limits))
        try:
            with connect(feeder.address) as client:
                yield client
        finally:
            feeder.close()
