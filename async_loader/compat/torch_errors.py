"""The exceptions of torch's loaders, for those that raise them in place of ours."""

from __future__ import annotations

from async_loader.errors import Timeout, WorkerDied


def as_torchs(error: Timeout | WorkerDied, timeout_s: float) -> RuntimeError:
    """Return torch's exception for a dead worker or a batch that did not arrive in time."""
    if isinstance(error, WorkerDied):
        return RuntimeError(f"DataLoader worker (pid(s) {error.pid}) exited unexpectedly: {error}")
    return RuntimeError(f"DataLoader timed out after {timeout_s:g} seconds: {error}")
