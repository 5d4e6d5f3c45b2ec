"""Memory of messages that ZeroMQ sends as it lies: it counts who still needs it, so nobody has to be told. Knows no message."""

from __future__ import annotations

from typing import Any

import zmq


def blank(nbytes: int) -> Any:
    """A frame of zeros, to be written through ``memoryview(frame)`` until they are sent."""
    return zmq.Frame(bytes(nbytes), copy=True)


def copied(data: Any) -> Any:
    """A frame with a copy of any buffer."""
    return zmq.Frame(data, copy=True)
