"""Replay tables in shared memory: steps, what draws them, and what reads them. Never imports torch.

::

    add, extend, writers ──checked──▶ Inserter ─┐                ┌─ TableSampler ──ids──▶ ReplayReader ◀── loader's workers
                                                ▼    one lock    ▼                       │
                        limiter ◀──── Owner: Table (ids, links, items) ──▶ samplers      │ no lock: reads, then looks
                                                │                                        │ whether it may believe it
                                                └──kernels──▶ ROWS (shared memory) ◀─────┘
"""

from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.replay.multiprocess.writer_handle import WriterHandle
from async_loader.replay.stats import TableStats
from async_loader.replay.table.waiters import Waiting

__all__ = ["ReplayBuffer", "SaveReport", "TableStats", "Waiting", "WriterHandle"]
