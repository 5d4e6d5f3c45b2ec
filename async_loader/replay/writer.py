"""Writers: one for each stream, or for a vector of environments. They know how episodes end; the table does the rest."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.replay.arguments import one_of, positive
from async_loader.replay.inserting import Inserter
from async_loader.replay.owner import Owner
from async_loader.replay.rows import TERMINATED, TRUNCATED

_ENDS = ("terminated", "truncated")
_AUTORESETS = ("nextstep", "samestep", "disabled")
_numbers = itertools.count()


def fresh_stream() -> tuple[str, int]:
    """The name of a stream that nobody else has."""
    return ("writer", next(_numbers))


def pass_over(names: Iterable[Hashable]) -> None:
    """From now on `fresh_stream` makes none of these: a loaded table has them."""
    global _numbers
    taken = [name[1] for name in names if isinstance(name, tuple) and len(name) == 2 and name[0] == "writer"]
    least = max((one for one in taken if isinstance(one, int)), default=-1) + 1
    _numbers = itertools.count(max(next(_numbers), least))


class StreamWriter:
    """Appends the steps of one stream, in order. Made by `ReplayBuffer.writer`. One thread at a time."""

    def __init__(self, owner: Owner, inserter: Inserter, stream: Hashable) -> None:
        self._owner, self._in, self.stream = owner, inserter, stream

    def append(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: Any = False,
        truncated: Any = False,
        final_obs: Any = None,
        priority: float | None = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> int:
        """Add the stream's next step: what was observed, what was done, what it gave, and whether the episode ended with it.

        Parameters
        ----------
        terminated, truncated : bool
            Whether nothing comes after this step, or the episode was cut off after it. Stored too, where the schema (or
            the first step, if there is no schema) has fields of these names.
        final_obs : array or (nested) dict of arrays, optional
            The observation after the episode's last step.

        Returns
        -------
        int
            The step's id.

        Raises
        ------
        SchemaError, Timeout, WouldDeadlock
            As `ReplayBuffer.add`. Nothing was written.
        """
        values, schema, flags = dict(one_of(step, fields, "step")), self._owner.schema, 0
        known = _ENDS if schema is None else tuple(field.name for field in schema.fields)
        for name, flag, said in (("terminated", TERMINATED, terminated), ("truncated", TRUNCATED, truncated)):
            if name in known:
                values.setdefault(name, bool(said))  # the step says it
            elif said:
                flags |= flag
        return self._in.add(values, self.stream, flags, priority, timeout_s, final_obs)

    def end_episode(self, final_obs: Any = None, *, terminated: bool = False, truncated: bool = False) -> None:
        """See `ReplayBuffer.end_episode`."""
        if terminated and truncated:
            raise ConfigError("terminated and truncated: an episode ends in one way, give the one that counts")
        self._in.end_episode(self.stream, final_obs, TERMINATED if terminated else TRUNCATED)


class VectorWriter:
    """Adds what a vector of environments returns, one stream for each. Made by `ReplayBuffer.vector_writer`.

    Parameters
    ----------
    owner, inserter : Owner, Inserter
    num_envs : int
    autoreset : str | gymnasium.vector.AutoresetMode
    streams : sequence of hashable | None
    """

    def __init__(
        self, owner: Owner, inserter: Inserter, num_envs: int, autoreset: Any, streams: Sequence[Hashable] | None
    ) -> None:
        self._owner, self._in = owner, inserter
        self._count = positive("num_envs", num_envs)
        self._mode = _mode(autoreset)
        self.streams = list(streams) if streams is not None else [fresh_stream() for _ in range(num_envs)]
        if len(self.streams) != num_envs:
            raise ConfigError(f"{len(self.streams)} streams for {num_envs} environments: one for each")
        self._resetting = np.zeros(num_envs, np.bool_)

    def append(
        self,
        *,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        info: Mapping[str, Any] | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> npt.NDArray[np.int64]:
        """One call of ``envs.step``: what was known before it as fields, what it returned by name.

        Parameters
        ----------
        next_obs : array [envs, ...] or (nested) dict of arrays
            The observations that it returned. They are stored only where the schema (or, if there is none, the first
            step) has a field ``next_obs``; with ``Field(next=...)`` they are what the next call brings.
        terminated, truncated : bool array [envs]
        info : mapping, optional
            The infos that it returned; with same-step autoreset ``info["final_obs"]`` is needed.
        priority : float array [envs], optional
        **fields
            Everything else: arrays ``[envs, ...]``.

        Returns
        -------
        int64 array
            Ids of the steps that were added: all, but for those of environments that were only being reset, which
            with next-step autoreset is what the step after an episode's last does.

        Raises
        ------
        SchemaError
            As `ReplayBuffer.extend`; and with same-step autoreset if the final observations are not there.
        """
        ends = np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        if ends.shape != (self._count,):
            raise SchemaError(f"terminated and truncated have shape {ends.shape} for {self._count} environments: one for each")
        after = self._after(next_obs, ends, info)
        schema = self._owner.schema
        known = None if schema is None or schema.structure is None else schema.structure.keys
        batch = {**fields, "terminated": np.asarray(terminated, np.bool_), "truncated": np.asarray(truncated, np.bool_)}
        if known is None or "next_obs" in known:
            batch["next_obs"] = after
        keep, said = ~self._resetting, np.zeros(self._count, np.int64)
        for name, flag in zip(_ENDS, (TERMINATED, TRUNCATED), strict=True):
            if known is not None and name not in known:
                said += flag * batch.pop(name)
        linked = schema is not None and any(field.next is not None for field in schema.fields)
        final = _pick(after, keep) if linked and ends[keep].any() else None
        if schema is not None and linked and not all(name in (known or ()) for name in _ENDS):
            raise SchemaError(
                "a schema with a next=... that a vector of environments writes has the fields terminated and truncated"
            )
        picked = _pick(batch, keep)
        streams = [stream for stream, kept in zip(self.streams, keep, strict=True) if kept]
        ids = self._in.extend(
            picked, streams, None if priority is None else np.asarray(priority)[keep], timeout_s, final, said[keep]
        )
        self._resetting = ends & ~self._resetting if self._mode == "nextstep" else self._resetting
        return ids

    def _after(self, next_obs: Any, ends: npt.NDArray[np.bool_], info: Mapping[str, Any] | None) -> Any:
        """The observation after each step, also where ``next_obs`` is already that of the next episode."""
        if self._mode != "samestep" or not ends.any():
            return next_obs
        finals = None if info is None else info.get("final_obs", info.get("final_observation"))
        rows = np.flatnonzero(ends)
        if finals is None or any(finals[row] is None for row in rows):
            raise SchemaError(
                f"environment {rows[0]} ended, and info['final_obs'] lacks its last observation: pass info=... as it is"
            )
        after = tree.transform(next_obs, _copied)
        structure = tree.structure_of(after)
        for row in rows:
            for leaf, value in zip(tree.leaves(after, structure), tree.leaves(finals[row], structure), strict=True):
                leaf[row] = value
        return after


def _mode(autoreset: Any) -> str:
    """Gymnasium's AutoresetMode or a name of one, without case and underscores."""
    said = str(getattr(autoreset, "value", autoreset)).lower().replace("_", "").replace("-", "")
    if said not in _AUTORESETS:
        raise ConfigError(
            f"autoreset={autoreset!r}: 'next_step', 'same_step' or 'disabled', as envs.metadata['autoreset_mode'] says"
        )
    return said


def _copied(value: Any) -> npt.NDArray[Any]:
    array = tensors.as_array(value)
    return np.array(value if array is None else array)


def _pick(value: Any, keep: npt.NDArray[np.bool_]) -> Any:
    return value if keep.all() else tree.transform(value, lambda leaf: _copied(leaf)[keep])
