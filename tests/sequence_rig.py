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


class Sequence(NamedTuple):
    episode: Episode
    places: list[int]


class Episodes:
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
        self.open: dict[int, Episode] = {}
        self.all: list[Episode] = []
        self.deleted: set[int] = set()
        self.cursor = 0

    def add(self, stream: int, terminated: bool) -> None:
        value = float(self.cursor)
        name = self.cursor
        made = self._add(obs=value, h=np.full(2, value), terminated=terminated, stream=stream)
        assert made in (name, None)
        self.cursor += 1
        if stream not in self.open:
            self.open[stream] = Episode()
            self.all.append(self.open[stream])
        self.open[stream].steps.append(Step(name, value))
        if terminated:  # its last observation stands for the one after it
            self.open.pop(stream).after = value

    def truncate(self, stream: int) -> None:
        if stream not in self.open:
            return
        seen = -1.0 - self.cursor
        if self.linked:
            self._end_episode(final_obs=seen, stream=stream)
            self.cursor += 1  # the final observation has an id of its own
        else:
            self._end_episode(stream=stream)
        self.open.pop(stream).after = seen

    def delete(self, name: int) -> None:
        items = {step.name for one in self.all for step in one.steps[: one.drawable]}
        self.flush()
        if name in items and self.table.delete([name]).applied:
            self.deleted.add(name)

    def sequences(self, view: Sequences) -> dict[int, Sequence]:
        """Return every sequence that can be drawn, by its id."""
        found = {}
        depth = 3 if self.linked else 1
        oldest = self.cursor - int(self.table.capacity or 0)
        for episode in self.all:
            ended, there = episode.after is not None, episode.drawable
            for at in range(0, there, view.stride):
                name = episode.steps[at].name
                past = episode.steps[max(0, at - depth + 1)].name
                if past < oldest or name in self.deleted:
                    continue
                places = list(range(at, there, view.dilation))[: view.steps]
                if view.whole:
                    if ended and at == 0 and there <= view.length:
                        found[name] = Sequence(episode, places)
                elif len(places) == view.steps or (ended and len(places) >= view.least):
                    found[name] = Sequence(episode, places)
        return found

    def check(self, batch: dict[str, Any], view: Sequences) -> None:
        """Compare each sequence of a batch with the one of its id."""
        wanted = self.sequences(view)
        for i, name in enumerate(np.asarray(batch["index"]).tolist()):
            episode, places = wanted[name]
            rest = [0] * (view.steps - len(places))
            of = {field: np.asarray(values)[i] for field, values in batch.items()}
            assert of["mask"].tolist() == [True] * len(places) + rest
            assert of["is_first"].tolist() == [at == 0 for at in places] + rest
            names = [episode.steps[at].name for at in places]
            assert of["step_index"].tolist() == names + [-1] * len(rest)
            assert of["h"].tolist() == [episode.steps[places[0]].value] * 2
            assert not of["obs"][len(places) :].any()
            values = [episode.steps[at].value for at in places]
            if not self.linked:
                assert of["obs"][: len(places)].tolist() == values
                continue
            for t, at in enumerate(places):
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
        boundary=st.sampled_from(["stop", "pad"]),
        state=st.just("h"),
    ),
    st.builds(Sequences, st.integers(1, 8), whole=st.just(True), state=st.just("h")),
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.sampled_from([False] * 6 + [True])),
        st.tuples(st.just("truncate"), st.integers(0, 2), st.none()),
        st.tuples(st.just("delete"), st.integers(0, 80), st.none()),
    ),
    min_size=1,
    max_size=100,
)


def play(model: Episodes, moves: list[Any]) -> None:
    """Make the moves of MOVES."""
    for move, which, flag in moves:
        getattr(model, move)(*((which, flag) if move == "add" else (which,)))
    model.flush()


def buffered(linked: bool, **settings: Any) -> Episodes:
    """Return a model of a table in this process."""
    buffer = ReplayBuffer(schema=LINKED if linked else PLAIN, seed=0, **settings)
    return Episodes(buffer, linked, buffer.add, buffer.end_episode)
