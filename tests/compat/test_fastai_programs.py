"""Programs written for fastai run when their import line is changed."""

from __future__ import annotations

import pytest
from compat_rig import program

THEIRS, OURS = "fastai.data.load", "async_loader.compat.fastai"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images(num_workers):
    losses, seen = program("fastai_images", THEIRS, OURS).main(num_workers)
    assert losses[-1] < losses[0]
    assert seen == [61] * 3  # of 64, three cannot be read
    if not num_workers:  # with workers the batches differ where items are skipped
        # of fastai 2.8.12 with torch 2.13
        assert losses == pytest.approx([1.5547, 1.5827, 1.4190], abs=1e-2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_texts(num_workers):
    losses, shapes = program("fastai_texts", THEIRS, OURS).main(num_workers)
    assert len(losses) == 30
    assert losses[-1] < losses[0]
    assert shapes == [(8, 9), (8, 7), (8, 5), (6, 4)]
