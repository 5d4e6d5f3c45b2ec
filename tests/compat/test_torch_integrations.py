"""Our loaders in accelerate, in the Trainer of transformers and in Lightning, with the real
packages: two processes, two shards.

The packages are in the extra ``integrations``; without them these tests are skipped.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import async_loader
from async_loader import AsyncDataLoader
from async_loader.compat.torch import DataLoader, StatefulDataLoader

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 240


def _needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    reason = f"{', '.join(missing)} not installed: pip install -e '.[integrations]'"
    return pytest.mark.skipif(bool(missing), reason=reason)


WHERE = [
    pytest.param("accelerate", DataLoader, marks=_needs("accelerate")),
    pytest.param("accelerate", StatefulDataLoader, marks=_needs("accelerate", "torchdata")),
    pytest.param("trainer", DataLoader, marks=_needs("accelerate", "transformers")),
    pytest.param("lightning", DataLoader, marks=_needs("lightning")),
    pytest.param("lightning", StatefulDataLoader, marks=_needs("lightning")),
]


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(("where", "kind"), WHERE)
def test_two_processes_get_disjoint_shards_that_cover_the_set(where, kind, tmp_path):
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    run += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    sort = "stateful" if kind is StatefulDataLoader else "plain"
    program = [str(PROGRAMS / f"sharded_{where}.py"), str(tmp_path), sort]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        [*run, *program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for one in (first, second):
        assert one["kind"] == f"{kind.__module__}.{kind.__name__}"
    for ours, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert not set(ours) & set(theirs)
        assert sorted(ours + theirs) == list(range(40))


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return i


@pytest.fixture
def installed(monkeypatch):
    """accelerate with our loaders; restored after the test."""
    theirs = pytest.importorskip("accelerate.data_loader", reason="accelerate is not installed")
    accelerate = importlib.import_module("async_loader.compat.accelerate")
    monkeypatch.setattr(theirs, "DataLoader", theirs.DataLoader)
    adapter = theirs.DataLoaderAdapter
    monkeypatch.setattr(adapter, "__init__", adapter.__init__)
    monkeypatch.setattr(adapter, accelerate._INSTALLED, False, raising=False)
    accelerate.install()
    accelerate.install()
    return theirs


@pytest.mark.parametrize(
    "make",
    [
        lambda: AsyncDataLoader({"x": np.zeros(100)}, 4),
        lambda: AsyncDataLoader({"x": np.zeros(100)}, 4, num_workers=2),
        lambda: async_loader.DataLoader(list(range(100)), 4, num_workers=2),
        lambda: DataLoader(range(100), 4, num_workers=2, persistent_workers=True),
        lambda: StatefulDataLoader(range(100), 4, num_workers=2),
    ],
    ids=["async", "async-workers", "data", "torch", "stateful"],
)
def test_a_loader_goes_on_after_a_trainer_has_reset_it(make):
    """Lightning sets ``_iterator`` of any loader that has one to None when a fit ends."""
    loader = make()
    with contextlib.closing(loader) if hasattr(loader, "close") else contextlib.nullcontext():
        for _ in range(2):
            assert len([batch for _, batch in zip(range(3), loader, strict=False)]) == 3
            for name in ("_iterator", "worker_init_fn"):
                if hasattr(loader, name):
                    setattr(loader, name, None)


@_needs("torchdata")
@pytest.mark.parametrize("given", [1, 5])
def test_a_prepared_loader_with_a_state_goes_on_where_it_was(installed, given):
    def prepared():
        loader = StatefulDataLoader(Items(), batch_size=2)
        return installed.prepare_data_loader(loader, use_stateful_dataloader=True)

    one, two = prepared(), prepared()
    assert type(one.base_dataloader) is StatefulDataLoader
    for number, _ in enumerate(one, 1):
        if number == given:
            state = one.state_dict()
            break
    two.load_state_dict(state)
    whole = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    rest = whole[given:] or whole  # accelerate says of the last batch that the next epoch begins
    assert [batch.tolist() for batch in two] == rest
