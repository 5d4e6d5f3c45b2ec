"""Batches that the consumer holds never change, and their slots come back when the last tensor
on them dies (M1 to M5).
"""

from __future__ import annotations

import gc

import pytest
import torch
from fault_rig import SLACK_S, Batches, first, wide

from async_loader import AsyncDataLoader


@pytest.fixture(params=[0, 2])
def workers(request):
    return request.param


def load(workers, source=None, **settings):
    settings = {"timeout_s": SLACK_S, "multiprocessing_context": "fork", **settings}
    return AsyncDataLoader(source or Batches(make=wide), 4, num_workers=workers, **settings)


def settled(loader, count):
    """Go on until the ring is in use, then let go of everything."""
    for _ in range(count):
        first(next(loader))
    gc.collect()
    ring = loader._engine.core.slots.ring
    assert ring.lent == 0
    return ring


def test_batches_that_are_held_never_change_while_the_loader_runs_on(workers):
    with load(workers) as loader:
        held = [
            (batch, {k: v.clone() for k, v in batch.items()})
            for batch in (next(loader) for _ in range(25))
        ]
        for _ in range(50):
            first(next(loader))
        for batch, copy in held:
            assert all(torch.equal(batch[key], copy[key]) for key in copy)
        assert loader.stats().slots_lent == 3
        assert loader.stats().copied_out >= 20


def keep_field(batch):
    return batch["x"]


def keep_corner(batch):
    return batch["x"][1:3, 5:7].T


def keep_storage(batch):
    return batch["x"].untyped_storage()


def keep_array(batch):
    return batch["x"].numpy()[2]


def keep_detached(batch):
    return batch["x"].view(-1).detach()[7]


def keep_graph(batch):
    weight = torch.ones(8192, requires_grad=True)
    return (batch["x"] * weight).sum()  # x is saved for backward, and nothing else holds it


@pytest.mark.parametrize(
    "keep", [keep_field, keep_corner, keep_storage, keep_array, keep_detached, keep_graph]
)
def test_a_slot_comes_back_when_the_last_thing_made_of_it_dies_and_not_before(workers, keep):
    with load(workers) as loader:
        ring = settled(loader, 12)
        kept = keep(next(loader))
        gc.collect()
        assert ring.lent == 1
        for _ in range(3 * ring.count):
            first(next(loader))
        gc.collect()
        assert ring.lent == 1
        del kept
        gc.collect()
        assert ring.lent == 0


def test_backward_long_after_the_batch_was_dropped_uses_the_right_numbers(workers):
    with load(workers) as loader:
        settled(loader, 12)
        weight = torch.ones(8192, requires_grad=True)
        batch = next(loader)
        expected = batch["x"].sum(0).clone()
        loss = (batch["x"] * weight).sum()
        del batch
        for _ in range(30):
            first(next(loader))
        loss.backward()
        assert torch.equal(weight.grad, expected)
