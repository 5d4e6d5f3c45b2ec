"""The supported versions."""

from __future__ import annotations

import configparser
import re
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
