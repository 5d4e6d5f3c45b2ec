"""How a view shows steps to a learner: as transitions, or as sequences of steps, padded or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from async_loader import tree
from async_loader.batch_format import BatchFormat, checked
from async_loader.errors import ConfigError
from async_loader.name_hints import explain_wrong_names
from async_loader.replay.array_types import Array
from async_loader.replay.hindsight_view import Hindsight, check_return, steps
from async_loader.schema import Schema
from async_loader.validation import share

_OF_EPISODES = ("index", "weight")
"""What a batch has once for each episode."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Takes the padding out of a batch of whole episodes.

    Fields ``[batch, time, ...]`` become ``[total, ...]``, the steps of each episode behind those of
    the one before it; ``mask`` becomes ``offsets``, int64 ``[batch + 1]``: episode ``i`` has the
    steps from ``offsets[i]`` up to ``offsets[i + 1]``. Cost: one copy of the steps.

    Parameters
    ----------
    once : tuple of str
        Top-level fields that a batch has once for each episode.
    """

    once: tuple[str, ...]

    @classmethod
    def of(cls, view: View | None) -> Ragged | None:
        """Return what a view's batches need, ``None`` for other views."""
        if isinstance(view, Sequences) and view.ragged:
            return cls((*view.state, *_OF_EPISODES))
        return None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch without padding. Arrays of steps are new."""
        mask: Array = batch["mask"]
        lengths = np.zeros(len(mask) + 1, np.int64)
        mask.sum(axis=1, out=lengths[1:])
        made = {
            name: value if name in self.once else tree.transform(value, lambda one: one[mask])
            for name, value in batch.items()
            if name != "mask"
        }
        return {**made, "offsets": np.cumsum(lengths)}


def checked_format(batch_format: object, device: object, view: View | None) -> BatchFormat:
    """As `batch_format.checked`, for batches of a view."""
    made = checked(batch_format, device)
    if made == "tensordict" and Ragged.of(view) is not None:
        raise ConfigError(
            "batch_format='tensordict' and whole='ragged': a TensorDict has fields of one length, "
            "so say whole=True"
        )
    return made


def ragged(batch: dict[str, Any], view: View | None) -> dict[str, Any]:
    """Return a batch as a view says, without padding if it is ragged. That of a table without a
    schema is the index alone.
    """
    change = Ragged.of(view)
    return batch if change is None or "mask" not in batch else change(batch)


Boundary = Literal["stop", "pad", "cross"]
ETA = 0.9
"""Kapturowski et al. 2019, section 2.3."""


@dataclass(frozen=True, slots=True, init=False)
class Transitions:
    """A step and its result in the following ``n_steps`` (Sutton and Barto, 2nd ed., equation
    7.1).

    - ``reward`` is the sum of gamma**i * reward(t + i) over the k = n_steps steps, or fewer where
      the episode ends before;
    - ``discount`` (float32) is gamma**k, or 0 if the last of those k steps terminated: the target
      is
      ``reward + discount * value(next_obs)``, also where the episode was truncated;
    - fields with ``Field(next=...)`` are followed by the observation k steps on, and stored fields
      whose top-level name begins with ``next_`` are those of the last of the k steps, as are
      ``terminated``, ``truncated`` and ``done``;
    - all others are those of the step that was drawn.

    Parameters
    ----------
    n_steps : int
        Steps of the return. A step is drawn as soon as ``n_steps`` have followed, or its episode
        has ended.
    gamma : float
        Discount per step, 0 to 1.
    reward : str
        Name of the reward's field: a number or a vector; float.

    Raises
    ------
    ConfigError
        For fewer than 1 step, and a gamma outside of 0 to 1.
    """

    n_steps: int
    gamma: float
    reward: str

    @explain_wrong_names
    def __init__(self, n_steps: int = 1, gamma: float = 0.99, *, reward: str = "reward") -> None:
        gamma = check_return(n_steps, gamma, reward)
        given = locals()
        for name in Transitions.__slots__:
            object.__setattr__(self, name, given[name])


@dataclass(frozen=True, slots=True, init=False)
class Sequences:
    """``burn_in + length + bootstrap`` steps that follow each other, of one episode by default.

    A batch has its stored fields as ``[batch, time, ...]``, each with its stack, and an observation
    of ``Field(next=...)`` as ``[batch, time, ...]`` too; and

    - ``mask``: bool ``[batch, time]``, where there is a step; all other places are zeros;
    - ``is_first``: bool ``[batch, time]``, where an episode begins (with ``boundary="cross"``: from
      the place before to this one, or with this step), so that a recurrent state has to be reset;
    - ``step_index``: int64 ``[batch, time]``, the id of each step, -1 in places without one;
    - ``index``: int64 ``[batch]``, the id of the first step: the sequence's own id;
    - ``weight``: float32 ``[batch]``, where the sampler has weights.

    A sequence is an item of its own: samplers draw sequences, by priorities of sequences. One
    begins at every ``stride``-th step of an episode, counted from the episode's first step (or from
    the first that the table still held when the view was first used). None begins at a deleted
    step, which those before it still show. Drawing costs the same at any capacity and fill, and
    after any write.

    Parameters
    ----------
    length : int
        Steps to learn from.
    burn_in : int
        Steps before them, which bring a recurrent state up to date (Kapturowski et al. 2019,
        section 3).
    stride : int, optional
        Steps from the beginning of one sequence to that of the next in its episode; ``length``
        unless given, so that each step is learned from once (but for the burn-in).
    bootstrap : int
        Steps after them, which only targets need; fewer where the episode ends.
    dilation : int
        Steps from one place of the time axis to the next.
    boundary : "stop" | "pad" | "cross"
        Where an episode ends: "stop" shows only sequences with all of their ``burn_in + length``
        steps, so that the last steps of an episode may be in none; "pad" also shows those with at
        least one step to learn from; "cross" goes on with the next episode of the same stream, so
        that every place has a step, and counts ``stride`` over all steps of a stream.
    state : str | sequence of str
        Top-level fields that hold a recurrent state: only the sequence's first step shows them,
        ``[batch, ...]``.
    whole : bool | "ragged"
        Whole episodes, from their first step to their last, of up to ``length`` steps. Longer ones
        and open ones are left out. "ragged": without padding. Fields are ``[total steps, ...]``
        then, also ``is_first`` and ``step_index``, and in place of ``mask`` there is ``offsets``,
        int64 ``[batch + 1]``: episode ``i`` has the steps from ``offsets[i]`` to
        ``offsets[i + 1]``.
    eta : float
        A sequence's priority is ``eta * max + (1 - eta) * mean`` of its steps' errors (ibid.,
        section 2.3).

    Raises
    ------
    ConfigError
        For numbers out of range, and for settings that exclude each other.
    """

    length: int
    burn_in: int
    stride: int
    bootstrap: int
    dilation: int
    boundary: Boundary
    state: tuple[str, ...]
    whole: bool | Literal["ragged"]
    eta: float

    @explain_wrong_names
    def __init__(
        self,
        length: int,
        *,
        burn_in: int = 0,
        stride: int | None = None,
        bootstrap: int = 0,
        dilation: int = 1,
        boundary: Boundary = "stop",
        state: str | Sequence[str] = (),
        whole: bool | Literal["ragged"] = False,
        eta: float = ETA,
    ) -> None:
        stride = length if stride is None else stride
        steps("length", length)
        steps("burn_in", burn_in, 0)
        steps("stride", stride)
        steps("bootstrap", bootstrap, 0)
        steps("dilation", dilation)
        if boundary not in get_args(Boundary):
            raise ConfigError(f"boundary={boundary!r}: it is one of 'stop', 'pad', 'cross'")
        if not isinstance(whole, bool) and whole != "ragged":
            raise ConfigError(f"whole={whole!r}: it is True, False or 'ragged'")
        if whole and boundary == "cross":
            raise ConfigError(f"whole={whole!r} ends with each episode: leave out boundary='cross'")
        if whole and (burn_in or bootstrap or dilation > 1 or stride != length):
            raise ConfigError(
                f"whole={whole!r} shows each episode once, with all of its steps: leave out "
                "burn_in, stride, bootstrap and dilation"
            )
        if isinstance(state, str) or not isinstance(state, Iterable):
            state = (state,)
        state = tuple(state)
        if not all(isinstance(name, str) and name for name in state):
            raise ConfigError(f"state={state!r}: give names of fields, as in 'state' or ('h', 'c')")
        eta = share("eta", eta, "the share of the largest error")
        given = locals()
        for name in Sequences.__slots__:
            object.__setattr__(self, name, given[name])
        steps("steps from a sequence's first to its last", self.span)

    @property
    def steps(self) -> int:
        """Places of the time axis."""
        return self.burn_in + self.length + self.bootstrap

    @property
    def least(self) -> int:
        """Places that hold a step in every sequence."""
        if self.whole:
            return 1
        if self.crosses:
            return self.steps
        return self.burn_in + (1 if self.boundary == "pad" else self.length)

    @property
    def ragged(self) -> bool:
        """Whether batches come without padding."""
        return self.whole == "ragged"

    @property
    def crosses(self) -> bool:
        """Whether a sequence goes on into the next episode of its stream."""
        return self.boundary == "cross"

    @property
    def span(self) -> int:
        """Steps from the first to the last, both included."""
        return (self.steps - 1) * self.dilation + 1


View: TypeAlias = Transitions | Sequences | Hindsight


def within(view: View | None, rows: int) -> View | None:
    """Return a view for a table of ``rows`` rows, which has no longer episodes: the same batches,
    for less memory where they come without padding.
    """
    if not isinstance(view, Sequences) or not view.ragged or view.length <= rows:
        return view
    return Sequences(rows, boundary=view.boundary, state=view.state, whole=view.whole, eta=view.eta)


def checked_view(view: object) -> View | None:
    """Return ``view`` if it is a view or None. Raises ConfigError."""
    if view is not None and not isinstance(view, View):
        raise ConfigError(
            f"view={view!r}: give a view, as in view=Transitions(n_steps=3) or view=Sequences(80)"
        )
    return view


def links(view: View | None) -> bool:
    """Return whether items of this view need later steps, whatever the schema."""
    return isinstance(view, Sequences | Hindsight) or (view is not None and view.n_steps > 1)


def depth_and_lookahead(stored: Schema) -> tuple[int, int]:
    """Return how many rows a stack of the stored steps shows, and how many steps must follow."""
    return max(one.stack for one in stored.fields), int(
        any(one.next is not None for one in stored.fields)
    )
