"""What every test shares: after each, nothing may be left. No process, no thread, no segment, no
descriptor.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import multiprocessing
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Collection

import hypothesis
import psutil
import pytest
from fake_device import FakeBackend
from near_feeder import NearFeeder

from async_loader.pipeline.device.cuda_backend import BY_NAME

BY_NAME["fake"] = FakeBackend
hypothesis.settings.register_profile(
    "shared machine",
    deadline=None,  # how long an example takes says nothing there
    # nor does how long it takes to draw one
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("shared machine")

PATIENCE_S = 30.0
_PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--start-method",
        choices=["fork", "spawn", "forkserver"],
        help="How processes are started where a test does not say it. Python 3.14 has forkserver "
        "in place of fork.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if method := config.getoption("--start-method"):
        multiprocessing.set_start_method(method, force=True)
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(
            ["torch", "async_loader.pipeline.workers.worker_main"]
        )  # else a second for each worker


def children() -> dict[int, str]:
    """Processes below this one, but for those that multiprocessing keeps until the interpreter
    ends.
    """
    found, parents = {}, [os.getpid()]
    for parent in parents:  # which grows; psutil would read what is known of every process
        for tasks in glob.iglob(f"/proc/{parent}/task/*/children"):
            with contextlib.suppress(OSError), open(tasks) as below:  # it may end meanwhile
                parents += map(int, below.read().split())
    for pid in parents[1:]:
        try:
            process = psutil.Process(pid)
            command = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and not any(
                own in command for own in _PYTHONS_OWN
            ):
                found[pid] = command or process.name()
        except psutil.NoSuchProcess:
            continue
    return found


def loader_threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("async-loader"))


OPENED = ("memfd:async_loader", "[eventfd]", "[pidfd]", "socket:")
"""Kinds of descriptors that the package opens."""
_DRIVERS = ("[eventfd]", "socket:")
"""A driver of an accelerator opens these too, when it likes, and keeps them."""


def descriptors(of: Collection[str] = OPENED) -> Counter[str]:
    """Descriptors, by kind."""
    kinds: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        for kind in of:
            if kind in target:
                kinds[kind] += 1
    return kinds


def mapped_segments() -> int:
    with open("/proc/self/maps", "rb") as maps:
        return maps.read().count(b"memfd:async_loader")


def _left(
    before: tuple[dict[int, str], Counter[str], int], counted: Collection[str]
) -> dict[str, object]:
    processes, fds, mapped = before
    left: dict[str, object] = {
        "processes": {pid: command for pid, command in children().items() if pid not in processes},
        "threads": loader_threads(),
        "descriptors": dict(descriptors(counted) - fds),
        "mapped segments": max(0, mapped_segments() - mapped),
    }
    return {what: value for what, value in left.items() if value}


_searched = True  # for garbage since `_leave_out` was called


def _leave_out() -> None:
    """Leave what is alive out of later searches for garbage, each of which would take half a
    second otherwise: torch, numba and the tests are a million objects.
    """
    global _searched
    if _searched:
        gc.collect()
        gc.freeze()
        _searched = False


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest):
    global _searched
    _leave_out()
    of_driver = request.node.get_closest_marker("gpu") is not None
    counted = [kind for kind in OPENED if not (of_driver and kind in _DRIVERS)]
    before = (children(), descriptors(counted), mapped_segments())
    yield
    deadline = time.monotonic() + PATIENCE_S
    while left := _left(before, counted):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind after {PATIENCE_S:g} s: {left}")
        threading.Event().wait(0.02)
        gc.collect()
        _searched = True


@pytest.fixture
def near_feeders(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a feeder answers, not of its process. See near_feeder.py."""
    monkeypatch.setattr("async_loader.feeder.embedded.Embedded", NearFeeder)


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def start_method(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def _forks_beside_threads_are_meant():
    """Python 3.12 warns of every fork in a process with threads, which is what the fork tests
    are about.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore",
            message=".*use of fork\\(\\) may lead to deadlocks.*",
            category=DeprecationWarning,
        )
        yield
