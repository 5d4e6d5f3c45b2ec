"""What sequences a table shows, from a list of its episodes; for tables here and in a feeder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from async_loader import Field, ReplayBuffer, Sequences
from async_loader.table import Table

PLAIN = {"obs": Field((), "float64"), "h": Field((2,), "float32"), "terminated": Field((), bool)}
LINKED = {**PLAIN, "obs": Field((), "float64", stack=3, next="next_obs")}


class Step(NamedTuple):
    name: int
    value: float


class Episode:
    """Steps that follow each other; ``after``: what was seen when it had ended."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.after: float | None = None

    @property
    def drawable(self) -> int:
        """Steps that have a successor, or are the last of their episode."""
        return len(self.steps) - (self.after is None)

    def seen_after(self, at: int) -> float | None:
        return self.steps[at + 1].value if at + 1 < len(self.steps) else self.after


class Place(NamedTuple):
    episode: Episode
    at: int

    @property
    def step(self) -> Step:
        return self.episode.steps[self.at]


Sequence = list[Place]


class InTable:
    """What a table holds, as lists; and the same in the table.

    Parameters
    ----------
    table : Table
    linked : bool
        Whether its schema is LINKED.
    add, end_episode : callable
        Those of the table, or of the one writer to it.
    flush : callable
        Returns when what was added is in the table.
    """

    def __init__(
        self,
        table: Table,
        linked: bool,
        add: Callable[..., int | None],
        end_episode: Callable[..., None],
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.table, self.linked = table, linked
        self._add, self._end_episode, self.flush = add, end_episode, flush
        self.open: dict[int, Any] = {}
        self.deleted: set[int] = set()


class Episodes(InTable):
    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.streams: dict[int, list[Episode]] = {}
        self.stale: set[int] = set()
        self.cursor = 0

    def reopen(self, table: ReplayBuffer) -> None:
        """Go on with a table that was loaded from a save of this one."""
        self.table, self._add, self._end_episode = table, table.add, table.end_episode
        self.stale = set(self.open)  # these episodes end with the next step of their stream

    def add(self, stream: int, terminated: bool) -> None:
        value = float(self.cursor)
        name = self.cursor
        made = self._add(obs=value, h=np.full(2, value), terminated=terminated, stream=stream)
        assert made in (name, None)
        self.cursor += 1
        if stream in self.stale:
            self.stale.discard(stream)
            self._cut(stream)
        if stream not in self.open:
            self.open[stream] = Episode()
            self.streams.setdefault(stream, []).append(self.open[stream])
        self.open[stream].steps.append(Step(name, value))
        if terminated:  # its last observation stands for the one after it
            self.open.pop(stream).after = value

    def truncate(self, stream: int, shows_end: bool) -> None:
        if stream not in self.open:
            return
        self.stale.discard(stream)
        if self.linked and not shows_end:
            self._end_episode(stream=stream)
            self._cut(stream)
            return
        seen = -1.0 - self.cursor
        if self.linked:
            self._end_episode(final_obs=seen, stream=stream)
            self.cursor += 1  # the final observation has an id of its own
        else:
            self._end_episode(stream=stream)
        self.open.pop(stream).after = seen

    def _cut(self, stream: int) -> None:
        """End an episode; of linked steps the last becomes the observation after the others."""
        episode = self.open.pop(stream)
        episode.after = episode.steps.pop().value if self.linked else -1.0

    def delete(self, name: int) -> None:
        episodes = [one for each in self.streams.values() for one in each]
        steps = {step.name for one in episodes for step in one.steps}
        self.flush()
        if name in steps and self.table.delete([name]).applied:
            self.deleted.add(name)

    def sequences(self, view: Sequences) -> dict[int, Sequence]:
        """Return every sequence that can be drawn, by its id."""
        found: dict[int, Sequence] = {}
        for episodes in self.streams.values():
            every = [[Place(one, at) for at in range(one.drawable)] for one in episodes]
            runs = [[place for one in every for place in one]] if view.crosses else every
            for run in runs:
                ended = bool(run) and run[0].episode.after is not None and not view.crosses
                for first in range(0, len(run), view.stride):
                    shown = run[first :: view.dilation][: view.steps]
                    if not self._there(run[first]):
                        continue
                    if view.whole:
                        if ended and first == 0 and len(run) <= view.length:
                            found[run[first].step.name] = shown
                    elif len(shown) == view.steps or (ended and len(shown) >= view.least):
                        found[run[first].step.name] = shown
        return found

    def _there(self, place: Place) -> bool:
        """Whether a sequence may begin here: its step and the past of that are there."""
        past = max(0, place.at - (2 if self.linked else 0))
        oldest = self.cursor - int(self.table.capacity or 0)
        return place.episode.steps[past].name >= oldest and place.step.name not in self.deleted

    def check(self, batch: dict[str, Any], view: Sequences) -> None:
        """Compare each sequence of a batch with the one of its id."""
        wanted = self.sequences(view)
        for i, name in enumerate(np.asarray(batch["index"]).tolist()):
            places = wanted[name]
            rest = [0] * (view.steps - len(places))
            begins = [
                at == 0 or (t > 0 and episode is not places[t - 1].episode)
                for t, (episode, at) in enumerate(places)
            ]
            of = {field: np.asarray(values)[i] for field, values in batch.items()}
            assert of["mask"].tolist() == [True] * len(places) + rest
            assert of["is_first"].tolist() == begins + rest
            names = [place.step.name for place in places]
            assert of["step_index"].tolist() == names + [-1] * len(rest)
            assert of["h"].tolist() == [places[0].step.value] * 2
            assert not of["obs"][len(places) :].any()
            values = [place.step.value for place in places]
            if not self.linked:
                assert of["obs"][: len(places)].tolist() == values
                continue
            for t, (episode, at) in enumerate(places):
                stack = [episode.steps[max(0, at - k)].value for k in (2, 1, 0)]
                assert of["obs"][t].tolist() == stack
                assert of["next_obs"][t, -1] == episode.seen_after(at)


VIEWS = st.one_of(
    st.builds(
        Sequences,
        st.integers(1, 5),
        burn_in=st.integers(0, 2),
        stride=st.integers(1, 4),
        bootstrap=st.integers(0, 2),
        dilation=st.integers(1, 3),
        boundary=st.sampled_from(["stop", "pad", "cross"]),
        state=st.just("h"),
    ),
    st.builds(Sequences, st.integers(1, 8), whole=st.just(True), state=st.just("h")),
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.sampled_from([False] * 6 + [True])),
        st.tuples(st.just("truncate"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 80), st.none()),
    ),
    min_size=1,
    max_size=100,
)


def play(model: Episodes, moves: list[Any]) -> None:
    """Make the moves of MOVES."""
    for move, which, flag in moves:
        getattr(model, move)(*((which,) if move == "delete" else (which, flag)))
    model.flush()


def buffered(linked: bool, **settings: Any) -> Episodes:
    """Return a model of a table in this process."""
    buffer = ReplayBuffer(schema=LINKED if linked else PLAIN, seed=0, **settings)
    return Episodes(buffer, linked, buffer.add, buffer.end_episode)
