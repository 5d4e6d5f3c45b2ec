"""Ten tasks in users' style: mypy --strict accepts the scripts, and they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from zygote import Zygote

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "tests" / "typing").glob("*.py"))
LIMIT_S = 600

WRONG = {
    "a keyword of torch": (
        "DataLoader([1], 2, drop_last=True)",
        'Unexpected keyword argument "drop_last"',
    ),
    "an option that there is not": (
        'AsyncDataLoader({}, 2, on_error="ignore")',
        "has incompatible type \"Literal['ignore']\"",
    ),
    "a word of another sampler": (
        'Prioritized(normalize="bogus")',
        "has incompatible type \"Literal['bogus']\"",
    ),
    "a batch that is a dict": (
        "next(AsyncDataLoader({}, 2)).shape",
        '"dict[str, Any]" has no attribute "shape"',
    ),
    "a batch of a collate function": (
        "next(iter(DataLoader([1], collate_fn=lambda items: len(items)))).shape",
        '"int" has no attribute "shape"',
    ),
    "a limiter by place": ("RateLimiter(4, 1000, 5000)", "Too many positional arguments"),
    "a writer's last observation by place": (
        "def act(writer: Writer) -> None: writer.end_episode(3)",
        "Too many positional arg",
    ),
}
"""What mypy is to refuse.

Without these a check that found nothing would look the same as a check of nothing.
"""


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def test_there_are_ten_tasks():
    assert len(SCRIPTS) == 10


TORCHS_OWN = ("-W", "ignore:Implicitly cleaning up:ResourceWarning")
"""A folder that an optimiser of torch 2.6 leaves until the interpreter ends."""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_mypy_accepts_the_tasks_and_refuses_what_is_wrong(tmp_path):
    """One run for all scripts, which takes half a minute without a cache."""
    wrong = tmp_path / "wrong.py"
    head = (
        "from async_loader import AsyncDataLoader, DataLoader, Prioritized, RateLimiter, Writer\n"
    )
    wrong.write_text(head + "\n".join(code for code, _ in WRONG.values()) + "\n")
    result = checked(*map(str, SCRIPTS), str(wrong))
    assert result.stderr == ""
    found = result.stdout.splitlines()
    assert [line for line in found if "error:" in line and "wrong.py" not in line] == []
    for number, (case, (_, text)) in enumerate(WRONG.items(), 2):
        assert any(f"wrong.py:{number}: error: " in line and text in line for line in found), (
            case,
            result.stdout,
        )


@pytest.fixture(scope="module")
def zygote():
    folders = (str(Path(__file__).parent),)
    modules = ("torch", "async_loader.feeder.server", "loaded_kernels")
    zygote = Zygote(*modules, folders=folders, options=("-W", "error", *TORCHS_OWN))
    yield zygote
    zygote.close()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_task_runs_without_a_warning(script, zygote):
    assert zygote.run(script) == (0, "", "")
