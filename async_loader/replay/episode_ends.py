"""How a step says that its episode ends: by fields, by flags, by the infos of a vector of
environments and how these reset, or by a call after it. And names that other libraries give to such
fields, which would be plain ones here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.replay.arguments import count_of
from async_loader.replay.array_types import Bools, Ids
from async_loader.replay.base.row_format import TERMINATED, TRUNCATED
from async_loader.replay.views import View
from async_loader.schema import END_FIELDS, Schema, kind_of

_BOOL = np.dtype(np.bool_)
_PLAIN = (bool, np.bool_, type(None))
_SURE = {
    **dict.fromkeys(("done", "terminal", "termination", "terminate", "terminated"), "terminated"),
    **dict.fromkeys(("truncation", "truncate", "truncated"), "truncated"),
}
_IF_BOOL = {
    **dict.fromkeys(("end", "ended", "ending", "last", "final", "over", "finished"), "terminated"),
    **dict.fromkeys(("timeout", "timelimit", "timedout"), "truncated"),
}
"""Words that may mean something else, such as a duration, in fields that are no bools."""
_AUTORESETS = ("nextstep", "samestep", "disabled")
Info: TypeAlias = Mapping[str, Any] | list[Mapping[str, Any]] | None
"""One dict for all environments, or a list with one for each."""
_FINALS = ("final_obs", "final_observation", "terminal_observation")
"""Names of last observations in ``info``: of Gymnasium, and of Stable-Baselines3's dicts."""


def how_ended(terminated: bool, truncated: bool) -> int:
    """Return the flag of an episode that ends after its last step; neither counts as truncated."""
    if terminated and truncated:
        raise ConfigError(
            "terminated and truncated: an episode ends in one way, give the one that counts"
        )
    return TERMINATED if terminated else TRUNCATED


