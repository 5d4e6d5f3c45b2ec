"""The README and the guides say what is so: every Python block in them runs,
each in a process of its own.
"""

from __future__ import annotations

import json
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
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_first_readme_example_runs_on_a_cpu_and_closes_everything():
    """Readers paste it first; the test above shows that it ends by itself."""
    first = _BLOCK.search((ROOT / "README.md").read_text())[1]
    assert "AsyncDataLoader" in first
    assert 'device="cuda"' not in "".join(line.split("#")[0] for line in first.splitlines())
    assert "with AsyncDataLoader" in first


def test_every_link_of_the_readme_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    import benchmarks.readme

    return benchmarks.readme


def test_the_figures_in_the_readme_are_the_recorded_ones(readme):
    assert readme.section(readme.recorded()) in (ROOT / "README.md").read_text()


def test_every_suite_that_was_recorded_has_its_table_in_the_readme(readme):
    text = (ROOT / "README.md").read_text()
    recorded = [name for name in readme.SUITES if (ROOT / "benchmarks" / "results" / f"{name}.json").exists()]
    assert "loader" in recorded
    assert [name for name in recorded if f"`./scripts/bench {name}`" not in text] == []


def test_a_suite_recorded_later_gets_a_table_of_its_own(readme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    targets = [
        {
            "target": ">= 3x cpprb",
            "metric": "us",
            "theirs": ["cpprb"],
            "figure": 3.14159,
            "outcome": "held",
        },
        {"target": "<= 100 us", "metric": "us", "theirs": [], "figure": 123.4, "outcome": "missed"},
        {
            "target": "keeps >= 70%",
            "metric": "kept_percent",
            "theirs": [],
            "figure": None,
            "outcome": "not measured",
        },
    ]
    loader = json.loads((readme.RESULTS / "loader.json").read_text())
    replay = {**loader, "suite": "replay", "rows": [{"title": "draws", "targets": targets}]}
    replay["versions"] = {
        "project": {"torch": "2"},
        "replay-peers": {"cpprb": "11", "torch": "3"},
        "tianshou": {"tianshou": None},
    }
    for record in (loader, replay):
        (tmp_path / f"{record['suite']}.json").write_text(json.dumps(record))
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    section = readme.section(readme.recorded())
    assert section.count("| work | target | measured | |") == 2
    assert "torch 2, cpprb 11, torchrl not measured, stable-baselines3 not measured, tianshou not measured." in section
    assert "| draws | >= 3x cpprb | 3.14x | held |" in section
    assert "| draws | <= 100 us | 123 us | missed |" in section
    assert "| draws | keeps >= 70% | not measured | not measured |" in section
    assert "benchmarks/results/replay.png" in section
    assert section.endswith(readme.END)


def test_the_totals_of_the_soak_are_those_on_record():
    page = (ROOT / "docs/soak.md").read_text()
    rows = {row["row"]: row for row in json.loads((ROOT / "benchmarks/results/soak.json").read_text())["rows"]}
    storm, chaos, hostile = (rows[name]["contenders"][0]["medians"] for name in ("storm", "chaos", "connections"))
    told = [storm[key] for key in ("signals", "batches", "steps")]
    told += [chaos[key] for key in ("rounds", "faults", "rows", "batches", "rows_lost")] + [hostile["inputs"]]
    assert [number for number in told if f"{number:,}" not in page] == []
    assert storm["failed"] == storm["left"] == chaos["failed"] == chaos["processes_left"] == hostile["found"] == 0
    assert f"{hostile['growth_mib']:.2f} MiB" in page
