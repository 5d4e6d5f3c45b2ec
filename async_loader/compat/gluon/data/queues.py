"""Queues and connections that send tensors through shared memory: only a descriptor is sent.

Not used by the loader.

The receiver gets a tensor in shared memory, on the sender's pages. The sender must live until it is
received; numpy arrays are sent as bytes. torch does the sharing itself.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.multiprocessing import queue


class ConnectionWrapper(queue.ConnectionWrapper):
    """A connection whose ``send`` shares tensors; other methods are unchanged.

    Parameters
    ----------
    conn : multiprocessing.connection.Connection
    """


class Queue(queue.Queue):
    """``multiprocessing.Queue`` for tensors.

    Parameters
    ----------
    maxsize : int
        0 for no limit.
    ctx : multiprocessing context, optional
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        context = ctx or multiprocessing.get_context()
        super().__init__(maxsize, ctx=context)  # type: ignore[no-untyped-call]


class SimpleQueue(queue.SimpleQueue):
    """``multiprocessing.SimpleQueue`` for tensors.

    Parameters
    ----------
    ctx : multiprocessing context, optional
    """

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__(ctx=ctx or multiprocessing.get_context())
