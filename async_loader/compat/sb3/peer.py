"""Stable-Baselines3, whose classes the buffers here derive from: its algorithms ask for them."""

from __future__ import annotations

from typing import Any

from async_loader.errors import of_extra

buffers: Any = of_extra("stable_baselines3.common.buffers", "sb3")
samples: Any = of_extra("stable_baselines3.common.type_aliases", "sb3")
