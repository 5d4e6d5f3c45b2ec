"""One episode: the names of its fields, its steps, the observation after them, its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.offline.bad_data import Place
from async_loader.replay.arguments import schema_of_columns, storable
from async_loader.replay.array_types import Array, Bools, Floats, Ids
from async_loader.replay.base import row_format as r
from async_loader.replay.buffer import ReplayBuffer, shared_table
from async_loader.replay.table.rebuild import in_order
from async_loader.replay.table.storage import Storage
from async_loader.replay.views import Transitions
from async_loader.schema import END_FIELDS, Schema


class TableEpisodes(NamedTuple):
    """The steps of a table that can be drawn, by episode.

    Attributes
    ----------
    ids : int64 array [steps]
        Of the steps, oldest first.
    order : int64 array [steps]
        Places in ``ids``, episode after episode.
    starts : int64 array [episodes]
        Where each begins in ``order``.
    flags : int64 array [steps]
        Of ``ids``: those of row_format.py.
    sums : float64 array [episodes] | None
        Of rewards; ``None`` for a table without a field ``reward`` of single numbers.
    """

    ids: Ids
    order: Ids
    starts: Ids
    flags: Ids
    sums: Floats | None

    @property
    def counts(self) -> Ids:
        """Return the steps of each episode."""
        return np.diff(np.append(self.starts, len(self.ids)))


def episodes_of(table: ReplayBuffer) -> TableEpisodes:
    """Return the episodes of a table; parts of those whose other steps are gone or to come.

    Raises
    ------
    ConfigError
        For a table of another process, or without a schema.
    """
    if not isinstance(table, ReplayBuffer):
        raise ConfigError(
            f"{type(table).__name__} is not a ReplayBuffer of this process: save() the table, and "
            "use ReplayBuffer.from_checkpoint()"
        )
    state = shared_table(table)
    if not state.ready:
        none = np.empty(0, np.int64)
        return TableEpisodes(none, none, none, none, None)
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
        order = np.argsort(root, kind="stable")
        starts = np.flatnonzero(np.diff(root[order], prepend=-1))
        return TableEpisodes(ids, order, starts, flags, _sums(storage, rows[order], starts))


def _sums(storage: Storage, rows: Ids, starts: Ids) -> Floats | None:
    """Return the sum of the rewards of each episode."""
    for i, field in enumerate(storage.layout.schema.fields):
        if field.name == "reward" and field.shape == () and field.dtype.kind in "biuf":
            rewards: Floats = storage.cell(i)[rows].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):  # a sum may be infinite, or NaN
                return np.add.reduceat(rewards, starts) if len(starts) else rewards
    return None


def read_episodes(table: ReplayBuffer) -> Iterator[Episode]:
    """Yield the episodes of a table, each with the observation after its last step if it is known.

    One that goes on, or whose later steps are gone, is truncated after the last step there is.

    Raises
    ------
    ConfigError
        For a table of another process, and for steps that went while they were read.
    """
    found = episodes_of(table)
    schema = table.schema
    if schema is None:
        return
    steps_alone = None if table.view is None else Transitions()
    for places in np.split(found.order, found.starts[1:]) if len(found.starts) else ():
        batch = table.get(found.ids[places], view=steps_alone)
        if gone := len(places) - len(batch["index"]):
            raise ConfigError(
                f"{gone} steps were overwritten while the table was "
                "read: let no writer add meanwhile, or save() it and read the checkpoint"
            )
        yield _episode(schema, batch, int(found.flags[places[-1]]))


def _episode(schema: Schema, batch: dict[str, Any], flags: int) -> Episode:
    """Return an episode from its rows: without stacks, which a table makes."""
    root = schema.structure
    assert root is not None
    newest = [(slice(None), -1) if field.stack > 1 else slice(None) for field in schema.fields]
    leaves = schema.leaves({name: batch[name] for name in root.keys})
    steps = schema.rebuild([leaf[at] for leaf, at in zip(leaves, newest, strict=True)])
    final = None
    shown = [(f.next, at) for f, at in zip(schema.fields, newest, strict=True) if f.next]
    if (
        "obs" in steps
        and len({name for name, _ in shown}) == 1
        and (flags & r.AWAITS or not flags & r.TERMINATED)
    ):
        structure, after = tree.structure_of(steps["obs"]), batch[shown[0][0]]
        if tree.structure_of(after) == structure:
            leaves = list(tree.leaves(after, structure))
            final = [leaf[at][-1] for leaf, (_, at) in zip(leaves, shown, strict=True)]
            final = tree.rebuild(structure, final)
    rest = {name: one for name, one in steps.items() if name not in ("terminated", "truncated")}
    truncated = bool(flags & r.TRUNCATED) or not flags & r.ENDS
    return Episode(rest, final, bool(flags & r.TERMINATED), truncated)


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
_AFTER = ("next_obs", "final_obs")


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode, whose last step ends it.

    Attributes
    ----------
    steps : dict
        Arrays ``[steps, ...]``, nested as a step is, without ``terminated`` and ``truncated``.
    final : nested arrays | None
        The observation after the last step; ``None``: unknown.
    terminated, truncated : bool
    """

    steps: dict[str, Any]
    final: Any
    terminated: bool
    truncated: bool

    def __len__(self) -> int:
        return next(len(leaf) for _, leaf in _leaves("", self.steps))

    def finals(self) -> Any:
        """Return the final observation for each step, as `Writer.extend` takes it, or ``None``."""
        if self.final is None:
            return None
        return tree.transform(self.final, lambda one: np.broadcast_to(one, (len(self), *one.shape)))

    def columns(self) -> dict[str, Any]:
        """Return the episode as `from_episodes` takes it."""
        last = at_last(len(self))
        made = {**self.steps, "terminated": last & self.terminated}
        made["truncated"] = last & self.truncated
        if self.final is not None:
            made["obs"] = _joined(made["obs"], self.final)
        return made


