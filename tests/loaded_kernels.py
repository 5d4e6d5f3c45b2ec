"""Importing this loads the kernels of a table, for processes that are forked from this one."""

from __future__ import annotations

import gc

from async_loader import ReplayBuffer

with ReplayBuffer(10) as buffer:
    buffer.add(x=1.0)
    buffer.sample(1)
gc.freeze()  # a collection in a fork would copy every page of what was imported
