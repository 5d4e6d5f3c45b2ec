"""A folder is one process's, until that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from async_loader.errors import ConfigError
from async_loader.shm.folder_lock import FolderLock

HOLDER = """
import sys
from pathlib import Path
from async_loader.shm.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]), "")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_is_refused_while_another_process_has_it_and_free_after_a_kill(tmp_path):
    folder = tmp_path / "new" / "folder"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"{folder} is in use .* name another folder"):
            FolderLock(folder, "name another folder")
        holder.send_signal(signal.SIGKILL)
    FolderLock(folder, "").close()


def test_a_forked_child_does_not_hold_it(tmp_path):
    lock = FolderLock(tmp_path, "")
    (held, go), (seen, told) = os.pipe(), os.pipe()
    if not (child := os.fork()):
        os.write(told, b"x")
        os.read(held, 1)
        os._exit(0)
    os.read(seen, 1)
    lock.close()
    FolderLock(tmp_path, "").close()
    os.write(go, b"x")
    os.waitpid(child, 0)
    for fd in (held, go, seen, told):
        os.close(fd)
