"""The process of a shard: a feeder that serves while it has an owner.

# NOTE [owners]
The owner is the shard's actor, as a connection to the socket ``owner`` in the shard's folder. When
the connection ends, as the actor was killed, the feeder serves on, and the actor that Ray starts in
its place takes it over. Without an owner for `ORPHAN_S` it drains and ends: no process is left
behind when a cluster is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from async_loader.feeder.settings_reader import settings_of
from async_loader.lifecycle import readable
from async_loader.process_hooks import end_process, tell_ready

ORPHAN_S = 30.0
OWNER = "owner"
_LINE = 1 << 16


class Owners:
    """Waits for owners, one after the other, on a thread of its own.

    Parameters
    ----------
    folder : Path
    about : dict
        What an owner is told, as a line of JSON.
    server : FeederProcess
        Stopped when there is no owner any more.
    """

    def __init__(self, folder: Path, about: dict[str, Any], server: FeederProcess) -> None:
        self._about, self._server = json.dumps(about).encode() + b"\n", server
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = folder / OWNER
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(8)
        threading.Thread(target=self._run, name="async-loader-owner", daemon=True).start()

    def _run(self) -> None:
        owners: dict[int, socket.socket] = {}
        while seen := readable([self._listener.fileno(), *owners], None if owners else ORPHAN_S):
            for fd in seen:
                if fd == self._listener.fileno():
                    owner, _ = self._listener.accept()
                    owners[owner.fileno()] = owner
                    with contextlib.suppress(OSError):  # it has ended: it is removed as readable
                        owner.sendall(self._about)
                elif _has_ended(owners[fd]):
                    owners.pop(fd).close()
        self._listener.close()
        self._server.stop()


def _has_ended(owner: socket.socket) -> bool:
    try:
        return not owner.recv(64)
    except OSError:  # it was killed
        return True


def main(folder: Path, told: int) -> int:
    """Serve until SIGTERM, a DRAIN, or the end of the owner.

    ``told`` is written to when clients may connect, and SIGTERM ends it in order.
    """
    head = json.loads(sys.stdin.buffer.readline())
    settings = settings_of(msgspec.msgpack.decode(sys.stdin.buffer.read()), ServerSettings)
    server = FeederProcess(settings, count=True, ends_process=True)
    status = server.status()
    about = {
        **head,
        "address": server.address,
        "pid": os.getpid(),
        "restored": {
            name: {
                "rows": one["restored_rows"],
                "lost": one["lost_rows_in_sum"],
                "save": one["number"],
            }
            for name, one in status["checkpoints"].items()
        },
    }
    Owners(folder, about, server)
    return server.run(ready=partial(tell_ready, told))


if __name__ == "__main__":
    end_process(main(Path(sys.argv[1]), int(sys.argv[2])))
