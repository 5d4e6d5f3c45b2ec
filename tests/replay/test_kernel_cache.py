"""Compiled kernels on disk: a disk that fails costs time and one warning, and never an error."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import async_loader
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
BUILD = """
from async_loader.replay import kernel_build
use, uniform = kernel_build._use, kernel_build.Uniform
kernel_build._use = lambda sampler=None, **_: isinstance(sampler, uniform) and use()
kernel_build.build()
"""
"""Of one kind of table: the kernels of all kinds take a half minute more."""
IS_KEPT = "from async_loader.replay.kernel_build import is_kept; print(is_kept())"


@pytest.fixture
def told(monkeypatch, caplog):
    """The warnings of a process that has not warned yet."""
    monkeypatch.setattr(kernel_cache, "_told", {"compiling"})
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


@pytest.fixture
def bare(tmp_path):
    """A copy of the package without compiled kernels, as a path to import from."""
    package = Path(async_loader.__file__).parent
    shutil.copytree(
        package, tmp_path / "bare/async_loader", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "bare"


def run(*arguments: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the package from a folder, with an empty home."""
    home = at.parent / "home"
    home.mkdir(exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, "-W", "error", *(arguments or ("-c", PROGRAM))],
        env={**inherited, "HOME": str(home), "PYTHONPATH": str(at), **environment},
        cwd=at, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip


def kernels_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.nbc")}


def test_a_kernel_is_compiled_once_and_then_loaded(home, told):
    assert doubled()(4) == 8
    again = doubled()
    assert again(4) == 8
    assert sum(again.stats.cache_hits.values()) == 1
    assert told() == []


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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_that_the_build_compiles_are_loaded_wherever_the_package_is_moved(
    bare: Path, tmp_path: Path
):
    """Also where no folder can be written: nothing is compiled, and so there is nothing to say."""
    run("-c", BUILD, at=bare)
    built = kernels_in(bare)
    assert built
    installed = tmp_path / "site-packages"
    bare.rename(installed)
    blocked = tmp_path / "file"
    blocked.write_text("")
    for environment in ({}, {"NUMBA_CACHE_DIR": str(blocked / "cache")}):
        done = run(at=installed, **environment)
        assert done.stdout.endswith("5\n")
        assert done.stderr == ""
        done = run("-c", IS_KEPT, at=installed, **environment)
        assert done.stdout == "True\n"
    assert kernels_in(tmp_path) == built


def test_what_takes_seconds_is_announced_once(home, told, monkeypatch, caplog):
    monkeypatch.setattr(kernel_cache, "_told", set())
    caplog.set_level(logging.INFO, "async_loader")
    for _ in range(2):
        assert doubled()(4) == 8
        for path in home.iterdir():
            path.unlink()
    assert [line for line in told() if "compiling" in line] == [
        "compiling replay kernels for this processor, once: this takes about 10 s"
    ]
