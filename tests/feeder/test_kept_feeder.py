"""A feeder whose tables are kept is killed at random moments under load of eight writers: what it
acknowledged is there once, in order, with its bytes, and waiting clients go on.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kept_rig import rounds

ROUNDS = int(os.environ.get("ASYNC_LOADER_SOAK_ROUNDS", "0"))
REPORT = os.environ.get("ASYNC_LOADER_SOAK_REPORT")
GOES_ON_S = 2.0


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(
            ROUNDS or 1000, marks=[pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(7200)]
        ),
    ],
)
def test_what_was_acknowledged_outlives_kills_of_the_feeder(count, tmp_path):
    pauses = []
    for _, pause in rounds(tmp_path, tmp_path / "kept", count):
        pauses.append(pause)
        if REPORT and count > 2:
            Path(REPORT).write_text(json.dumps(pauses))
    assert sorted(pauses)[len(pauses) // 2] < GOES_ON_S
