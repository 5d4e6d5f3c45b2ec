"""The assertions of the original, as errors that also work under ``python -O``."""

from __future__ import annotations


def require(condition: object, message: str) -> None:
    """Raise AssertionError, which scripts written for the original expect,
    unless ``condition`` is true.
    """
    if not condition:
        raise AssertionError(message)
