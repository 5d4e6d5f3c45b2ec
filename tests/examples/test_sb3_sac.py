"""The example with Stable-Baselines3, and the code of its guide, in short."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("stable_baselines3")

ROOT = Path(__file__).parents[2]


def test_both_buffers_give_the_same_returns(capsys):
    main = runpy.run_path(str(ROOT / "examples" / "sb3_sac.py"))["main"]
    main(steps=80, episodes=1)
    ours = capsys.readouterr().out
    main(steps=80, episodes=1, theirs=True)
    theirs = capsys.readouterr().out
    assert "80 transitions" in ours
    assert ours.splitlines()[0] == theirs.splitlines()[0]


def test_the_code_of_the_guide_runs():
    text = (ROOT / "docs" / "guides" / "sb3.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for code in blocks:
        exec(compile(code, "sb3.md", "exec"), {})
