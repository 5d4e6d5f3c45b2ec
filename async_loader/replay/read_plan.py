"""Which rows of a table each field of a batch comes from, for one view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from async_loader import tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.replay.goal_fields import GoalFields
from async_loader.replay.hindsight_parts import HindsightParts
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.views import Sequences, Transitions, View, checked_view
from async_loader.schema import END_FIELDS, RESERVED, Field, Schema, tops_of

STEP, AFTER, LAST, FIRST = 0, 1, 2, 3
"""Anchors: the drawn step, the observation after the last step of the return, the last step of the
return, the first step of the sequence. In sequences the first two are those of each step.
"""

_OF_SEQUENCES = {"mask": np.bool_, "is_first": np.bool_, "step_index": np.int64}
"""What batches of sequences have beside the fields of the steps."""


@dataclass(frozen=True, slots=True)
class Output:
    """One array of a batch, and its source.

    Attributes
    ----------
    name : str
    source : int
        Field of the stored step.
    frames : int
        Rows that it shows, the newest at ``anchor``.
    anchor : int
    field : Field
        As it is delivered.
    """

    name: str
    source: int
    frames: int
    anchor: int
    field: Field


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How batches of one view of one schema are read.

    Attributes
    ----------
    schema : Schema
        Of what is read; ``index``, and ``weight`` if there are weights, stand at the end.
    outputs : tuple of Output
        One per field of the schema, but for what is computed: ``discount``, ``index``, ``weight``.
    n, gamma : int, float
    successor : bool
        Whether the observation after the last step is needed.
    depth : int
        Steps that a stack shows.
    reward : int
        Which output is the reward of an n-step return, and which stored field; -1 where none is
        summed up.
    discounts, weighted : bool
        Whether there is a ``discount``, a ``weight``.
    sequence : Sequences | None
        The view, if an item is a sequence of steps: the schema has ``mask``, ``is_first`` and
        ``step_index`` then, before the index.
    goals : GoalFields | None
        What a view of hindsight goals reads: the schema has ``relabelled`` then, before the
        ``discount``.
    parts : tuple of Field
        What is shown in place of the results of the view's functions, before ``relabelled``. See
        NOTE [parts] in hindsight_parts.py.
    """

    schema: Schema
    outputs: tuple[Output, ...]
    n: int
    gamma: float
    successor: bool
    depth: int
    reward: int
    discounts: bool
    weighted: bool
    sequence: Sequences | None = None
    goals: GoalFields | None = None
    parts: tuple[Field, ...] = ()

    @property
    def single(self) -> bool:
        """Whether an item is one row without computed fields."""
        return self.depth == 1 and not self.successor and self.n == 1 and not self.computed

    @property
    def computed(self) -> int:
        """Fields that stand between those of the outputs and the index."""
        if self.sequence is not None:
            return len(_OF_SEQUENCES)
        return int(self.discounts) + (self.goals is not None) + len(self.parts)

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
            _output(i, one, one.name, _anchor(top, view))
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
        reward, goals = -1, None
        parts: tuple[Field, ...] = ()
        if sequence is not None:
            if sequence.ragged:
                _with(delivered, "offsets", np.dtype(np.int64))  # is added later, see ragged.py
            for name, dtype in _OF_SEQUENCES.items():
                delivered = _with(delivered, name, np.dtype(dtype), (sequence.steps,))
        if view is not None:
            rewarded = _reward(view, outputs)
            reward = rewarded if view.n_steps > 1 else -1
            if isinstance(view, Hindsight):
                _check_plain(stored)
                shown = [(one.name, one.source) for one in outputs]
                goals = GoalFields.of(view, stored, shown, rewarded)
                parts = _parts(view, goals, stored, outputs)
                for part in parts:
                    delivered = _with(delivered, part.name, part.dtype, part.shape)
                delivered = _with(delivered, "relabelled", np.dtype(np.bool_))
            delivered = _with(delivered, "discount", np.dtype(np.float32))
        delivered = _with(delivered, "index", np.dtype(np.int64))
        if weighted:
            delivered = _with(delivered, "weight", np.dtype(np.float32))
        n, gamma = (1, 1.0) if view is None else (view.n_steps, view.gamma)
        depth = max(one.stack for one in stored.fields)
        return cls(
            delivered,
            tuple(outputs),
            n,
            gamma,
            bool(followed),
            depth,
            reward,
            view is not None,
            weighted,
            sequence,
            goals,
            parts,
        )


def _check_plain(stored: Schema) -> None:
    """Raise ConfigError for fields with a codec: goals are read by a kernel, in their rows."""
    for field in stored.fields:
        if field.codec is not None:
            raise ConfigError(
                f"field {field.name!r} has codec={field.codec!r}, and a view of hindsight goals "
                "reads steps as they lie in the table: leave the codec out"
            )


def _anchor(top: str, view: Transitions | Hindsight | None) -> int:
    ends = top.startswith("next_") or top in END_FIELDS
    return LAST if view is not None and ends else STEP


def _output(i: int, stored: Field, name: str, anchor: int) -> Output:
    shape = (stored.stack, *stored.shape) if stored.stack > 1 else stored.shape
    delivered = Field(shape, stored.dtype, padding=stored.padding, name=name)
    return Output(name, i, stored.stack, anchor, delivered)


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
    made = []
    for one in outputs:
        if one.anchor == STEP and tops[one.source] in view.state:
            made.append(replace(one, anchor=FIRST))
            continue
        field = one.field
        shape = (view.steps, *field.shape)
        timed = Field(shape, field.dtype, padding=field.padding, name=field.name)
        made.append(replace(one, field=timed))
    return made


def _reward(view: Transitions | Hindsight, outputs: Sequence[Output]) -> int:
    """Return the output of the reward."""
    found = [i for i, one in enumerate(outputs) if one.name == view.reward and one.anchor == STEP]
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
    view: Hindsight, goals: GoalFields, stored: Schema, outputs: Sequence[Output]
) -> tuple[Field, ...]:
    if not isinstance(view, HindsightParts):
        return ()
    of_end = [i for i, one in enumerate(outputs) if one.anchor in (AFTER, LAST)]
    ending = [i for i in of_end if i not in goals.goals]
    info = [stored.fields[i] for i in goals.info]
    shown = [one.field for one in outputs]
    return view.fields(stored.fields[goals.achieved], info, shown, ending)


def _with(schema: Schema, name: str, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> Schema:
    try:
        return schema.with_field(name, dtype, shape)
    except SchemaError:
        raise ConfigError(
            f"steps have a field {name!r}, which this view adds: rename yours"
        ) from None
