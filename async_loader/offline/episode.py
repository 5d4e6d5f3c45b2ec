"""One episode: the names of its fields, its steps and the observations after them, its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import SchemaError
from async_loader.offline.bad_data import Place
from async_loader.offline.episode_ends import ends_of, flags
from async_loader.replay.array_types import Array, Bools
from async_loader.replay.table.field_validator import FieldValidator
from async_loader.schema import END_FIELDS, Schema, supported

MissingEnds: TypeAlias = Literal["refuse", "truncate"]

OTHER_NAMES = {
    "obs": "observation observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminal terminals termination terminations",
    "truncated": "timeout timeouts truncation truncations",
    "next_obs": "next_observation next_observations",
    "final_obs": "final_observation",
}
"""The fields of a table, and their names in Minari, D4RL and Gymnasium."""

NAMES = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
NEEDED = ("obs", "action", "reward")


@dataclass(frozen=True, slots=True)
class Episode:
    """A checked episode.

    Attributes
    ----------
    steps : dict
        Arrays ``[steps, ...]``, nested as a step is, without ``terminated`` and ``truncated``.
    following : nested arrays [steps, ...] | None
        The observation after each step, of which a table takes the last; ``None``: unknown.
    terminated, truncated : bool array [steps]
    """

    steps: dict[str, Any]
    following: Any
    terminated: Bools
    truncated: Bools

    def __len__(self) -> int:
        return len(self.terminated)


def named(given: object, place: Place) -> dict[str, Any]:
    """Return the fields of an episode under their names in a table.

    Raises
    ------
    BadData
        For anything but a dict, and for a field that is given twice.
    """
    if not isinstance(given, Mapping):
        raise place.error(
            None, f"it is a {type(given).__name__}: an episode is a dict of arrays [steps, ...]"
        )
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = NAMES.get(str(key), str(key))
        if name in found:
            raise place.error(name, f"it is given twice, once as {key!r}: leave one of them out")
        found[name] = value
    return found


def arrays(value: Any, name: str, place: Place) -> Any:
    """Return nested arrays of dtypes that a table holds.

    Raises
    ------
    BadData
        Names the leaf that is no such array.
    """
    if isinstance(value, Mapping):
        return {key: arrays(one, f"{name}.{key}", place) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(arrays(one, f"{name}.{i}", place) for i, one in enumerate(value))
    array = tensors.as_array(value)
    if array is None:
        if (text := tensors.unheld(value)) is not None:
            raise place.error(name, f"it is {text}")
        try:
            array = np.asarray(value)
        except ValueError:  # numpy's, for lists of unequal length
            raise place.error(
                name, "its values have unequal shapes: pad them to one shape, or leave it out"
            ) from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not supported(array.dtype):
        raise place.error(
            name,
            f"it has dtype {array.dtype}, which a table cannot hold: convert it to bool, an "
            "integer, float or complex dtype, or leave it out",
        )
    return array


class EpisodeChecker:
    """Turns dicts of arrays into episodes that fit one schema.

    Parameters
    ----------
    schema : Schema | None
        By default it is that of the first episode.
    missing_ends : "refuse" | "truncate"
        What becomes of an episode that is neither terminated nor truncated.
    drop_last : bool
        Give up the last step of a truncated episode if the observation after it is unknown.
    float_dtype : dtype, optional
        Of the floating fields of a schema that is taken from the first episode.
    """

    def __init__(
        self,
        schema: Schema | None,
        missing_ends: MissingEnds = "refuse",
        drop_last: bool = False,
        float_dtype: np.dtype[Any] | None = None,
    ) -> None:
        self.schema: Schema | None = None
        self._chosen = schema is not None
        self._nested: dict[Any, tree.Structure] = {}
        self._missing_ends, self._drop_last, self._float = missing_ends, drop_last, float_dtype
        if schema is not None:
            self._begin(schema)

    def _begin(self, schema: Schema) -> None:
        root = schema.structure
        assert root is not None
        self.schema = schema
        self._names = [name for name in root.keys if name not in ("terminated", "truncated")]
        self._nested = {
            name: child
            for name, child in zip(root.keys, root.children, strict=True)
            if name not in END_FIELDS
        }
        self._fits = [FieldValidator(field) for field in schema.fields]
        self.follows = any(field.next is not None for field in schema.fields)

    def episode(self, given: object, place: Place) -> Episode | None:
        """Check an episode; ``None`` if no step is left of it.

        Raises
        ------
        BadData
            Names the field that does not fit.
        """
        found = named(given, place)
        if not self._chosen and (others := [name for name in found if not self._wanted(name)]):
            raise place.error(
                others[0],
                "the first episode has no such field: give it in each episode, leave it out, or "
                "choose the fields with schema=",
            )
        values = {
            name: arrays(self._chosen_of(name, value), name, place)
            for name, value in found.items()
            if self._wanted(name)
        }
        for name in NEEDED if self.schema is None else self._names:
            if name not in values and not (name == "next_obs" and "obs" in values):
                raise place.error(
                    name, f"it is missing, there are {', '.join(map(str, values)) or 'none'}: "
                    f"give it as {' or '.join((name, *OTHER_NAMES.get(name, '').split()))}"
                )  # fmt: skip
        for name in values.keys() & self._nested.keys():
            values[name] = _arranged(values[name], self._nested[name], name, place)
        steps = self._steps_of(values, place)
        terminated, truncated = ends_of(values, steps, self._missing_ends, place)
        if isinstance(done := values.get("done"), np.ndarray) and not done.ndim:
            values["done"] = flags(done, "done", steps, place)
        following = self._following(values, steps, place)
        if self.schema is not None and "next_obs" in self._names:
            if following is None:
                raise place.error("next_obs", "it is missing, and the schema has it as a field")
            values["next_obs"] = following
        columns = {
            name: value
            for name, value in values.items()
            if name not in ("terminated", "truncated", "final_obs")
            and (name != "next_obs" or (self.schema is not None and "next_obs" in self._names))
        }
        _check_lengths(columns, steps, place)
        if self.schema is None:
            self._begin(_schema_of(columns, self._float))
        if following is None and self.follows and not terminated[-1]:
            if not self._drop_last:
                raise place.error(
                    "obs",
                    "the observation after the last step of a truncated episode is missing: give "
                    f"obs of {steps + 1} values for {steps} steps, or next_obs, or final_obs; or a "
                    "schema without next=, for a table that shows no next_obs",
                )
            following = tree.transform(columns["obs"], lambda leaf: leaf[1:])
            columns = tree.transform(columns, lambda leaf: leaf[:-1])
            terminated, truncated = terminated[:-1], truncated[1:]
            if not len(terminated):
                return None
        self._check_rewards(columns, place)
        fitted = self._fitted(columns, terminated, truncated, place)
        final = following if self.follows else None
        if final is not None:
            self._check_final(final, place)
        return Episode(fitted, final, terminated, truncated)

    def _chosen_of(self, name: str, value: Any) -> Any:
        """Leave out what a schema that was given leaves out."""
        if not self._chosen:
            return value
        return _within(value, self._nested.get("obs" if name in _OBSERVATIONS else name))

    def _wanted(self, name: str) -> bool:
        known = ("obs", "next_obs", "final_obs", "terminated", "truncated")
        return self.schema is None or name in self._names or name in known

    def _steps_of(self, values: Mapping[str, Any], place: Place) -> int:
        """Return the number of steps: that of any field but the observations."""
        others = [name for name in values if name not in ("obs", "next_obs", "final_obs")]
        order = [
            n
            for n in ("reward", "action", *others)
            if n in values and n not in ("terminated", "truncated")
        ]
        for name in (*order, "obs"):
            for leaf in _leaves(values.get(name, ())):
                if not leaf.ndim:
                    raise place.error(name, "it is one number: give an array [steps, ...]")
                if not len(leaf):
                    raise place.error(name, "it has no steps: leave the episode out")
                return len(leaf)
        raise place.error(None, "it has no fields: give arrays [steps, ...]")

    def _following(self, values: dict[str, Any], steps: int, place: Place) -> Any:
        """Return the observation after each step, and leave ``obs`` with one for each step."""
        obs = values.get("obs")
        given = [name for name in ("next_obs", "final_obs") if name in values]
        if obs is None or (isinstance(obs, tuple) and not obs):
            return None
        if all(leaf.ndim and len(leaf) == steps + 1 for leaf in _leaves(obs)):
            if given:
                raise place.error(
                    given[0],
                    f"obs has {steps + 1} values for {steps} steps, the last of which is the one "
                    f"after the episode: leave {given[0]} out",
                )
            values["obs"] = tree.transform(obs, lambda leaf: leaf[:-1])
            return tree.transform(obs, lambda leaf: leaf[1:])
        for name, leaf in _named_leaves("obs", obs):
            if not leaf.ndim or len(leaf) != steps:
                raise place.error(
                    name,
                    f"it has shape {leaf.shape} and the episode {steps} steps: give {steps} "
                    f"observations, or {steps + 1} with the one after the last step",
                )
        if len(given) > 1:
            raise place.error("final_obs", "next_obs has it already: leave final_obs out")
        if not given:
            return None
        value = _arranged(values[given[0]], tree.structure_of(obs), given[0], place)
        pairs = zip(_named_leaves(given[0], value), _leaves(obs), strict=True)
        if given[0] == "next_obs":
            for (name, leaf), before in pairs:
                self._check_linked(name, leaf, before, place)
            return value
        return tree.rebuild(
            tree.structure_of(obs),
            [_one_for_all(name, leaf, before, place) for (name, leaf), before in pairs],
        )

    def _check_linked(self, name: str, leaf: Array, before: Array, place: Place) -> None:
        if leaf.shape != before.shape:
            raise place.error(
                name, f"it has shape {leaf.shape}, and obs {before.shape}: give one for each step"
            )
        if self.schema is not None and not self.follows:
            return
        same = (leaf[:-1] == before[1:]) | ((leaf[:-1] != leaf[:-1]) & (before[1:] != before[1:]))
        if not same.all():
            at = int(np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))[0])
            raise place.error(
                name,
                f"that of step {at} is not the observation of step {at + 1}, so that these steps "
                "do not follow each other: give a schema with next_obs as a field of its own, "
                "without Field(next=...)",
            )

    def _check_rewards(self, columns: Mapping[str, Any], place: Place) -> None:
        for name, leaf in _named_leaves("reward", columns.get("reward", ())):
            if leaf.dtype.kind in "fc" and not np.isfinite(leaf).all():
                at = int(np.flatnonzero(~np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1))[0])
                raise place.error(
                    name, f"step {at} has {leaf[at]}: correct it, or leave the episode out"
                )

    def _fitted(
        self, columns: dict[str, Any], terminated: Bools, truncated: Bools, place: Place
    ) -> dict[str, Any]:
        """Return the columns in the schema's order, converted to its dtypes."""
        schema = self.schema
        assert schema is not None
        assert schema.structure is not None
        whole = {**columns, "terminated": terminated, "truncated": truncated}
        for field in schema.fields:
            if field.name in END_FIELDS and field.name in whole:
                said = flags(whole[field.name], field.name, len(terminated), place)
                whole[field.name] = said.reshape(len(said), *field.shape)
        try:
            leaves = schema.leaves({name: whole[name] for name in schema.structure.keys})
        except SchemaError as error:
            raise place.error(None, str(error)) from None
        fitted = []
        for fit, leaf in zip(self._fits, leaves, strict=True):
            try:
                fitted.append(np.ascontiguousarray(fit.column(leaf), fit.field.dtype))
            except SchemaError as error:
                raise place.error(fit.field.name, _about_it(fit.field.name, error)) from None
        steps: dict[str, Any] = schema.rebuild(fitted)
        return {name: value for name, value in steps.items() if name in self._names}

    def _check_final(self, final: Any, place: Place) -> None:
        assert self.schema is not None
        fits = [fit for fit in self._fits if fit.field.name.split(".")[0] == "obs"]
        for fit, leaf in zip(fits, _leaves(final), strict=True):
            try:
                fit.column(leaf[-1:])
            except SchemaError as error:
                name = fit.field.name
                text = _about_it(name, error)
                raise place.error(name, f"after the last step: {text}") from None


