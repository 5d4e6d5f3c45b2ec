"""How much memory this process may still take: of the machine, and of its cgroup. Reads, never
allocates.
"""

from __future__ import annotations

import os
from pathlib import Path

_RESERVE = 64 << 20  # for other allocations of the process in the meantime


def human(nbytes: int) -> str:
    """Format ``1288490189`` as ``1.2 GiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def available_bytes() -> int:
    """Bytes that can be allocated without swapping or being killed for it, less a reserve; an upper
    bound.
    """
    bounds = [b for b in (_machine(), _cgroup()) if b is not None]
    return max(0, min(bounds) - _RESERVE) if bounds else 1 << 62


def _machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _cgroup() -> int | None:
    """The tightest limit on the way from this process's cgroup (v2) to the root, less what is used
    there.
    """
    try:
        entries = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    path = next((e[3:] for e in entries if e.startswith("0::")), None)
    if path is None:
        return _cgroup_v1(entries)
    base = Path("/sys/fs/cgroup")
    here = base / path.lstrip("/")
    folders = [folder for folder in (here, *here.parents) if base in (folder, *folder.parents)]
    bounds = [_headroom(folder, "memory.max", "memory.current") for folder in folders]
    known = [b for b in bounds if b is not None]
    return min(known) if known else None


def _cgroup_v1(entries: list[str]) -> int | None:
    path = next(
        (e.split(":", 2)[2] for e in entries if "memory" in e.split(":", 2)[1].split(",")), None
    )
    if path is None:
        return None
    base = Path("/sys/fs/cgroup/memory")
    for folder in (base / path.lstrip("/"), base):
        bound = _headroom(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")
        if bound is not None:
            return bound
    return None


def _headroom(folder: Path, limit: str, used: str) -> int | None:
    try:
        text = (folder / limit).read_text().strip()
        if text == "max":
            return None
        # The page cache counts as used and is given back under pressure: do not count it against
        # the caller.
        return int(text) - int((folder / used).read_text()) + _inactive_file(folder)
    except (OSError, ValueError):
        return None


def _inactive_file(folder: Path) -> int:
    try:
        stat = (folder / "memory.stat").read_text().split()
    except OSError:
        return 0
    return int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
