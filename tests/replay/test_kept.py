"""A kept table outlives its process; a folder that is in use, damaged or of another table is
refused.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer
from async_loader.errors import (
    AsyncLoaderError,
    ConfigError,
    CorruptCheckpoint,
    OutOfMemory,
    Unsupported,
)
from async_loader.replay.buffer import shared_table
from async_loader.replay.kept.pages import TABLE, read
from async_loader.replay.samplers import Prioritized, Uniform
from tests.kept_rig import small_pages

__all__ = ["small_pages"]
SCHEMA = {"x": "int64", "frame": Field((40, 40), np.dtype(np.uint8)), "done": "bool"}


def filled(folder: Path, count: int = 30, **settings) -> ReplayBuffer:
    table = ReplayBuffer(40, SCHEMA, keep=folder, **settings)
    for i in range(count):
        table.add(x=i, frame=np.full((40, 40), i, np.uint8), done=i % 10 == 9)
    table.sample(4)  # writes what was gathered
    return table


def test_a_killed_process_leaves_its_rows_priorities_and_draws(tmp_path):
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from async_loader.replay.samplers import Prioritized
from tests.replay.test_kept import filled
table = filled(Path({str(tmp_path / "kept")!r}), sampler=Prioritized())
table.update_priorities([3, 4], [9.0, 8.0])
table.delete([5])
table.sample(6)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=120)
    assert done.returncode == -signal.SIGKILL
    with ReplayBuffer(40, keep=tmp_path / "kept", sampler=Prioritized()) as table:
        stats = table.stats()
        assert (stats.size, stats.inserted, stats.sampled, stats.deleted) == (29, 30, 10, 1)
        found = table.get(np.arange(30))
        assert found["index"].tolist() == [i for i in range(30) if i != 5]
        assert (found["frame"][:, 0, 0] == found["x"]).all()
        given = shared_table(table).table.given
        assert np.abs(given[[3, 4]]).tolist() == [9.0, 8.0]
        assert table.sampler._ever.largest == 9.0
        assert table.add(x=30, frame=np.zeros((40, 40), np.uint8), done=False) == 30


@pytest.mark.parametrize("end", ["", "raise ValueError", "del table; os._exit(1)"])
def test_a_process_that_ends_without_close_leaves_what_it_has_gathered(tmp_path, end):
    program = f"""
