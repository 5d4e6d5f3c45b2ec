"""Ten tasks in users' style: mypy --strict accepts the scripts, and they run. The README's blocks
are accepted by mypy and pyright.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
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
    "an array of a tuple": (
        "next(iter(DataLoader((np.ones(1), np.ones(1)))))[0].nothing",
        '"Tensor" has no attribute "nothing"',
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


def readme_blocks(folder: Path) -> list[str]:
    """The README's Python blocks, each as a file in the folder."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    paths = [folder / f"readme_{number}.py" for number in range(len(blocks))]
    for path, block in zip(paths, blocks, strict=True):
        path.write_text(block)
    return [str(path) for path in paths]


def test_there_are_ten_tasks():
    assert len(SCRIPTS) == 10


def pyright(folder: Path, *paths: str) -> list[str]:
    """What pyright finds in its strict mode, without a look for newer versions of itself."""
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", *paths],
        cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] == len(paths)
    return [f"{one['file']}: {one['message']}" for one in report["generalDiagnostics"]]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None,
    reason='pyright is not installed: pip install "pyright[nodejs]"',
)
def test_pyright_accepts_the_readme_and_types_the_arrays_of_a_dataset(tmp_path):
    wrong = tmp_path / "wrong.py"
    code, _ = WRONG["a keyword of torch"]
    wrong.write_text(f"from async_loader import DataLoader\n{code}\n")
    columns = ROOT / "tests" / "typing" / "offline_columns.py"
    found = pyright(tmp_path, *readme_blocks(tmp_path), str(columns), str(wrong))
    assert found == [f'{wrong}: No parameter named "drop_last"']


TORCHS_OWN = ("-W", "ignore:Implicitly cleaning up:ResourceWarning")
"""A folder that an optimiser of torch 2.6 leaves until the interpreter ends."""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
def test_mypy_accepts_the_tasks_and_refuses_what_is_wrong(tmp_path):
    """One run for all scripts, which takes half a minute without a cache."""
    wrong = tmp_path / "wrong.py"
    names = "AsyncDataLoader, DataLoader, Prioritized, RateLimiter, Writer"
    head = f"import numpy as np\nfrom async_loader import {names}\n"
    wrong.write_text(head + "\n".join(code for code, _ in WRONG.values()) + "\n")
    result = checked(*map(str, SCRIPTS), *readme_blocks(tmp_path), str(wrong))
    assert result.stderr == ""
    found = result.stdout.splitlines()
    assert [line for line in found if "error:" in line and "wrong.py" not in line] == []
    for number, (case, (_, text)) in enumerate(WRONG.items(), 3):
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
