"""Ctrl-C at any moment: the call ends, batches come in order and none twice, nothing wedges,
nothing is left. See storm_play.py and storm_rig.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import storm_play
from fault_rig import SLACK_S, Batches, wide
from storm_rig import count_points, some_points, strike

from async_loader import AsyncDataLoader, DataLoader


def loader_of(**how):
    return AsyncDataLoader(
        Batches(make=wide), 4, multiprocessing_context="fork", timeout_s=SLACK_S, **how
    )


def epoch_of(**how):
    items = [{"i": i} for i in range(4000)]
    return DataLoader(items, 4, multiprocessing_context="fork", timeout_s=SLACK_S, **how)


def passes_of_arrays(**how):
    return DataLoader(
        {"i": np.arange(4000)}, 4, multiprocessing_context="fork", timeout_s=SLACK_S, **how
    )


@pytest.mark.parametrize("make", [loader_of, epoch_of, passes_of_arrays])
@pytest.mark.parametrize(("workers", "kind"), [(0, "process"), (2, "thread"), (2, "process")])
def test_whichever_point_of_next_is_struck_the_loader_goes_on(make, workers, kind):
    taken, interrupted = [], 0
    with make(num_workers=workers, worker_type=kind) as loader:
        batches = iter(loader)

        def one():
            taken.append(next(batches))

        one()
        total = max(count_points(one) for _ in range(3))
        for at in some_points(total, 80):
            interrupted += strike(one, at).raised is not None
        one()
    storm_play.check([int(n) for batch in taken for n in batch["i"]], interrupted, 4)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_storm_of_real_signals_wedges_nothing_and_leaves_nothing():
    script = Path(storm_play.__file__)
    command = [sys.executable, "-X", "faulthandler", str(script), "7", "200"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["signals"] == 200
    assert not seen["processes left"] + seen["descriptors left"] + seen["threads left"], seen
