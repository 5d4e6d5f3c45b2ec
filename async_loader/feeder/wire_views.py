"""Views as they travel, and back."""

from __future__ import annotations

from dataclasses import asdict

from msgspec import structs

from async_loader.feeder.wire import HindsightView, SequenceView
from async_loader.feeder.wire import View as WireView
from async_loader.replay.hindsight_goals import HindsightParts
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.views import Sequences, Transitions, View


def wire_of(view: View) -> WireView:
    """Convert a view to wire form. Its numbers and names are within the bounds of the wire.

    The functions of hindsight goals stay here: see `HindsightParts`.
    """
    if isinstance(view, Sequences):
        # padding is taken out where batches arrive
        return WireView(sequences=SequenceView(**{**asdict(view), "whole": bool(view.whole)}))
    if isinstance(view, Hindsight):
        return WireView(
            hindsight=HindsightView(
                strategy=view.strategy,
                relabel_fraction=view.relabel_fraction,
                goal=view.goal,
                achieved=view.achieved,
                n=view.n_steps,
                gamma=float(view.gamma),
                reward=view.reward,
                info=view.info,
                ends=view.compute_terminated is not None,
            )
        )
    return WireView(n=view.n_steps, gamma=float(view.gamma), reward=view.reward)


def view_from(said: WireView) -> View:
    """Convert a view from wire form. Raises ConfigError for settings that exclude each other."""
    if said.sequences is not None:
        return Sequences(**structs.asdict(said.sequences))
    if said.hindsight is not None:
        given = structs.asdict(said.hindsight)
        return HindsightParts.of(n_steps=given.pop("n"), **given)
    assert said.n is not None
    assert said.gamma is not None
    return Transitions(said.n, said.gamma, reward=said.reward)
