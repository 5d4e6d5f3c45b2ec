"""How tests wait for what they cannot be told of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LIMIT_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Look again and again, until it is so."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"not so within {LIMIT_S:g} s"
        threading.Event().wait(0.01)
