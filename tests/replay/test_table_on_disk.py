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
    AsyncDataLoader,
    Field,
    Prioritized,
    ReplayBuffer,
    Sequences,
    Transitions,
    connect,
)
from async_loader.errors import ConfigError, OutOfMemory
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


@pytest.mark.parametrize(
    "view", [None, Transitions(3, 0.9), Sequences(8, burn_in=2, bootstrap=1, boundary="pad")]
)
@pytest.mark.parametrize("prioritized", [False, True])
def test_the_same_calls_give_the_same_batches_as_in_memory(tmp_path, view, prioritized):
    sampler = (lambda: Prioritized(0.6, 0.4)) if prioritized else (lambda: None)
    tables = [
        ReplayBuffer(300, SCHEMA, seed=3, view=view, sampler=sampler(), disk=d)
        for d in (None, tmp_path)
    ]
    rng = np.random.default_rng(0)
    for round_ in range(12):
        length, dead = int(rng.integers(20, 60)), rng.integers(0, 600, 5)
        for table in tables:
            table.extend(**episode(round_ * 60, length), stream=round_ % 2)
            table.delete(dead)
            table.update(dead, reward=np.full(5, -1, np.float32))
        one, other = (table.sample(64) for table in tables)
        assert_equal(one, other)
        if prioritized:
            error = rng.random(one["index"].shape)
            for table in tables:
                table.update_priorities(one["index"], error)
        ids = rng.integers(0, 700, 30)
        assert_equal(*(table.get(ids) for table in tables))
    assert [len(table) for table in tables] == [len(tables[0])] * 2
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_it(tmp_path, workers):
    memory, disk = pair(tmp_path)
    for table in (memory, disk):
        table.extend(**episode(0, 250), stream=0)
    batches = []
    for table in (memory, disk):
        with AsyncDataLoader(
            table.source(view=Transitions(2), seed=5), 32, num_workers=workers, batch_format="numpy"
        ) as loader:
            batches.append([{k: v.copy() for k, v in next(loader).items()} for _ in range(5)])
    for one, other in zip(*batches, strict=True):
        assert_equal(one, other)


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


def test_a_feeder_takes_it_as_a_setting(tmp_path):
    with connect("embedded", tables={"replay": {"capacity": 50, "disk": str(tmp_path)}}) as client:
        table = client.table("replay")
        with table.writer() as writer:
            for step in range(30):
                writer.append(x=np.float32(step))
        # 5,000 draws: 200 leave a step out in a run of 30
        assert sorted(set(table.sample(5000)["x"])) == list(range(30))


@pytest.mark.parametrize(
    ("disk", "said"), [(7, "give a path"), ("", "disk is empty"), ("/none/such", "no folder")]
)
def test_what_is_no_folder_is_refused_at_once(disk, said):
    with pytest.raises(ConfigError, match=said):
        ReplayBuffer(10, disk=disk)


def test_a_table_larger_than_the_disk_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(OutOfMemory, match=r"needs [0-9.]+ GiB on the disk of .* are free"):
        ReplayBuffer(10**12, SCHEMA, disk=tmp_path)


def test_a_disk_that_fills_up_meanwhile_is_an_error_and_no_signal(tmp_path, monkeypatch):
    def full(fd: int, offset: int, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segment.os, "posix_fallocate", full)
    with pytest.raises(OutOfMemory, match="could not be taken"):
        ReplayBuffer(10, SCHEMA, disk=tmp_path)


def test_a_file_system_without_nameless_files_leaves_nothing_either(tmp_path, monkeypatch):
    real = os.open

    def refuses(path, flags, *mode, **more):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *mode, **more)

    monkeypatch.setattr(segment.os, "open", refuses)
    _, table = pair(tmp_path)
    assert not os.listdir(tmp_path)
    table.extend(**episode(0, 10), stream=0)
    assert table.sample(4)["reward"].shape == (4,)


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
