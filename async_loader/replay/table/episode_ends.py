"""How a step says that its episode ends: by fields, by flags, or by a call after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, SchemaError
from async_loader.replay.arguments import count_of
from async_loader.replay.array_types import Bools, Ids
from async_loader.replay.base.row_format import TERMINATED, TRUNCATED
from async_loader.replay.end_names import end_meant
from async_loader.schema import END_FIELDS, Schema, kind_of

_BOOL = np.dtype(np.bool_)
_PLAIN = (bool, np.bool_, type(None))


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
        Which of the two a step stores.
    done : bool
        Whether a step stores ``done``.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.known = schema is not None
        self._shapes = (
            {"terminated": (), "truncated": ()}
            if schema is None
            else {field.name: field.shape for field in schema.fields if field.name in END_FIELDS}
        )
        self.stored = frozenset(self._shapes.keys() & {"terminated", "truncated"})
        self.done = "done" in self._shapes
        self._goes_on = [(name, self.value(name, False)) for name in self._shapes]

    def value(self, name: str, said: bool) -> Any:
        """Return what a step stores in a field for True or False, in the field's shape."""
        shape = self._shapes[name]
        return np.full(shape, said) if shape else said

    def _column(self, name: str, said: Bools) -> Bools:
        """As `value`, for many steps."""
        shape = self._shapes[name]
        return said.reshape(len(said), *shape) if shape else said

    def into(self, step: dict[str, Any], terminated: object, truncated: object) -> int:
        """Add the missing fields to ``step``. Return the flags beside its fields.

        ``None`` is False; but a first step for which neither was said, and with a field that seems
        to say it under another name, gets no such fields: the table looks at those names then.
        """
        flags = 0
        if (
            type(terminated) in _PLAIN
            and type(truncated) in _PLAIN
            and not (terminated or truncated)
        ):
            if self.known:  # as below, in a third of the time
                for name, value in self._goes_on:
                    if name not in step:
                        step[name] = value
                return flags
            if terminated is None and truncated is None and _says_end(step):
                return flags
        for name, flag, given in (
            ("terminated", TERMINATED, terminated),
            ("truncated", TRUNCATED, truncated),
        ):
            said = False if given is None else given
            if name in self.stored:
                if name not in step:
                    step[name] = self.value(name, said is not False and _one_ended(name, said))
            elif said is not False and _one_ended(name, said):
                flags |= flag
        if self.done and "done" not in step:
            step["done"] = self.value("done", _one_ended("terminated", terminated))
        return flags

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
        flags: Ids | None = None
        if not self.known and terminated is None and truncated is None and _says_end(batch):
            return flags
        for name, flag, given in (
            ("terminated", TERMINATED, terminated),
            ("truncated", TRUNCATED, truncated),
        ):
            said = False if given is None else given
            if name in self.stored:
                if name not in batch:
                    batch[name] = self._column(name, _ended(name, said, count_of(batch)))
            elif said is not False:
                ended = _ended(name, said, count_of(batch))
                if ended.tobytes().strip(b"\0"):
                    flagged = ended * np.int64(flag)
                    flags = flagged if flags is None else flags | flagged
        if self.done and "done" not in batch:
            ended = _ended("terminated", terminated is not None and terminated, count_of(batch))
            batch["done"] = self._column("done", ended)
        return flags


def _says_end(step: dict[str, Any]) -> bool:
    kinds = {name: kind for name, value in step.items() if (kind := kind_of(value)) is not None}
    return not any(name in END_FIELDS for name in step) and any(
        isinstance(name, str) and end_meant(name, dtype) for name, (_, dtype) in kinds.items()
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