import os
from async_loader import ReplayBuffer
table = ReplayBuffer(40, {{"x": "int64"}}, keep={str(tmp_path)!r})
for i in range(5):
    table.add(x=i)
{end}
"""
    root = str(Path(__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", program], timeout=120, cwd=root, stderr=subprocess.DEVNULL
    )
    with ReplayBuffer(40, keep=tmp_path) as table:
        assert table.get(np.arange(5))["x"].tolist() == list(range(5))


def test_a_table_that_was_closed_goes_on_with_another_sampler(tmp_path):
    with filled(tmp_path) as table:
        last = table.add(x=30, frame=np.zeros((40, 40), np.uint8), done=False)
    with ReplayBuffer(40, SCHEMA, keep=tmp_path, sampler=Prioritized()) as table:
        assert len(table) == 31
        assert set(table.sample(64)["x"].tolist()) <= set(range(31))
        table.update_priorities([last], [2.0])
    with ReplayBuffer(40, keep=tmp_path, sampler=Uniform()) as table:
        assert len(table) == 31


def test_a_save_is_loaded_into_a_kept_table_which_goes_on_with_it(tmp_path):
    with filled(tmp_path / "one") as table:
        table.save(tmp_path / "saved")
    with filled(tmp_path / "two", 5) as table:
        table.load(tmp_path / "saved")
        table.clear()
        table.load(tmp_path / "saved")
    with ReplayBuffer(40, keep=tmp_path / "two") as table:
        assert table.get(np.arange(40))["x"].tolist() == list(range(30))


def test_a_folder_has_one_table_at_a_time_also_beside_a_fork(tmp_path):
    table = filled(tmp_path)
    with pytest.raises(ConfigError, match="in use by another process"):
        ReplayBuffer(40, SCHEMA, keep=tmp_path)
    pid = os.fork()
    if not pid:
        signal.pause()
    try:
        table.close()
        ReplayBuffer(40, SCHEMA, keep=tmp_path).close()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("capacity", "settings", "text"),
    [
        (41, {}, "capacity=40, and 41 is asked for"),
        (
            40,
            {"schema": {"x": "float32"}},
            r"schema=\(x int64\[\], .*, and \(x float32\[\]\) is asked",
        ),
        (40, {"max_times_sampled": 2}, "max_times_sampled=0, and 2"),
        (40, {"remover": Prioritized()}, "remover='Fifo', and 'Prioritized'"),
    ],
)
def test_another_table_in_the_folder_is_an_error(tmp_path, capacity, settings, text):
    filled(tmp_path).close()
    with pytest.raises(ConfigError, match=text):
        ReplayBuffer(capacity, **({"schema": SCHEMA} | settings), keep=tmp_path)
    ReplayBuffer(40, SCHEMA, keep=tmp_path).close()


def test_memory_is_the_default_and_a_disk_is_named_once(tmp_path):
    ReplayBuffer(40, SCHEMA, keep="memory").close()
    with pytest.raises(ConfigError, match="give the folder once"):
        ReplayBuffer(40, SCHEMA, keep=tmp_path, disk=tmp_path)


def test_limits_of_a_kept_table_are_errors(tmp_path, small_pages):
    with ReplayBuffer(40, {"x": "int64"}, keep=tmp_path) as table:
        with pytest.raises(ConfigError, match="has room for 122"):
            table.add(x=0, stream="n" * 200)
        table.extend(x=np.arange(32), stream=list(range(32)))
        with pytest.raises(Unsupported, match="at most 32 open streams"):
            table.extend(x=np.arange(33), stream=list(range(32, 65)))


def test_a_damaged_file_is_refused_or_what_was_acknowledged(tmp_path, small_pages):
    """Each byte of the last 64 KiB; of what is empty there, some."""
    filled(tmp_path).close()
    path = tmp_path / TABLE
    whole = path.read_bytes()
    expected = read(path)
    end = len(whole)
    written = [at for at in range(end - (64 << 10), end) if whole[at]]
    empty = range(end - (64 << 10), end, 977)
    fd = os.open(path, os.O_RDWR)
    refused = 0
    try:
        for at in sorted({*written, *empty}):
            for value in {0, whole[at] ^ 0x41, whole[at] ^ 0xFF} - {whole[at]}:
                os.pwrite(fd, bytes([value]), at)
                try:
                    found = read(path)
                except AsyncLoaderError:
                    refused += 1
                else:
                    assert found.commit == expected.commit, at
                    assert found.about == expected.about
                    assert found.slots == expected.slots
                    assert found.streams() == expected.streams()
            os.pwrite(fd, whole[at : at + 1], at)
        assert refused > len(written)
        for cut in range(0, end, 4096):
            os.ftruncate(fd, cut)
            with pytest.raises(CorruptCheckpoint):
                read(path)
            os.pwrite(fd, whole, 0)
    finally:
        os.close(fd)
    with ReplayBuffer(40, keep=tmp_path) as table:
        assert len(table) == 30


def test_a_kill_in_a_load_is_an_error(tmp_path):
    with filled(tmp_path) as table:
        shared_table(table).table.storage.loading = True
    with pytest.raises(ConfigError, match="load the save again"):
        ReplayBuffer(40, keep=tmp_path)


def test_a_folder_tells_what_it_keeps_without_a_feeder(tmp_path):
    with filled(tmp_path / "replay") as table:
        table.delete([3])
        assert told(tmp_path)["in_use"]
        found = told(tmp_path / "replay")
    assert (found["steps"], found["inserted"], found["sampled"]) == (29, 30, 4)
    assert [field["name"] for field in found["schema"]] == ["x", "frame", "done"]
    assert not told(tmp_path)["in_use"]


def told(folder: Path) -> dict:
    command = [sys.executable, "-m", "async_loader", "inspect", str(folder)]
    assert b"29 steps" in subprocess.run(command, check=True, capture_output=True).stdout
    done = subprocess.run([*command, "--json"], check=True, capture_output=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("content", [b"", b"PK and more", {"ids": 1}, {"f9": 1}, {"f0": 0.5}])
def test_a_damaged_note_of_an_update_is_an_error(tmp_path, content):
    filled(tmp_path).close()
    path = tmp_path / "patch.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **({"ids": np.arange(2)} | {"z" * (k == "ids") + k: np.full(3, v)
                                                   for k, v in content.items()}))  # fmt: skip
    with pytest.raises(CorruptCheckpoint, match="holds no update"):
        ReplayBuffer(40, keep=tmp_path)


def test_an_update_that_finds_no_room_is_not_made(tmp_path):
    with filled(tmp_path) as table:
        (tmp_path / "patch.new").mkdir()
        with pytest.raises(OutOfMemory, match="make room there"):
            table.update([3], x=np.array([99]))
        (tmp_path / "patch.new").rmdir()
        assert table.get([3])["x"].tolist() == [3]
        table.update([3], x=np.array([99]))
        assert table.get([3])["x"].tolist() == [99]
