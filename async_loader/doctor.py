"""Facts about this machine that matter to the loader, as rows for `async-loader doctor`."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import platform
import resource
from dataclasses import dataclass
from importlib import metadata

from async_loader.shm.limits import available_bytes, human


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact; `remedy` is empty if nothing needs to be done."""

    what: str
    fact: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Return all findings, in the order in which a user would ask for them."""
    return [
        Finding("python", platform.python_version()),
        Finding("platform", f"{platform.system()} {platform.machine()}"),
        *(Finding(name, _version(name)) for name in ("async_loader", "torch", "numpy")),
        _accelerator(),
        Finding(
            "cores",
            str(
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            ),
        ),
        _memory(),
        _descriptors(),
        _kernels(),
        Finding("start method", multiprocessing.get_start_method()),
        _mechanism(
            "memfd", hasattr(os, "memfd_create"), "batches lie in POSIX shared memory instead"
        ),
        _mechanism(
            "pidfd",
            hasattr(os, "pidfd_open"),
            "deaths are seen through multiprocessing's sentinels instead",
        ),
        _mechanism("eventfd", hasattr(os, "eventfd"), "the end flag is a pipe instead"),
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _accelerator() -> Finding:
    try:
        import torch
    except ImportError:
        remedy = "pip install torch, except on a host of actors alone"
        return Finding("accelerator", "torch is not installed", remedy)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return Finding("accelerator", str(device) if device is not None else 'none: use device="cpu"')


def _memory() -> Finding:
    free = available_bytes()
    remedy = (
        "large buffers will be refused: free memory, or raise the container's limit"
        if free < 1 << 30
        else ""
    )
    return Finding("memory to be had", human(free), remedy)


def _descriptors() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = "many workers will be refused: ulimit -n 4096" if limit < 256 else ""
    return Finding("file descriptors", str(limit), remedy)


def _kernels() -> Finding:
    if importlib.util.find_spec("numba") is None:
        remedy = (
            "pip install numba, except on a host of actors alone: tables need it, clients do not"
        )
        return Finding("compiled kernels", "numba is not installed", remedy)
    from async_loader.replay.base.compiled import kernel_folder
    from async_loader.replay.base.kernel_cache import REMEDY

    folder = kernel_folder()
    return Finding(
        "compiled kernels", folder or "no folder for them can be written", "" if folder else REMEDY
    )


def _mechanism(name: str, there: bool, instead: str) -> Finding:
    return Finding(name, "yes" if there else "no", "" if there else instead)
