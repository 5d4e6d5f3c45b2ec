"""Samplers choose among a table's items: for batches, and to make room.

All are behind one Protocol (sampler.py).
"""

from async_loader.public_names import set_public_names
from async_loader.replay.samplers.balanced import Balanced
from async_loader.replay.samplers.ordered import Fifo, Lifo, MaxHeap, MinHeap
from async_loader.replay.samplers.prioritized import Prioritized, RankPrioritized
from async_loader.replay.samplers.priority_rules import Linear
from async_loader.replay.samplers.recency import Recency
from async_loader.replay.samplers.sampler import Draw, Items, Reading, Sampler, one_scale, shortcut
from async_loader.replay.samplers.uniform import Uniform

__all__ = [
    "Balanced",
    "Draw",
    "Fifo",
    "Items",
    "Lifo",
    "Linear",
    "MaxHeap",
    "MinHeap",
    "Prioritized",
    "RankPrioritized",
    "Reading",
    "Recency",
    "Sampler",
    "Uniform",
    "one_scale",
    "shortcut",
]
set_public_names(globals())
