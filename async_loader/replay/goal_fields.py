"""Where the goals of steps are, for a view of hindsight goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from async_loader.errors import ConfigError
from async_loader.replay.hindsight_view import Hindsight
from async_loader.schema import Field, Schema


@dataclass(frozen=True, slots=True)
class GoalFields:
    """What is read for new goals, and what they change in a batch.

    Attributes
    ----------
    view : Hindsight
    achieved : int
        The stored field of what a step has achieved.
    following : bool
        Whether that is read from the row after the step.
    info : tuple of int
        Stored fields for `Hindsight.info`.
    goals : tuple of int
        Outputs that show the goal.
    reward : int
        The output of the reward.
    terminated, done, truncated : int
        Outputs, -1 for those that steps do not have.
    """

    view: Hindsight
    achieved: int
    following: bool
    info: tuple[int, ...]
    goals: tuple[int, ...]
    reward: int
    terminated: int
    done: int
    truncated: int

    @classmethod
    def of(
        cls, view: Hindsight, stored: Schema, shown: Sequence[tuple[str, int]], reward: int
    ) -> GoalFields:
        """Find the fields of a view.

        Parameters
        ----------
        shown : sequence of (str, int)
            Name and stored field of each output.
        reward : int
            The output of the reward.

        Raises
        ------
        ConfigError
            If steps do not have what the view names.
        """
        fields = stored.fields
        places = {field.name: i for i, field in enumerate(fields)}
        goal, achieved = (
            _found(stored, name, parameter)
            for parameter, name in (("goal", view.goal), ("achieved", view.achieved))
        )
        first, second = fields[goal], fields[achieved]
        if (first.shape, first.dtype) != (second.shape, second.dtype):
            raise ConfigError(
                f"a goal is replaced by an achieved one, and ({first}) differs from ({second}): "
                "store them with one shape and dtype"
            )
        following = second.next is not None
        if not following:
            after = f"next_{second.name}"
            if after not in places:
                raise ConfigError(
                    f"a step's goal is what was achieved after it, and steps have no {after!r}: "
                    f"say Field(..., next='next_{second.name.split('.')[0]}') for {second.name!r}"
                )
            _check_alike(second, fields[places[after]])
            achieved = places[after]
        rewarded = fields[shown[reward][1]]
        if rewarded.dtype.kind != "f" or rewarded.shape or rewarded.stack > 1:
            raise ConfigError(
                f"{rewarded}: the reward of another goal is a float, store one float for each step"
            )
        names = {name: i for i, (name, _) in enumerate(shown)}
        goals = [
            i for i, (name, of) in enumerate(shown) if of == goal or name == f"next_{first.name}"
        ]
        info = tuple(_found(stored, name, "info") for name in view.info)
        ends = [names.get(name, -1) for name in ("terminated", "done", "truncated")]
        return cls(view, achieved, following, info, tuple(goals), reward, *ends)


def _found(stored: Schema, name: str, parameter: str) -> int:
    """Return the field of this name, or the only one whose name ends with it."""
    names = [field.name for field in stored.fields]
    if name in names:
        return names.index(name)
    found = [
        i for i, one in enumerate(names) if one.endswith(f".{name}") and not one.startswith("next_")
    ]
    if len(found) == 1:
        return found[0]
    said = f"several: {', '.join(names[i] for i in found)}" if found else ", ".join(names)
    raise ConfigError(f"{parameter}={name!r}: steps have {said}; name one of their fields")


def _check_alike(achieved: Field, after: Field) -> None:
    if (achieved.shape, achieved.dtype) != (after.shape, after.dtype):
        raise ConfigError(f"({achieved}) and ({after}) differ: store them with one shape and dtype")
