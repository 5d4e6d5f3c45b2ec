"""How much memory this process may still take: of the machine, and of its cgroup. Reads, never
allocates.
"""

from __future__ import annotations

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
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _cgroup() -> int | None:
    """The tightest limit on the way from this process's cgroup (v2) to the root, less what is used
    there.
    """
    entries = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((e[3:] for e in entries if e.startswith("0::")), "")
    base = Path("/sys/fs/cgroup")
    here = base / path.lstrip("/")
    folders = [folder for folder in (here, *here.parents) if base in (folder, *folder.parents)]
    bounds = [bound for folder in folders if (bound := _headroom(folder)) is not None]
    return min(bounds, default=None)


def _headroom(folder: Path) -> int | None:
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return None
        stat = (folder / "memory.stat").read_text().split()
        # The page cache counts as used and is given back under pressure: do not count it against
        # the caller.
        cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
        return int(limit) - int((folder / "memory.current").read_text()) + cached
    except (OSError, ValueError):
        return None
