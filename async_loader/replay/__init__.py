"""Replay tables in shared memory: rows, what draws them, and what reads them. Never imports torch.

::

    add, extend ──check (fitting)──▶ write (storage) ──▶ ROWS (shared memory) ◀──read── reader ◀── loader's workers
                                                           │ marks                        ▲
                                         plan (source) ◀── which ids are live ──▶ sample ─┘
"""

from async_loader.replay.buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
