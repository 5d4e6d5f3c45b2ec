"""compat.torch over arrays: a pass is a gather for each batch, and what torch's pass is for all
else.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils import data as theirs
from torch.utils.data import TensorDataset

from async_loader.compat.torch import DataLoader
from async_loader.compat.torch.order import GatherPass

ROWS = TensorDataset(torch.arange(30).reshape(10, 3), torch.arange(10))


def plain(batches):
    return [[field.tolist() for field in batch] for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_and_generators_are_torchs_after_each_pass(shuffle, generator, workers):
    found = []
    for kind, count in ((DataLoader, workers), (theirs.DataLoader, 0)):
        torch.manual_seed(3)
        own = torch.Generator().manual_seed(4) if generator else None
        loader = kind(ROWS, 4, shuffle=shuffle, generator=own, num_workers=count)
        states = []
        for _ in range(3):
            states.append((plain(loader), torch.get_rng_state().tolist()))
            states.append(own.get_state().tolist() if generator else None)
        found.append(states)
    assert found[0] == found[1]


def test_a_pass_is_that_of_torch_but_for_its_batches():
    loader = DataLoader(ROWS, 4)
    epoch = iter(loader)
    assert isinstance(epoch, GatherPass)
    assert len(epoch) == 3
    assert epoch._workers == []
    assert iter(epoch) is epoch
    assert isinstance(epoch.base_seed, int)
    assert len(next(epoch)[0]) == 4
    other = plain(iter(loader))  # passes do not touch each other
    assert len(other) == 3
    assert plain(epoch) == other[1:]
    with pytest.raises(StopIteration):
        next(epoch)


def test_a_batch_that_fails_is_passed_over():
    epoch = iter(DataLoader(ROWS, 4))
    gather = epoch._gather

    def fail(index):
        raise MemoryError

    epoch._gather = fail
    with pytest.raises(MemoryError):
        next(epoch)
    epoch._gather = gather
    assert plain(epoch) == plain(DataLoader(ROWS, 4))[1:]
