"""Checkpoints of a table: everything that it knows, in a folder of files. Decides nothing about the
table.

::

    Owner, Table ──snapshot.py──▶ blocks ──writing.py──▶ tmp-.../data.bin, manifest.json ──rename──▶ save-00000007/
    new Table ◀──loading.py── blocks ◀──settings_errors.py── folder.py: which saves there are, and which rests on which

Nothing is pickled: manifests are JSON, everything else are arrays of numbers. Where the file system
is changed is disk.py.
"""

from async_loader.replay.checkpoint.loading import load, load_into
from async_loader.replay.checkpoint.writing import Saver, SaveReport

__all__ = ["SaveReport", "Saver", "load", "load_into"]
