"""Replay tables in shared memory: steps are added, drawn and read. Never imports torch.

::

    add, extend,                                                               a loader's
    writers ──checked──▶ Inserter ─┐               ┌─ TableSampler ──ids──▶ ReplayReader
                                   ▼   one lock    ▼                            │ no lock: reads,
              limiter ◀── TableState: Table (ids, links, items) ──▶ samplers    │ then checks the id
                                   │                                            │
                                   └──kernels──▶ rows (shared memory) ◀─────────┘
"""

from async_loader.public_names import set_public_names
from async_loader.replay.buffer import ReplayBuffer
from async_loader.replay.checkpoint.writing import SaveReport
from async_loader.replay.stats import TableStats
from async_loader.replay.table.waiters import Waiting

__all__ = ["ReplayBuffer", "SaveReport", "TableStats", "Waiting"]
set_public_names(globals())
