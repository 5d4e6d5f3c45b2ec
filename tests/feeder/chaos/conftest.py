"""A process that forks those of a round: made once, since importing and compiling takes longer
than a round.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = (str(HERE), str(HERE.parents[1]))
sys.path += [one for one in FOLDERS if one not in sys.path]


@pytest.fixture(scope="session", autouse=True)
def nursery():
    """Before any test looks which processes there are."""
    from zygote import Zygote

    nursery = Zygote("roles", folders=FOLDERS)
    yield nursery
    nursery.close()
