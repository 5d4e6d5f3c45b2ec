"""Queues and connections that carry tensors through shared memory: only a descriptor travels. The loader has no use for them.

What arrives is a tensor in shared memory, on the very pages that the sender has. The sender has to live until it was
received; numpy arrays travel as bytes. The sharing itself is torch's.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.multiprocessing import queue


class ConnectionWrapper(queue.ConnectionWrapper):
    """A connection whose ``send`` shares tensors; everything else is the connection's own.

    Parameters
    ----------
    conn : multiprocessing.connection.Connection
    """


class Queue(queue.Queue):
    """``multiprocessing.Queue`` for tensors.

    Parameters
    ----------
    maxsize : int
        0 for no bound.
    ctx : multiprocessing context, optional
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        super().__init__(maxsize, ctx=ctx or multiprocessing.get_context())  # type: ignore[no-untyped-call]


class SimpleQueue(queue.SimpleQueue):
    """``multiprocessing.SimpleQueue`` for tensors.

    Parameters
    ----------
    ctx : multiprocessing context, optional
    """

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__(ctx=ctx or multiprocessing.get_context())
