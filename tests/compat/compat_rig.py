"""Programs that were written for another loader, run with nothing but their import line changed."""

from __future__ import annotations

import types
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def program(name: str, theirs: str, ours: str) -> types.ModuleType:
    """The program as a module, imported from ``ours`` where it says ``theirs``."""
    text = (PROGRAMS / f"{name}.py").read_text()
    lines = [line for line in text.splitlines() if line.startswith(f"from {theirs} import ")]
    assert len(lines) == 1, "one line says where the loader comes from"
    assert "async_loader" not in text
    changed = text.replace(
        lines[0], lines[0].replace(f"from {theirs} import", f"from {ours} import")
    )
    module = types.ModuleType(f"program_{name}")
    exec(compile(changed, f"{name}.py", "exec"), module.__dict__)
    return module
