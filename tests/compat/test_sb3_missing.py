"""The module for Stable-Baselines3 where that is not installed."""

from __future__ import annotations

import sys

import pytest

from async_loader.compat import sb3
from async_loader.errors import MissingExtra


def test_without_stable_baselines3_the_error_names_the_extra(monkeypatch):
    for name in [one for one in sys.modules if one.startswith("async_loader.compat.sb3.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(sb3, "replay_buffer", raising=False)
    monkeypatch.delattr(sb3, "peer", raising=False)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.buffers", None)
    with pytest.raises(MissingExtra, match=r"async_loader\[sb3\]"):
        sb3.ReplayBuffer  # noqa: B018


def test_other_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nothing"):
        sb3.nothing  # noqa: B018
