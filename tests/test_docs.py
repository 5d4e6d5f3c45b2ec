"""The README and the guides say what is so: every Python block in them runs, each in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text())):
            yield pytest.param(match[1], id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", list(blocks()))
def test_an_example_runs_as_it_stands(code: str, tmp_path: Path):
    if 'device="cuda"' in code:
        code = _on_the_cpu(code)
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


def _on_the_cpu(code: str) -> str:
    """The opening example: endless by nature and meant for a device. Give its buffer a step, and leave after a batch."""
    code = code.replace('device="cuda"', 'device="cpu"')
    code = code.replace("loader = ", "buffer.add(obs=0.0, reward=1.0)\nloader = ")
    return code.replace("for batch in loader: ...", "for batch in loader: break")


def test_every_link_of_the_readme_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_the_figures_in_the_readme_are_the_recorded_ones():
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.readme import recorded, section
    finally:
        sys.path.remove(str(ROOT))
    assert section(recorded()) in (ROOT / "README.md").read_text()