_OBSERVATIONS = ("obs", "next_obs", "final_obs")


def _within(value: Any, structure: tree.Structure) -> Any:
    """Return the parts of nested dicts that a structure has."""
    if not isinstance(structure, tree.Node) or not isinstance(value, Mapping):
        return value
    pairs = zip(structure.keys, structure.children, strict=True)
    return {key: _within(value[key], child) for key, child in pairs if key in value}


def _about_it(name: str, error: SchemaError) -> str:
    """Return the message of an error without the field's name, which the place says."""
    text = str(error)
    about = f"field {name!r} "
    return f"it {text.removeprefix(about)}" if text.startswith(about) else text


def _arranged(value: Any, structure: tree.Structure, name: str, place: Place) -> Any:
    """Return a value with its keys in the order of ``structure``: files keep them in another one.

    Raises
    ------
    BadData
        If it is nested differently.
    """
    try:
        made = tree.rebuild(structure, tree.leaves(value, structure))
        why = ""
    except tree.Misfit as error:
        made, why = None, f" ({error})"
    if tree.structure_of(made) == structure:
        return made
    other = "obs" if name in ("next_obs", "final_obs") else f"the table's {name}"
    raise place.error(name, f"it is nested differently from {other}{why}: give both alike")


def _leaves(value: Any) -> list[Array]:
    return list(tree.leaves(value, tree.structure_of(value)))