class Ends:
    """How a writer's ``terminated`` and ``truncated`` become fields and flags of steps.

    Parameters
    ----------
    schema : Schema | None
        ``None``: unknown before the first step, which then gets fields of these names.

    Attributes
    ----------
    known : bool
        Whether the schema is known.
    stored : frozenset of str
        Which of `END_FIELDS` a step stores.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.known = schema is not None
        self._shapes: dict[str, tuple[int, ...]] = (
            {"terminated": (), "truncated": ()}
            if schema is None
            else {field.name: field.shape for field in schema.fields if field.name in END_FIELDS}
        )
        self.stored = frozenset(self._shapes)
        self._goes_on = {name: self._shaped(name, False) for name in self._shapes}

    def _shaped(self, name: str, ended: Any) -> Any:
        """Return what steps store in a field for a bool, or for one for each."""
        shape = self._shapes[name]
        return np.reshape(ended, (*np.shape(ended), *shape)) if shape else ended

    def into(self, step: dict[str, Any], terminated: object, truncated: object) -> int:
        """Add the missing fields to ``step``. Return the flags beside its fields.

        ``None`` is False; but a first step for which neither was said, and with a field that seems
        to say it under another name, gets no such fields: the table looks at those names then.
        """
        plain = type(terminated) in _PLAIN and type(truncated) in _PLAIN
        if plain and self.known and not (terminated or truncated):  # in a third of the time
            for name, value in self._goes_on.items():
                if name not in step:
                    step[name] = value
            return 0
        return self._into(step, terminated, truncated, False) or 0

    def into_columns(
        self, batch: dict[str, Any], terminated: object, truncated: object
    ) -> Ids | None:
        """As `into`, for many steps.

        Parameters
        ----------
        terminated, truncated : bool | bool array [rows] | None

        Returns
        -------
        int64 array [rows] | None
            The flags beside the fields; ``None``: no flags.
        """
        flags: Ids | None = self._into(batch, terminated, truncated, True)
        return flags

    def _into(
        self, values: dict[str, Any], terminated: object, truncated: object, many: bool
    ) -> Any:
        """As `into`, for one step or many; ``None``: no flags."""
        if not self.known and terminated is None and truncated is None and _says_end(values):
            return None
        flags = None
        for name, of, flag, said in (
            ("terminated", "terminated", TERMINATED, terminated),
            ("truncated", "truncated", TRUNCATED, truncated),
            ("done", "terminated", 0, terminated),
        ):
            given = False if said is None else said
            if name in self._shapes:
                if name not in values:
                    ended = _ended(of, given, count_of(values)) if many else _one_ended(of, given)
                    values[name] = self._shaped(name, ended)
            elif flag and given is not False:
                over = _ended(of, given, count_of(values)) if many else _one_ended(of, given)
                if np.count_nonzero(over):
                    flags = over * np.int64(flag) if flags is None else flags | over * flag
        return flags


def _says_end(step: dict[str, Any]) -> bool:
    return not any(name in END_FIELDS for name in step) and any(
        isinstance(name, str) and (kind := kind_of(value)) and _end_meant(name, kind[1])
        for name, value in step.items()
    )


def _one_ended(name: str, said: object) -> bool:
    try:
        return bool(said)
    except (ValueError, RuntimeError):  # numpy's and torch's, for several values
        raise SchemaError(
            f"{name}={said!r} for one step: give True or False, or use extend for many steps"
        ) from None


def _ended(name: str, said: object, count: int) -> Bools:
    """Return one bool for each of ``count`` steps, from one for all or one for each."""
    if said is False or said is True:
        return np.full(count, said)
    if type(said) is np.ndarray and said.dtype is _BOOL and said.shape == (count,):
        return said
    array = tensors.to_array(said)
    if array.ndim == 0:
        return np.full(count, bool(array))
    if array.size != count:
        raise SchemaError(
            f"{name} has shape {list(array.shape)} for {count} rows: one for each, or one for all"
        )
    ended: Bools = array.reshape(count).astype(np.bool_)
    return ended


def _end_meant(name: str, dtype: np.dtype[np.generic]) -> str | None:
    """Return the field that ``name`` seems to stand for: "terminated" for "dones", "is_terminal" or
    "episode_end", "truncated" for "truncations"; ``None`` for any other name.
    """
    word = re.sub("^(is|episode|ep)|s$|[^a-z]", "", name.lower())
    return _SURE.get(word) or (_IF_BOOL.get(word) if dtype == np.bool_ else None)


def check_end_names(schema: Schema, view: View | None) -> None:
    """Raise ConfigError for a field that looks like the end of an episode but is not, where steps
    are shown with those beside them: all episodes would be one.
    """
    linked = [field.name for field in schema.fields if field.linked]
    if (view is None and not linked) or any(one.name in END_FIELDS for one in schema.fields):
        return
    for field in schema.fields:
        meant = _end_meant(field.name, field.dtype)
        if meant is not None and field.dtype.kind in "biuf" and np.prod(field.shape) == 1:
            how = type(view).__name__ if view is not None else f"field {linked[0]!r}"
            raise ConfigError(
                f"field {field.name!r} ends no episode, and {how} shows steps with those beside "
                f"them: name it {meant!r}{' (or done)' * (meant == 'terminated')}, or add that "
                "field beside it"
            )


def with_time_limits(over: Bools, cut: Bools, info: Info) -> tuple[Bools, Bools]:
    """Return which environments terminated and which were truncated, also where both are said by
    one flag and the dict of an environment, as Stable-Baselines3 does.
    """
    if not isinstance(info, list):
        return over, cut
    limits = np.array([bool(one.get("TimeLimit.truncated", False)) for one in info])
    limits &= over
    return (over & ~limits, cut | limits) if limits.any() else (over, cut)


def final_of(info: Info, row: int, structure: tree.Structure) -> Any:
    """Return the last observation of one environment's episode, ``None`` if ``info`` lacks it.

    Gymnasium gives an array of objects; other vectors a list, or the arrays ``[envs, ...]`` of a
    batch, or a dict for each environment. A mask beside it, ``_final_obs``, says to which
    environments it applies.
    """
    if info is None:
        return None
    if isinstance(info, list):
        return next((info[row][name] for name in _FINALS if name in info[row]), None)
    for name in _FINALS:
        finals = info.get(name)
        if finals is None:
            continue
        mask = info.get(f"_{name}")
        if mask is not None and not mask[row]:
            return None
        return _row_of(finals, row, structure)
    return None


def _row_of(finals: Any, row: int, structure: tree.Structure) -> Any:
    if not isinstance(finals, Mapping):
        return finals[row]
    if isinstance(structure, tree.Node):
        return {
            key: _row_of(finals[key], row, child)
            for key, child in zip(structure.keys, structure.children, strict=True)
        }
    return finals


def mode_of(envs: object, autoreset: object) -> str:
    """Return how the environments reset: by ``autoreset`` or, without it, by their metadata."""
    metadata = getattr(envs, "metadata", None)
    own = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    if own is None and autoreset is None:
        who = (
            f"{type(envs).__name__} does not say how it resets (metadata['autoreset_mode'])"
            if hasattr(envs, "num_envs")
            else f"vector_writer({envs!r}): a number does not say how the environments reset"
        )
        raise ConfigError(
            f"{who}: give autoreset='next_step', 'same_step' or 'disabled'"
            f"{'' if hasattr(envs, 'num_envs') else ', or the environments in place of the number'}"
        )
    said = own if autoreset is None else autoreset
    if own is not None and _mode(own) != _mode(said):
        raise ConfigError(
            f"autoreset={autoreset!r}, and these environments say {own!r}: leave autoreset out"
        )
    return _mode(said)


def _mode(autoreset: object) -> str:
    """Return the name of Gymnasium's AutoresetMode, without case and underscores."""
    said = str(getattr(autoreset, "value", autoreset)).lower().replace("_", "").replace("-", "")
    if said not in _AUTORESETS:
        raise ConfigError(
            f"autoreset={autoreset!r}: 'next_step', 'same_step' or 'disabled', as "
            "envs.metadata['autoreset_mode'] says"
        )
    return said
