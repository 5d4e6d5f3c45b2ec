"""What a table's newest steps hold, in plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader.histograms import histogram
from async_loader.replay.table.newest_episodes import NewestEpisodes

_IDS = 5


def episodes_plain(found: NewestEpisodes) -> dict[str, Any]:
    """Return the counts, a histogram of lengths and one of returns, and the ids of some steps."""
    steps = len(found.ids)
    picked = np.linspace(0, steps - 1, min(_IDS, steps)).astype(np.int64)
    return {
        "steps": steps,
        "episodes": len(found.lengths),
        "parts": found.parts,
        "ids": found.ids[picked].tolist(),
        "length": histogram(found.lengths),
        "return": None if found.returns is None else histogram(found.returns),
    }
