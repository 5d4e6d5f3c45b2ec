"""LeRobot datasets, version 3: parquet and video on a disk as a source for a loader.

The frames of videos are decoded by the workers. What one of them has decoded lies in a cache in
shared memory that all of them read, of a size that is given.

::

    with AsyncDataLoader(LeRobotSource("datasets/pusht"), 64, num_workers=4) as loader:
        batch = next(loader)  # "observation.image": uint8 [64, height, width, 3], "action", ...
"""

from __future__ import annotations

from async_loader.offline.lerobot.source import LeRobotSource
from async_loader.public_names import set_public_names

__all__ = ["LeRobotSource"]
set_public_names(globals())
