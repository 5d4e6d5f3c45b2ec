"""Views as they travel, and back."""

from __future__ import annotations

from dataclasses import asdict

from msgspec import structs

from async_loader.feeder.wire import SequenceView
from async_loader.feeder.wire import View as WireView
from async_loader.replay.views import Sequences, Transitions, View


def wire_of(view: View) -> WireView:
    """Convert a view to wire form. Its numbers and names are within the bounds of the wire."""
    if isinstance(view, Sequences):
        # padding is taken out where batches arrive
        return WireView(sequences=SequenceView(**{**asdict(view), "whole": bool(view.whole)}))
    return WireView(n=view.n_steps, gamma=float(view.gamma), reward=view.reward)


def view_from(said: WireView) -> View:
    """Convert a view from wire form. Raises ConfigError for settings that exclude each other."""
    if said.sequences is not None:
        return Sequences(**structs.asdict(said.sequences))
    assert said.n is not None
    assert said.gamma is not None
    return Transitions(said.n, said.gamma, reward=said.reward)
