"""Which rows of a table each field of a batch comes from, for one view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.replay import hindsight_view as h
from async_loader.replay.array_types import Ids
from async_loader.replay.base.field_table import (
    AFTER,
    DISCOUNT,
    GOAL,
    IS_FIRST,
    LAST,
    MASK,
    NO_PLAN,
    NUMBERS,
    RELABELLED,
    RETURN,
    STEP,
    STEP_INDEX,
    STEPS,
)
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.views import Sequences, Transitions, View, checked_view
from async_loader.schema import END_FIELDS, RESERVED, Field, Schema, tops_of

_OF_SEQUENCES = (
    ("mask", np.bool_, MASK),
    ("is_first", np.bool_, IS_FIRST),
    ("step_index", np.int64, STEP_INDEX),
)
"""What batches of sequences have beside the fields of the steps."""


@dataclass(frozen=True, slots=True)
class Output:
    """One array of a batch, and its source.

    Attributes
    ----------
    source : int
        Field of the stored step; -1: it is computed.
    frames : int
        Rows that it shows for each step.
    shown : int
        Which row they end at, or what is computed: see field_table.py.
    field : Field
        As it is delivered.
    times : int
        Places of its time axis; 0: it has none.
    """

    source: int
    frames: int
    shown: int
    field: Field
    times: int = 0

    @property
    def name(self) -> str:
        """Its name in a batch."""
        return self.field.name

    def over(self, times: int, shown: int, name: str | None = None) -> Output:
        """Return the same with a time axis."""
        field = self.field
        name = field.name if name is None else name
        timed = Field((times, *field.shape), field.dtype, padding=field.padding, name=name)
        return replace(self, shown=shown, field=timed, times=times)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How batches of one view of one schema are read.

    Attributes
    ----------
    schema : Schema
        Of what is read; ``index``, and ``weight`` if there are weights, stand at the end.
    outputs : tuple of Output
        One per field of the schema, but for ``index`` and ``weight``.
    n : int
        Steps of a return.
    gamma : float | None
        ``None``: there is no return.
    successor : bool
        Whether the observation after the last step is needed.
    depth : int
        Steps that a stack shows.
    weighted : bool
        Whether there is a ``weight``.
    sequence : Sequences | None
        The view, if an item is a sequence of steps.
    goals : h.GoalFields | None
        What a view of hindsight goals reads.
    hidden : tuple of Output
        What is read for the functions of that view, and not delivered. See NOTE [parts] in
        hindsight_view.py.
    """

    schema: Schema
    outputs: tuple[Output, ...]
    n: int
    gamma: float | None
    successor: bool
    depth: int
    weighted: bool
    sequence: Sequences | None = None
    goals: h.GoalFields | None = None
    hidden: tuple[Output, ...] = ()

    def table(self) -> Ids:
        """Return what kernels know of it, see field_table.py; empty for items of one row."""
        view = self.sequence
        if view is None and self.gamma is None and self.depth == 1 and not self.successor:
            return NO_PLAN
        places, numbers = self.depth + 2 * self.span + 1, self.span + 1
        dilation, least = (1, 1) if view is None else (view.dilation, view.least)
        whole, across = view is not None and bool(view.whole), view is not None and view.crosses
        following = self.goals is not None and self.goals.following
        made = np.zeros(NUMBERS + numbers + 5 * places, np.int64)
        pair = view is None and self.gamma is None and self.depth == 1 and self.goals is None
        made[:NUMBERS] = (
            self.depth, self.span, dilation, least, self.successor, whole, across, following,
            places, pair,
        )  # fmt: skip
        if self.gamma is not None:
            discounts = made[NUMBERS : NUMBERS + numbers].view(np.float64)
            discounts[:] = self.gamma ** np.arange(numbers)
        steps, axis = (self.span - 1) // dilation + 1, len(made) - places
        made[axis : axis + steps] = self.depth - 1 + dilation * np.arange(steps)
        return made

    @property
    def span(self) -> int:
        """Steps from an item's first to its last, at most."""
        return self.n if self.sequence is None else self.sequence.span

    @property
    def lookahead(self) -> int:
        """Steps that must follow a step, in its open episode, before it can be drawn.

        With sequences it is one, so that a step that can be drawn says whether its episode ends.
        With hindsight goals it is one at least: the table links steps then.
        """
        if self.sequence is not None:
            return 1
        return max(self.n if self.successor else self.n - 1, int(self.goals is not None))

    @classmethod
    def of(cls, stored: Schema, view: View | None = None, *, weighted: bool = False) -> ReadPlan:
        """Work out how ``view`` shows steps of a schema; ``None``: as they are stored.

        Raises
        ------
        ConfigError
            If the schema lacks what the view needs, or has a field of a name that the view adds.
        """
        view = checked_view(view)
        sequence = view if isinstance(view, Sequences) else None
        view = None if isinstance(view, Sequences) else view
        outputs = [
            _output(i, one, one.name, _shown(top, view))
            for i, (one, top) in enumerate(zip(stored.fields, tops_of(stored), strict=True))
        ]
        followed = [i for i, one in enumerate(stored.fields) if one.next is not None]
        structure = stored.structure
        for name in sorted({str(stored.fields[i].next) for i in followed}):
            structure, added = _followers(stored, structure, name)
            outputs.extend(added)
        if sequence is not None:
            outputs = _in_sequences(sequence, stored, outputs)
        delivered = Schema(structure, tuple(one.field for one in outputs))
        computed: list[Output] = []
        goals, parts = None, []
        if sequence is not None:
            if sequence.ragged:
                _with(delivered, "offsets", np.dtype(np.int64))  # is added later, see views.py
            for name, dtype, kind in _OF_SEQUENCES:
                computed.append(_computed(name, dtype, kind).over(sequence.steps, kind))
        elif view is not None:
            reward = _reward(view, outputs)
            if isinstance(view, Hindsight):
                _check_plain(stored)
                goals = h.GoalFields.of(view, stored, [(o.name, o.source) for o in outputs], reward)
                parts = _parts(view, goals, stored, outputs)
                if isinstance(view, h.HindsightParts):
                    computed, parts = parts, []
                computed.append(_computed("relabelled", np.bool_, RELABELLED))
            if view.n_steps > 1:
                outputs[reward] = replace(outputs[reward], shown=RETURN)
            computed.append(_computed("discount", np.float32, DISCOUNT))
        for one in computed:
            delivered = _with(delivered, one.name, one.field.dtype, one.field.shape)
        delivered = _with(delivered, "index", np.dtype(np.int64))
        if weighted:
            delivered = _with(delivered, "weight", np.dtype(np.float32))
        n, gamma = (1, None) if view is None else (view.n_steps, view.gamma)
        depth = max(one.stack for one in stored.fields)
        return cls(
            delivered,
            (*outputs, *computed),
            n,
            gamma,
            bool(followed),
            depth,
            weighted,
            sequence,
            goals,
            tuple(parts),
        )


