"""Checkpoints of a table: all of its contents, in a folder of files.

::

    TableState ──writing.py──▶ tmp-.../data.bin, manifest.json
                                                         └──rename──▶ save-00000007/
    TableState ◀──loading.py── blocks ◀──manifest.py── save-00000007/

Nothing is pickled: manifests are JSON, everything else is arrays of numbers.
"""

from async_loader.replay.checkpoint.loading import load, load_into
from async_loader.replay.checkpoint.writing import Saver, SaveReport

__all__ = ["SaveReport", "Saver", "load", "load_into"]
