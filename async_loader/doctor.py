"""Facts about this machine that matter to the loader, as rows for `async-loader doctor`."""

from __future__ import annotations

import importlib.util
import platform
from dataclasses import dataclass
from importlib import metadata

from async_loader.shm.limits import available_bytes, human

_ABSENT = "not installed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact; `remedy` is empty if nothing needs to be done."""

    what: str
    fact: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Return all findings, in the order in which a user would ask for them."""
    return [
        Finding("python", f"{platform.python_version()} on {platform.platform()}"),
        *(Finding(name, _version(name)) for name in ("async_loader", "torch", "numpy")),
        _accelerator(),
        _memory(),
        _kernels(),
    ]


def verdict(findings: list[Finding]) -> str:
    """Return what the findings come to, in one line."""
    todo = [finding.what for finding in findings if finding.remedy]
    if not todo:
        return "All is well."
    count = "1 thing" if len(todo) == 1 else f"{len(todo)} things"
    return f"{count} to look at: {', '.join(todo)}."


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return _ABSENT


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
    return Finding("free memory", human(free), remedy)


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
