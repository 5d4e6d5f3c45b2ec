"""Groups of rollouts of language models: ragged, bounded in age, trained once.

::

    prompts ─reserve▶ RESERVED ─commit▶ READY ─draw▶ DELIVERED ─settle▶ TRAINED
       ▲                 │                │              │
       └── given back ───┴── deadline ────┘◀── returned ─┘        every other way out: ENDED

`GroupTable` and `Steps` decide, without a lock, a thread or a clock. `Requests` is their front:
calls by name, answered now or when they can be. `LocalPort` drives it in a process, the feeder's
handler in a server. What users hold (`groups`, `members`, the source) asks through a port, so that
it is the same in both.

Values do not lie in the ring of compressed fields: it overwrites in order, and a group that waits
for a slow member must stay. Nor does it need their guard: all reading is in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_loader.public_names import set_public_names

__all__ = ["Ragged", "RolloutStats", "Rollouts", "jagged", "micro_batches", "padded"]

if TYPE_CHECKING:
    from async_loader.rollouts.batches import jagged, micro_batches, padded
    from async_loader.rollouts.rollouts import Rollouts
    from async_loader.rollouts.schema import Ragged
    from async_loader.rollouts.stats import RolloutStats

set_public_names(
    globals(),
    {
        "Ragged": "async_loader.rollouts.schema",
        "RolloutStats": "async_loader.rollouts.stats",
        "Rollouts": "async_loader.rollouts.rollouts",
        **dict.fromkeys(("jagged", "micro_batches", "padded"), "async_loader.rollouts.batches"),
    },
)
