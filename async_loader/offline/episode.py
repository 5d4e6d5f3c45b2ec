"""One episode: the names of its fields, its steps, the observation after them, its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.offline.bad_data import Place
from async_loader.replay.arguments import schema_of_columns, storable
from async_loader.replay.array_types import Array, Bools, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.buffer import ReplayBuffer, shared_table
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.table.rebuild import in_order
from async_loader.schema import END_FIELDS, Schema


class DrawableSteps(NamedTuple):
    """The steps of a table that can be drawn, oldest first.

    Attributes
    ----------
    ids : int64 array [steps]
    episode : int64 array [steps]
        The number of the episode of each, from 0.
    flags : int64 array [steps]
        Those of row_format.py.
    rewards : array [steps] | None
        ``None`` for a table without a field ``reward`` of single numbers.
    """

    ids: Ids
    episode: Ids
    flags: Ids
    rewards: Array | None


def drawable_steps(table: ReplayBuffer) -> DrawableSteps:
    """Return the steps of a table by episode, also where its other steps are gone or to come.

    Raises
    ------
    ConfigError
        For a table of another process.
    """
    if not isinstance(table, ReplayBuffer):
        raise ConfigError(
            f"{type(table).__name__} is not a ReplayBuffer of this process: save() the table, and "
            "use ReplayBuffer.from_checkpoint()"
        )
    state = shared_table(table)
    if not state.ready:
        none = np.empty(0, np.int64)
        return DrawableSteps(none, none, none, None)
    with state.lock:
        state.check_open()
        state.catch_up()
        rows, storage = in_order(state.table), state.table.storage
        ids, heads = state.table.ids[rows], storage.heads()[rows]
        before, flags = heads[:, r.PREV // 8], heads[:, r.FLAGS // 8] % r.VERSION_ONE
        at = np.minimum(np.searchsorted(ids, before), max(0, len(ids) - 1))
        joined = (before >= 0) & (ids[at] == before) & (flags[at] & r.ENDS == 0)
        root = np.where(joined, at, np.arange(len(ids)))
        while not np.array_equal(further := root[root], root):
            root = further
        rewards = [
            storage.cell(i)[rows]
            for i, field in enumerate(storage.layout.schema.fields)
            if field.name == "reward" and field.shape == () and field.dtype.kind in "biuf"
        ]
    episode = np.unique(root, return_inverse=True)[1]
    return DrawableSteps(ids, episode, flags, rewards[0] if rewards else None)


def read_episodes(table: ReplayBuffer) -> Iterator[dict[str, Any]]:
    """Yield the episodes of a table as `from_episodes` takes them, without stacks, and with the
    observation after the last step if it is known.

    One that goes on, or whose later steps are gone, is truncated after the last step there is.

    Raises
    ------
    ConfigError
        For a table of another process, and for steps that went while they were read.
    """
    found = drawable_steps(table)
    if table.schema is None:
        return
    state, steps_alone = shared_table(table), ReadPlan.of(table.schema)
    order = np.argsort(found.episode, kind="stable")
    for places in np.split(order, np.cumsum(np.bincount(found.episode)))[:-1]:
        batch = state.these(found.ids[places], steps_alone)
        if gone := len(places) - len(batch["index"]):
            raise ConfigError(
                f"{gone} steps were overwritten while the table was "
                "read: let no writer add meanwhile, or save() it and read the checkpoint"
            )
        yield _columns(table.schema, batch, int(found.flags[places[-1]]))


def _columns(schema: Schema, batch: dict[str, Any], flags: int) -> dict[str, Any]:
    root = schema.structure
    assert root is not None
    leaves = schema.leaves({name: batch[name] for name in root.keys})
    newest = [
        leaf[:, -1] if field.stack > 1 else leaf
        for leaf, field in zip(leaves, schema.fields, strict=True)
    ]
    made: dict[str, Any] = schema.rebuild(newest)
    last, terminated = at_last(len(newest[0])), bool(flags & r.TERMINATED)
    made["terminated"] = last & terminated
    made["truncated"] = last & (bool(flags & r.TRUNCATED) or not flags & r.ENDS)
    shown = {field.next for field in schema.fields if field.next}
    if "obs" in made and len(shown) == 1 and (flags & r.AWAITS or not terminated):
        structure, after = tree.structure_of(made["obs"]), batch[shown.pop()]
        if tree.structure_of(after) == structure:
            pairs = tree.columns(structure, [made["obs"], after])
            final = [of[-1, -1] if of.ndim > one.ndim else of[-1] for one, of in pairs]
            made["obs"] = _joined(made["obs"], tree.rebuild(structure, final))
    return made


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
_AFTER = ("next_obs", "final_obs")


class Episode(NamedTuple):
    """An episode as `Writer.extend` takes it: its steps without their ends, and these."""

    steps: dict[str, Any]
    terminated: Bools
    truncated: Bools
    final_obs: Any


def episode_of(
    given: object, place: Place, schema: Schema | None, missing_ends: str, drop_last: bool
) -> Episode | None:
    """Return an episode of a dict of arrays; ``None`` if no step is left of it. The table checks
    the lengths, dtypes and shapes of its arrays.

    Parameters
    ----------
    schema : Schema | None
        Of the fields that are wanted; ``None``: all of them.
    missing_ends : "refuse" | "truncate"
        What becomes of an episode that is neither terminated nor truncated.
    drop_last : bool
        Give up the last step of a truncated episode if the observation after it is unknown.

    Raises
    ------
    BadData
        Names the field and the remedy.
    """
    if not isinstance(given, Mapping):
        raise place.error(
            None, f"it is a {type(given).__name__}: an episode is a dict of arrays [steps, ...]"
        )
    fields = {} if schema is None else _children(schema.structure)
    follows = schema is None or any(one.next is not None for one in schema.fields)
    after_too = ("obs", *_AFTER) if follows or "next_obs" in fields else ()
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = NAMES.get(str(key), str(key))
        if name in values:
            raise place.error(name, f"it is given twice, once as {key!r}: leave one of them out")
        if schema is None or name in (*fields, *END_FIELDS[:2], *after_too):
            structure = fields.get("obs" if name in _AFTER else name)
            values[name] = _arrays(value, name, structure, place)
    for name in [one for one in fields if one not in (*END_FIELDS, *_AFTER)] or NEEDED:
        if name not in values:
            names = " or ".join((name, *OTHER_NAMES.get(name, "").split()))
            there = ", ".join(values) or "none"
            raise place.error(name, f"it is missing, there are {there}: give it as {names}")
    steps = _steps_of(values, place)
    for name in values.keys() & {"info", "infos"}:  # of one more the first is that of the reset
        values[name] = tree.transform(
            values[name], lambda one: one[1:] if one.shape[:1] == (steps + 1,) else one
        )
    ends = {name: _ends(values.get(name), name, steps, place) for name in END_FIELDS}
    if not any(ends.values()):
        if missing_ends == "refuse":
            raise place.error(
                "truncated",
                f"the last of {steps} steps is neither terminated nor truncated: correct the data, "
                "or say missing_ends='truncate' (--missing-ends truncate) if the episode was cut "
                "off there",
            )
        ends["truncated"] = True
    terminated = ends["terminated"] or (ends["done"] and not ends["truncated"])
    after = _after(values, steps, follows, place)
    if after is not None and "next_obs" in fields:
        values["next_obs"] = after
    left_out = {"terminated", "truncated", *(() if "next_obs" in fields else _AFTER)}
    columns = {name: value for name, value in values.items() if name not in left_out}
    if after is None and follows and not terminated:
        if not drop_last:
            raise place.error(
                "obs",
                "the observation after the last step of a truncated episode is missing: give "
                f"obs of {steps + 1} values for {steps} steps, or next_obs, or final_obs; or a "
                "schema without next=, for a table that shows no next_obs",
            )
        if steps == 1:
            return None
        after, columns = _cut(columns["obs"], slice(1, None)), _cut(columns, slice(-1))
    last = at_last(len(np.atleast_1d(next(_leaves("", columns))[1])))
    final = None
    if follows and after is not None:
        rows = (len(last),)
        final = tree.transform(after, lambda one: np.broadcast_to(one[-1], rows + one.shape[1:]))
    return Episode(columns, last & terminated, last & ends["truncated"], final)


def at_last(steps: int) -> Bools:
    """Return True for the last step alone."""
    last: Bools = np.arange(steps) == steps - 1
    return last


def _children(structure: tree.Structure) -> dict[Any, tree.Structure]:
    return {} if structure is None else dict(zip(structure.keys, structure.children, strict=True))


def _arrays(value: Any, name: str, structure: tree.Structure, place: Place) -> Any:
    """Return (nested) arrays, without those that ``structure`` lacks; ``None`` lacks none."""
    if isinstance(value, Mapping | tuple):
        children = _children(structure)
        made = {
            key: _arrays(one, f"{name}.{key}", children.get(key), place)
            for key, one in (value.items() if isinstance(value, Mapping) else enumerate(value))
            if structure is None or key in children
        }
        return made if isinstance(value, Mapping) else tuple(made.values())
    try:
        array = tensors.to_array(value)
    except (ValueError, SchemaError) as error:  # of unequal length, or masked
        raise place.error(name, f"it is no array: {error}") from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _steps_of(values: Mapping[str, Any], place: Place) -> int:
    """Return the number of steps: that of any field but the observations and ends."""
    others = [name for name in values if name not in ("obs", *_AFTER, *END_FIELDS)]
    names = [name for name in ("reward", "action", *others, "done", "obs") if name in values]
    leaf = next((leaf for name in names for _, leaf in _leaves(name, values[name])), None)
    if leaf is None or not leaf.ndim or not len(leaf):
        raise place.error(next(iter(names), None), "it has no steps: give an array [steps, ...]")
    return len(leaf)


def _ends(value: Any, name: str, steps: int, place: Place) -> bool:
    """Return whether the last step has this end, which no other may have."""
    if value is None or (name == "done" and not isinstance(value, np.ndarray)):
        return False
    flags = np.asarray(value).reshape(-1)
    if len(flags) not in (1, steps) or not np.isin(flags, (0, 1)).all():
        raise place.error(
            name,
            f"it has shape {np.shape(value)} for {steps} steps, or values beside 0 and 1: give one "
            "bool for each step, or that of the last",
        )
    if flags[:-1].any():
        raise place.error(
            name,
            f"step {int(flags.argmax())} of {steps} ends the episode, and others follow it: give "
            "each episode by itself",
        )
    return bool(flags[-1])


def _after(values: dict[str, Any], steps: int, follows: bool, place: Place) -> Any:
    """Leave ``obs`` with one value for each step. Return that after each; ``None``: unknown."""
    obs, given = values.get("obs"), [name for name in _AFTER if name in values]
    if obs is None:
        return None
    whole = all(leaf.ndim and len(leaf) == steps + 1 for _, leaf in _leaves("obs", obs))
    if len(given) > 1 - whole:
        text = "the observation after the last step is there without it: leave "
        raise place.error(given[-1], f"{text}{given[-1]} out")
    if whole:
        values["obs"] = _cut(obs, slice(-1))
        return _cut(obs, slice(1, None))
    if not given:
        return None
    name = given[0]
    try:
        if name == "final_obs":
            return _joined(_cut(obs, slice(1, None)), values[name])
        linked = all(
            np.array_equal(before[1:], leaf[:-1], equal_nan=True)
            for before, leaf in tree.columns(tree.structure_of(obs), [obs, values[name]])
        )
    except (tree.Misfit, TypeError, ValueError) as error:
        raise place.error(
            name, f"it is built otherwise than obs ({error}): give both alike"
        ) from None
    if follows and not linked:
        raise place.error(
            name,
            f"its values are not those of obs one step later, so that the {steps} steps do not "
            "follow each other: give a schema with next_obs as a field of its own, without "
            "Field(next=...)",
        )
    return values[name]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    structure = tree.structure_of(value)
    return zip(tree.names(structure, name), tree.leaves(value, structure), strict=True)


def _cut(value: Any, rows: slice | int) -> Any:
    return tree.transform(value, lambda leaf: leaf[rows])


def _joined(steps: Any, final: Any) -> Any:
    """Return observations with one more at their end."""
    structure = tree.structure_of(steps)
    pairs = tree.columns(structure, [steps, final])
    return tree.rebuild(structure, [np.append(one, last[None], 0) for one, last in pairs])


def schema_of(episode: Episode, float_dtype: np.dtype[Any] | None) -> Schema:
    """Return the schema of an episode: its observations show what follows them."""
    ends = {"terminated": episode.terminated, "truncated": episode.truncated}
    schema = storable(schema_of_columns({**episode.steps, **ends}))
    fields = []
    for field in schema.fields:
        if float_dtype is not None and field.dtype.kind == "f":
            field = replace(field, dtype=float_dtype)
        linked = field.name.split(".")[0] == "obs"
        fields.append(replace(field, next="next_obs") if linked else field)
    return Schema(schema.structure, tuple(fields))
