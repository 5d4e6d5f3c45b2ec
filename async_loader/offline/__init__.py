"""Tables from data that exists already: episodes, Minari, D4RL files, npz files; and back."""

from __future__ import annotations

from async_loader.offline.bad_data import BadData
from async_loader.offline.fill import from_episodes
from async_loader.offline.hdf5 import from_hdf5, from_minari, to_minari
from async_loader.offline.lerobot import LeRobotSource
from async_loader.offline.npz import from_npz, to_npz
from async_loader.public_names import set_public_names

__all__ = [
    "BadData",
    "LeRobotSource",
    "from_episodes",
    "from_hdf5",
    "from_minari",
    "from_npz",
    "to_minari",
    "to_npz",
]
set_public_names(globals())
