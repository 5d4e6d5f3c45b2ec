"""Compiled kernels on disk: a disk that fails costs time and one warning, and never an error."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from async_loader.replay.base import compiled, kernel_cache
from async_loader.replay.base.compiled import kernel

PROGRAM = """
import numpy as np
from async_loader import ReplayBuffer
with ReplayBuffer(10, seed=0) as buffer:
    for i in range(5):
        buffer.add(x=np.full(3, i, np.float32))
    print(sorted(buffer.sample(4)["x"][:, 0].tolist()), len(buffer))
"""


@pytest.fixture
def told(monkeypatch, caplog):
    """The warnings of a process that has not warned yet."""
    monkeypatch.setattr(kernel_cache, "_told", [])
    caplog.set_level(logging.WARNING, "async_loader")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A folder of compiled kernels that only this test uses."""
    monkeypatch.setattr(compiled, "kernel_folder", lambda: str(tmp_path))
    return tmp_path


def doubled():
    """A kernel that is new to this process."""

    def double(x: int) -> int:
        return 2 * x

    return kernel()(double)


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip


def test_a_kernel_is_compiled_once_and_then_loaded(home, told):
    assert doubled()(4) == 8
    again = doubled()
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1
    assert told() == []


def test_kernels_of_a_program_that_serves_nothing_are_not_all_that_a_served_table_calls(home):
    """Who takes them for that compiles the others while its clients wait for an answer."""
    assert doubled()(4) == 8
    assert any(home.iterdir())
    assert not compiled.is_kept()
    compiled.note_kept()
    assert compiled.is_kept()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT])
def test_a_disk_that_takes_nothing_costs_one_warning_with_the_remedy(
    home, told, monkeypatch, number
):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._save_data", refuse)
    assert [doubled()(4), doubled()(5)] == [8, 10]
    (said,) = told()
    assert str(home) in said
    assert os.strerror(number) in said
    assert "set NUMBA_CACHE_DIR" in said


def test_a_folder_that_goes_away_costs_no_error(home, told, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "no space for a folder")

    monkeypatch.setattr("numba.core.caching._CacheLocator.ensure_cache_path", refuse)
    assert doubled()(4) == 8
    assert len(told()) == 1


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"cut sho", bytes(100)])
def test_a_file_that_is_cut_short_is_compiled_again(home, told, suffix, content):
    assert doubled()(4) == 8
    files = list(home.rglob(f"*.{suffix}"))
    assert files
    for path in files:
        path.write_bytes(content)
    assert doubled()(4) == 8
    assert len(told()) == 1


@pytest.mark.timeout(600)  # it compiles every kernel
def test_without_a_folder_that_can_be_written_a_process_says_once_what_it_costs(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("")  # a folder below a file can be made by no user, root included
    done = run(NUMBA_CACHE_DIR=str(blocked / "cache"))
    assert done.stdout.endswith("5\n")
    assert done.stderr.count("set NUMBA_CACHE_DIR") == 1
    assert str(blocked) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_without_space_for_all_kernels_is_passed_over(tmp_path: Path, monkeypatch, told):
    full, roomy = tmp_path / "full", tmp_path / "roomy"

    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    real = compiled.tempfile.TemporaryFile
    monkeypatch.setattr(
        compiled.tempfile,
        "TemporaryFile",
        lambda dir: Full() if str(dir).startswith(str(full)) else real(dir=dir),
    )
    with pytest.raises(OSError, match="No space"):
        compiled._prepared(full, "kernels")
    assert compiled._prepared(roomy, "kernels") == roomy / "kernels"


def test_a_filled_folder_on_a_full_disk_is_still_read(tmp_path: Path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "write.nbi").write_bytes(b"compiled")
    monkeypatch.setattr(compiled, "_ALL_KERNELS", 1 << 62)  # more than any disk takes
    assert compiled._prepared(tmp_path, "kernels") == tmp_path / "kernels"


@pytest.mark.timeout(600)  # as above
def test_what_the_kernels_take_on_the_disk_is_less_than_what_is_asked_for(tmp_path: Path):
    run(NUMBA_CACHE_DIR=str(tmp_path))
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.nb?"))
    assert 0 < size < compiled._ALL_KERNELS // 4