def episode_of(
    given: object, place: Place, schema: Schema | None, missing_ends: MissingEnds, drop_last: bool
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
    shape = None if schema is None else schema.structure
    fields = {} if shape is None else dict(zip(shape.keys, shape.children, strict=True))
    follows = schema is None or any(one.next is not None for one in schema.fields)
    values: dict[str, Any] = {}
    for name, value in _named(given, place).items():
        if schema is not None:
            shown = name in ("obs", *_AFTER) and (follows or "next_obs" in fields)
            if name not in fields and name not in END_FIELDS[:2] and not shown:
                continue
            value = _within(value, fields.get("obs" if name in _AFTER else name))
        values[name] = _arrays(value, name, place)
    for name in [one for one in fields if one not in (*END_FIELDS, *_AFTER)] or NEEDED:
        if name not in values:
            names = " or ".join((name, *OTHER_NAMES.get(name, "").split()))
            there = ", ".join(values) or "none"
            raise place.error(name, f"it is missing, there are {there}: give it as {names}")
    steps = _steps_of(values, place)
    for name in values.keys() & {"info", "infos"}:
        values[name] = after_steps(values[name], steps)
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
    final = _cut(after, -1) if follows and after is not None else None
    return Episode(columns, final, terminated, ends["truncated"])


def at_last(steps: int) -> Bools:
    """Return True for the last step alone."""
    last: Bools = np.arange(steps) == steps - 1
    return last


def after_steps(value: Any, steps: int) -> Any:
    """Return infos of steps: of one more than there are steps the first is that of the reset."""
    return tree.transform(value, lambda one: one[1:] if np.shape(one)[:1] == (steps + 1,) else one)


def _named(given: object, place: Place) -> dict[str, Any]:
    """Return the fields of an episode under their names in a table."""
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


def _arrays(value: Any, name: str, place: Place) -> Any:
    if isinstance(value, Mapping):
        return {key: _arrays(one, f"{name}.{key}", place) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_arrays(one, f"{name}.{i}", place) for i, one in enumerate(value))
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
        structure = tree.structure_of(obs)
        for before, leaf in tree.columns(structure, [obs, values[name]]):
            wrong = ~((leaf[:-1] == before[1:]) | ((leaf[:-1] != leaf[:-1]) & np.isnan(before[1:])))
            for at in np.argwhere(wrong)[:1, :1].flat if follows else ():
                raise place.error(
                    name,
                    f"that of step {at} is not the observation of step {at + 1}, so that these "
                    "steps do not follow each other: give a schema with next_obs as a field of its "
                    "own, without Field(next=...)",
                )
    except (tree.Misfit, ValueError) as error:
        raise place.error(
            name, f"it is built otherwise than obs ({error}): give both alike"
        ) from None
    return values[name]


def _within(value: Any, structure: tree.Structure) -> Any:
    """Return nested values without those that ``structure`` lacks."""
    if structure is None or not isinstance(value, dict | tuple):
        return value
    children = dict(zip(structure.keys, structure.children, strict=True))
    if isinstance(value, dict):
        return {k: _within(one, children[k]) for k, one in value.items() if k in children}
    return tuple(_within(one, children.get(i)) for i, one in enumerate(value))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Array]]:
    structure = tree.structure_of(value)
    return zip(tree.names(structure, name), tree.leaves(value, structure), strict=True)


def _cut(value: Any, rows: slice | int) -> Any:
    return tree.transform(value, lambda leaf: leaf[rows])


def _joined(steps: Any, final: Any) -> Any:
    """Return observations with one more at their end."""
    structure = tree.structure_of(steps)
    pairs = tree.columns(structure, [steps, final])
    return tree.rebuild(structure, [np.concatenate([one, last[None]]) for one, last in pairs])


def schema_of(columns: Mapping[str, Any], float_dtype: np.dtype[Any] | None) -> Schema:
    """Return the schema of an episode: its observations show what follows them."""
    ends = dict.fromkeys(END_FIELDS[:2], at_last(len(next(_leaves("", columns))[1])))
    schema = storable(schema_of_columns({**columns, **ends}))
    fields = []
    for field in schema.fields:
        if float_dtype is not None and field.dtype.kind == "f":
            field = replace(field, dtype=float_dtype)
        linked = field.name.split(".")[0] == "obs"
        fields.append(replace(field, next="next_obs") if linked else field)
    return Schema(schema.structure, tuple(fields))