def _named_leaves(name: str, value: Any) -> Iterable[tuple[str, Array]]:
    structure = tree.structure_of(value)
    return zip(tree.names(structure, name), tree.leaves(value, structure), strict=True)


def _check_lengths(columns: Mapping[str, Any], steps: int, place: Place) -> None:
    for key, value in columns.items():
        for name, leaf in _named_leaves(key, value):
            if not leaf.ndim or len(leaf) != steps:
                held = f"{len(leaf)} values" if leaf.ndim else "one value"
                raise place.error(name, f"it has {held} for {steps} steps: give one for each step")


def _one_for_all(name: str, leaf: Array, before: Array, place: Place) -> Array:
    if leaf.shape not in (before.shape[1:], (1, *before.shape[1:])):
        raise place.error(
            name, f"it has shape {leaf.shape}, and one observation {before.shape[1:]}: give one"
        )
    return np.broadcast_to(leaf.reshape(before.shape[1:]), before.shape)


def _schema_of(columns: Mapping[str, Any], float_dtype: np.dtype[Any] | None) -> Schema:
    """Return the schema of an episode: its observations show what follows them."""
    from dataclasses import replace

    from async_loader.replay.arguments import schema_of_columns, storable

    ends = np.zeros(len(next(iter(_leaves(columns)))), np.bool_)
    schema = storable(schema_of_columns({**columns, "terminated": ends, "truncated": ends}))
    fields = []
    for field in schema.fields:
        if float_dtype is not None and field.dtype.kind == "f":
            field = replace(field, dtype=float_dtype)
        if field.name.split(".")[0] == "obs":
            field = replace(field, next="next_obs")
        fields.append(field)
    return Schema(schema.structure, tuple(fields))
