"""The supported versions, and the script that tests them."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
_REQUIREMENT = re.compile(r"([A-Za-z0-9_-]+)(?:\[\w+\])?>=([0-9.]+)")


def lowest() -> dict[str, str]:
    """Return the lower bound of every requirement in setup.cfg, for any purpose."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    lines = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    names = [
        line
        for text in lines
        for line in text.split("\n")
        if line and not line.startswith(("%", "#"))
    ]
    found = [_REQUIREMENT.fullmatch(name) for name in names]
    assert all(found), f"a requirement without a lower bound: {names}"
    return {one[1]: one[2] for one in found if one}


def test_the_lowest_constraints_are_the_lower_bounds_of_setup_cfg():
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    assert dict(line.split("==") for line in lines) == lowest()
    assert lines == sorted(lines)


def test_the_usual_constraints_are_within_the_bounds():
    def parts(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")))

    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, version = line.split("==")
        assert parts(version) >= parts(lowest()[name])


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "test", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_interpreters_and_lowest_versions_have_their_own_environments(tmp_path):
    fake = tmp_path / "versions" / "3.12.1" / "bin" / "python"
    fake.parent.mkdir(parents=True)
    fake.write_text("#!/bin/sh\ncase $2 in *version_info*) exit 0;; *) echo 3.12.1;; esac\n")
    fake.chmod(0o755)
    code = (
        f"source {ROOT}/scripts/_venv.sh; for p in '' 3.12.1 {fake}; do for l in 0 1; do"
        ' (choose_venv "$p" $l; echo "$VENV $CONSTRAINTS $VENV_PYTHON"); done; done'
    )
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": "/usr/bin:/bin", "PYENV_ROOT": str(tmp_path)},
    )  # fmt: skip
    own = [
        f".venv-3.12.1 constraints.txt {fake}",
        f".venv-3.12.1-lowest constraints-lowest.txt {fake}",
    ]
    usual = [".venv constraints.txt", ".venv-lowest constraints-lowest.txt"]
    assert [line.strip() for line in done.stdout.splitlines()] == usual + own + own