def _computed(name: str, dtype: Any, kind: int) -> Output:
    return Output(-1, 1, kind, Field((), dtype, name=name))


def _check_plain(stored: Schema) -> None:
    """Raise ConfigError for fields with a codec: goals are read by a kernel, in their rows."""
    for field in stored.fields:
        if field.codec is not None:
            raise ConfigError(
                f"field {field.name!r} has codec={field.codec!r}, and a view of hindsight goals "
                "reads steps as they lie in the table: leave the codec out"
            )


def _shown(top: str, view: Transitions | Hindsight | None) -> int:
    ends = top.startswith("next_") or top in END_FIELDS
    return LAST if view is not None and ends else STEP


def _output(i: int, stored: Field, name: str, shown: int) -> Output:
    shape = (stored.stack, *stored.shape) if stored.stack > 1 else stored.shape
    delivered = Field(shape, stored.dtype, padding=stored.padding, name=name)
    return Output(i, stored.stack, shown, delivered)


def _followers(
    stored: Schema, structure: tree.Structure, name: str
) -> tuple[tree.Structure, list[Output]]:
    """Return the structure with ``name`` added, and the outputs below it."""
    assert structure is not None
    if structure.kind is not dict or name in structure.keys or name in ("discount", *RESERVED):
        raise ConfigError(
            f"next={name!r}: steps are dicts, and this name is taken in ({stored}), choose another"
        )
    tops = {top for f, top in zip(stored.fields, tops_of(stored), strict=True) if f.next == name}
    if len(tops) > 1:
        raise ConfigError(
            f"next={name!r} is said by fields of {', '.join(sorted(tops))}: give each a name of "
            "its own"
        )
    (top,) = tops
    kept: list[Output] = []
    child = stored.structure.children[stored.structure.keys.index(top)]  # type: ignore[union-attr]
    names = iter(tree.names(child, top))
    places = {f.name: i for i, f in enumerate(stored.fields)}

    def linked(node: tree.Structure) -> tuple[bool, tree.Structure]:
        if node is None:
            old = next(names)
            one = stored.fields[places[old]]
            if one.next != name:
                return False, None
            kept.append(_output(places[old], one, name + old[len(top) :], AFTER))
            return True, None
        found = [(key, *linked(below)) for key, below in zip(node.keys, node.children, strict=True)]
        there = [(key, below) for key, is_there, below in found if is_there]
        return bool(there), tree.Node(
            node.kind, tuple(k for k, _ in there), tuple(b for _, b in there)
        )

    _, below = linked(child)
    return tree.Node(dict, (*structure.keys, name), (*structure.children, below)), kept


