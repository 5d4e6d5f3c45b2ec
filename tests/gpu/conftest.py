"""Tests that need a real accelerator. They are skipped, with the reason, on other machines."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    """The accelerator of this machine, with its index."""
    if not torch.accelerator.is_available():
        pytest.skip(
            "needs an accelerator: torch.accelerator.is_available() is False on this machine"
        )
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, 0)


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The same, for what only CUDA has: page-locked slots, and kernels that take as long as one
    likes.
    """
    if device.type != "cuda":
        pytest.skip(
            f"needs CUDA for cudaHostRegister and torch.cuda._sleep: this machine has {device.type}"
        )
    return device
