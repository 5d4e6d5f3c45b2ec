"""A table in a mapped file does what one in memory does, and may be larger than the memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from async_loader import (
    Field,
    ReplayBuffer,
)
from async_loader.errors import OutOfMemory
from async_loader.shm import segment

SCHEMA = {
    "obs": Field((40, 40), "uint8", stack=3, next="next_obs"),
    "reward": "float32",
    "terminated": "bool",
}


def episode(first: int, length: int) -> dict[str, np.ndarray]:
    steps = np.arange(first, first + length)
    return {
        "obs": np.broadcast_to(steps[:, None, None] % 251, (length, 40, 40)).astype(np.uint8),
        "reward": steps.astype(np.float32),
        "terminated": np.arange(length) == length - 1,
    }


def pair(folder: Path, **settings) -> tuple[ReplayBuffer, ReplayBuffer]:
    """The same table in memory and on a disk."""
    return tuple(ReplayBuffer(300, SCHEMA, seed=3, disk=d, **settings) for d in (None, folder))


def assert_equal(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_checkpoint_goes_from_memory_to_a_disk_and_back(tmp_path):
    memory, disk = pair(tmp_path)
    memory.extend(**episode(0, 400), stream=0)
    memory.save(tmp_path / "one")
    disk = ReplayBuffer.from_checkpoint(tmp_path / "one", disk=tmp_path)
    disk.extend(**episode(400, 30), stream=1)
    disk.save(tmp_path / "two")
    back = ReplayBuffer.from_checkpoint(tmp_path / "two")
    ids = np.arange(150, 430)
    assert_equal(disk.get(ids), back.get(ids))
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_a_disk_that_fills_up_meanwhile_is_an_error_and_no_signal(tmp_path, monkeypatch):
    def full(fd: int, offset: int, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segment.os, "posix_fallocate", full)
    with pytest.raises(OutOfMemory, match="could not be taken"):
        ReplayBuffer(10, SCHEMA, disk=tmp_path)


def test_a_killed_process_leaves_no_file(tmp_path):
    program = f"""
import os, signal
from async_loader import ReplayBuffer
table = ReplayBuffer(1000, {{"x": "float32"}}, disk={str(tmp_path)!r})
table.add(x=1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not os.listdir(tmp_path)


LARGE = """
import sys
import numpy as np
from async_loader import Field, ReplayBuffer
steps = int(sys.argv[2])
table = ReplayBuffer(steps, {"obs": Field((64, 64), "uint8"), "step": "int64"}, disk=sys.argv[1])
for begin in range(0, steps, 1024):
    ids = np.arange(begin, begin + 1024)
    obs = np.broadcast_to((ids % 251)[:, None, None], (1024, 64, 64)).astype(np.uint8)
    table.extend(obs=obs, step=ids)
seen = 0
for _ in range(40):
    batch = table.sample(64)
    assert (batch["obs"] == (batch["step"] % 251)[:, None, None]).all()
    seen += len(np.unique(batch["step"]))
print(table.nbytes, seen)
"""


@pytest.fixture
def memory_group():
    """A memory cgroup of 192 MiB, and how to enter it."""
    limit = 192 << 20
    for root, name in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(root) / f"async-loader-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        yield group, limit
        group.rmdir()
        return
    pytest.skip("no memory cgroup can be made here")


@pytest.mark.slow
def test_a_table_four_times_larger_than_the_memory_limit_is_sampled(tmp_path, memory_group):
    group, limit = memory_group
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < 8 * limit:
        pytest.skip("the disk has no room for the table")
    enter = f'echo $$ > {group}/cgroup.procs && exec {sys.executable} -c "$0" {tmp_path} 196608'
    done = subprocess.run(
        ["sh", "-c", enter, LARGE], timeout=280, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    nbytes, seen = map(int, done.stdout.split())
    assert nbytes > 4 * limit
    assert seen > 2000


def test_compressed_values_on_a_disk_are_those_of_their_rows(tmp_path):
    schema = {"x": Field((64,), "int64", codec="lz4")}
    with ReplayBuffer(500, schema, disk=tmp_path) as buffer:
        ids = buffer.extend(x=np.repeat(np.arange(400), 64).reshape(400, 64))
        assert (buffer.get(ids[::-7])["x"][:, 3] == np.arange(400)[::-7]).all()