def _in_sequences(view: Sequences, stored: Schema, outputs: Sequence[Output]) -> list[Output]:
    """Return the outputs with a time axis, but for those of a recurrent state."""
    tops = tops_of(stored)
    for name in view.state:
        if name not in tops:
            raise ConfigError(
                f"state={name!r}: steps have {', '.join(dict.fromkeys(tops))}, and no such field"
            )
    return [
        one
        if one.shown == STEP and tops[one.source] in view.state
        else one.over(view.steps, one.shown)
        for one in outputs
    ]


def _reward(view: Transitions | Hindsight, outputs: Sequence[Output]) -> int:
    """Return the output of the reward."""
    found = [i for i, one in enumerate(outputs) if one.name == view.reward and one.shown == STEP]
    if not found:
        raise ConfigError(
            f"the view sums up {view.reward!r}, and steps have "
            f"{', '.join(o.name for o in outputs)}: give reward=..."
        )
    one = outputs[found[0]]
    dtype = one.field.dtype
    if view.n_steps > 1 and (
        dtype.kind != "f" or dtype.itemsize < 4 or len(one.field.shape) > 1 or one.frames > 1
    ):
        raise ConfigError(
            f"{one.field}: a return is summed up over float32 or float64, a number or a vector for "
            "each step"
        )
    return found[0]


def _parts(
    view: Hindsight, goals: h.GoalFields, stored: Schema, outputs: Sequence[Output]
) -> list[Output]:
    """Return what the functions of a view need: see NOTE [parts] in hindsight_view.py."""
    n = view.n_steps

    def part(name: str, source: int, shown: int) -> Output:
        one = stored.fields[source]
        return Output(source, 1, shown, Field(one.shape, one.dtype, padding="zero", name=name))

    achieved = part(h.ACHIEVED, goals.achieved, AFTER if goals.following else STEP)
    parts = [
        part(h.GOAL, goals.achieved, GOAL),
        _computed(h.STEPS, np.int64, STEPS),
        achieved.over(n, achieved.shown),
    ]
    parts.extend(
        part(f"{h.INFO}{i}", source, STEP).over(n, STEP) for i, source in enumerate(goals.info)
    )
    if view.compute_terminated is not None and n > 1:
        for j, one in enumerate(outputs):
            if one.shown in (AFTER, LAST) and j not in goals.goals:
                shown = AFTER if one.shown == AFTER else STEP
                parts.append(one.over(n - 1, shown, f"{h.EACH}{j}"))
    return parts


def _with(schema: Schema, name: str, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Schema:
    try:
        return schema.with_field(name, dtype, shape)
    except SchemaError:
        raise ConfigError(
            f"steps have a field {name!r}, which this view adds: rename yours"
        ) from None
