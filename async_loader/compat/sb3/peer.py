"""Stable-Baselines3, whose classes the buffers here derive from: its algorithms ask for them."""

from __future__ import annotations

import importlib
from typing import Any

from async_loader.errors import MissingExtra

try:
    buffers: Any = importlib.import_module("stable_baselines3.common.buffers")
    samples: Any = importlib.import_module("stable_baselines3.common.type_aliases")
except ImportError as error:
    raise MissingExtra(
        'stable-baselines3 is not installed: pip install "async_loader[sb3]"'
    ) from error
