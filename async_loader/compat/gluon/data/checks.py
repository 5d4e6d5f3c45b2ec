"""What the original asserts, as errors that stay when Python runs with ``-O``. Decides nothing else."""

from __future__ import annotations


def require(condition: object, message: str) -> None:
    """Raise AssertionError, which is what scripts written for the original know, unless ``condition`` is true."""
    if not condition:
        raise AssertionError(message)
