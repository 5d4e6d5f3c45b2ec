"""The writer of a vector of environments: a stream for each, and what their resets do to the steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.errors import ConfigError, SchemaError
from async_loader.lifecycle import seconds_or_none
from async_loader.replay.arguments import positive
from async_loader.replay.fitting import Fit
from async_loader.replay.inserting import Inserter
from async_loader.replay.owner import Owner
from async_loader.replay.rows import TERMINATED, TRUNCATED
from async_loader.replay.stream_names import fresh_stream, stream_name
from async_loader.replay.tally import Tally
from async_loader.replay.writer import closed_writer
from async_loader.schema import Field

Bools = npt.NDArray[np.bool_]
_ENDS = ("terminated", "truncated")
_AUTORESETS = ("nextstep", "samestep", "disabled")
_REMEDY = "make it as vector_writer(envs), or with autoreset=envs.metadata['autoreset_mode']"


class VectorWriter:
    """Adds what a vector of environments returns, one stream for each. Made by `ReplayBuffer.vector_writer`.

    One thread at a time. A call of `append` adds a step of each environment, or of none: also where it is refused, times out
    or is interrupted by Ctrl-C. `steps` says which.

    Parameters
    ----------
    owner, inserter : Owner, Inserter
    envs : int | VectorEnv
    autoreset : str | gymnasium.vector.AutoresetMode | None
    streams : sequence of hashable | None

    Attributes
    ----------
    streams : list of hashable
        The names of the environments' streams.
    """

    def __init__(self, owner: Owner, inserter: Inserter, envs: Any, autoreset: Any, streams: Sequence[Hashable] | None) -> None:
        self._owner, self._in = owner, inserter
        self._count = count = positive("num_envs", getattr(envs, "num_envs", envs))
        self._mode = _mode_of(envs, autoreset)
        self.streams = [fresh_stream() for _ in range(count)] if streams is None else [stream_name(one) for one in streams]
        if len(self.streams) != count:
            raise ConfigError(f"{len(self.streams)} streams for {count} environments: one for each")
        if len(set(self.streams)) != count:
            raise ConfigError(f"streams={self.streams}: every environment needs a stream of its own")
        self._tally = Tally(owner)
        self._closed = False
        self._resetting: Bools = np.zeros(count, np.bool_)
        self._then: Bools | None = None  # what `_resetting` is if the call that is under way adds its steps

    @property
    def steps(self) -> int:
        """Steps that this writer has added, of all environments. It never falls."""
        return self._tally.steps

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
        next_obs : array or (nested) dict of arrays [envs, ...]
            What it returned. Stored where the schema has such a field; with ``Field(next=...)`` it is what the next call brings.
        terminated, truncated : bool array [envs]
        info : mapping, optional
            The infos that it returned; with same-step autoreset ``info["final_obs"]`` is needed.
        priority : float array [envs], optional
        timeout_s : float, optional
            How long to wait until the limiter lets the steps of all environments in at once; ``None``: as long as it takes.
        **fields
            Everything else: arrays ``[envs, ...]``. Where this is a table's first batch and there is no schema, a ``reward`` of
            float64, which Gymnasium makes of all rewards, becomes float32.

        Returns
        -------
        int64 array
            Ids of the steps that were added: all, but for those of environments that were only being reset, which
            with next-step autoreset is what the step after an episode's last does.

        Raises
        ------
        SchemaError
            As `ReplayBuffer.extend`; if the environments reset in another way than ``autoreset`` says; and with
            same-step autoreset if the final observations are not there.
        Timeout, WouldDeadlock
            Nothing was written: the call may be made again.
        ConfigError
            If the limiter can never let in so many at once.
        """
        if self._closed:
            raise closed_writer()
        self._settle()
        over, cut = self._ended("terminated", terminated), self._ended("truncated", truncated)
        ends = over | cut
        self._check_mode(ends, info)
        after = self._after(next_obs, ends, info)
        schema = self._owner.schema
        batch = {**fields, "terminated": over, "truncated": cut}
        known: tuple[str, ...] | None = None
        if schema is None:
            batch = {**_with_narrow_reward(batch), "next_obs": after}
        else:
            known = tuple(schema.structure.keys) if schema.structure is not None else ()
            if "next_obs" in known:
                batch["next_obs"] = after
            if "done" in known:
                batch.setdefault("done", over)
        keep, said = ~self._resetting, np.zeros(self._count, np.int64)
        for name, flag in zip(_ENDS, (TERMINATED, TRUNCATED), strict=True):
            if known is not None and name not in known:
                said += flag * batch.pop(name)
        linked = schema is not None and any(field.next is not None for field in schema.fields)
        if linked and not all(name in (known or ()) for name in _ENDS):
            raise SchemaError(
                "a schema with a next=... that a vector of environments writes has the fields terminated and truncated"
            )
        final = _pick(after, keep) if linked and ends[keep].any() else None
        then = ends & keep if self._mode == "nextstep" else self._resetting
        if not keep.any():  # a call that only resets
            self._resetting = then
            return np.empty(0, np.int64)
        streams: list[Hashable] = [stream for stream, kept in zip(self.streams, keep, strict=True) if kept]
        given = None if priority is None else _rows(priority)[keep]
        self._then = then
        ids = self._in.extend(_pick(batch, keep), streams, given, timeout_s, final, said[keep], ids=self._tally.begin, whole=True)
        self._resetting, self._then = then, None
        self._tally.end(len(ids))
        return ids

    def reset(self) -> None:
        """Say that ``envs.reset()`` was called: what comes next belongs to new episodes.

        The open episodes end where they are, as `ReplayBuffer.end_episode` without arguments ends them.
        """
        self._settle()
        if not self._closed:
            self._in.end_episodes(self.streams, None, TRUNCATED)
        self._resetting = np.zeros(self._count, np.bool_)

    def flush(self, timeout_s: float | None = None) -> None:
        """Do nothing: steps are in the table when `append` returns. Other writers have to wait for that."""
        seconds_or_none("timeout_s", timeout_s)

    def close(self) -> None:
        """End the open episodes, as `reset` does. May be called again; `append` raises Closed then."""
        if not self._closed:
            if not self._owner.foreign and not self._owner.closed:
                self.reset()
            self._closed = True

    def __enter__(self) -> VectorWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what was returned -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Find out whether the last call, if it was interrupted or refused, has added its steps."""
        then = self._then
        if self._tally.under_way and self._tally.settle() and then is not None:
            self._resetting = then
        self._then = None

    def _ended(self, name: str, values: Any) -> Bools:
        ended = np.asarray(_rows(values), np.bool_)
        if ended.shape != (self._count,):
            raise SchemaError(f"{name} has shape {list(ended.shape)} for {self._count} environments: one for each")
        return ended

    def _check_mode(self, ends: Bools, info: Mapping[str, Any] | None) -> None:
        """Raise SchemaError where the environments show that they do not reset as was said."""
        if self._mode == "nextstep" and (again := np.flatnonzero(ends & self._resetting)).size:
            raise SchemaError(
                f"environment {again[0]} ended twice in a row: it does not spend a step on its reset, as "
                f"autoreset='next_step' says: {_REMEDY}"
            )
        if self._mode == "samestep" or not ends.any():
            return
        shown = [row for row in np.flatnonzero(ends).tolist() if _final_of(info, row, None) is not None]
        if shown:
            raise SchemaError(
                f"info['final_obs'] shows that environment {shown[0]} was reset in the step that ended its episode, and this "
                f"writer was made for another autoreset mode: {_REMEDY}"
            )

    def _after(self, next_obs: Any, ends: Bools, info: Mapping[str, Any] | None) -> Any:
        """The observation after each step, also where ``next_obs`` is already that of the next episode."""
        if self._mode != "samestep" or not ends.any():
            return next_obs
        after = tree.transform(next_obs, _copied)
        structure = tree.structure_of(after)
        for row in np.flatnonzero(ends).tolist():
            final = _final_of(info, row, structure)
            if final is None:
                raise SchemaError(
                    f"environment {row} ended, and info['final_obs'] lacks its last observation: pass info=... as it is"
                )
            for leaf, value in zip(tree.leaves(after, structure), tree.leaves(final, structure), strict=True):
                leaf[row] = _rows(value)
        return after


def _mode_of(envs: Any, autoreset: Any) -> str:
    """How the environments reset: as is said here or, where it is not, by themselves."""
    metadata = getattr(envs, "metadata", None)
    own = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    if own is None and autoreset is None and hasattr(envs, "num_envs"):
        raise ConfigError(
            f"{type(envs).__name__} does not say how it resets (metadata['autoreset_mode']): give autoreset='next_step', "
            "'same_step' or 'disabled'"
        )
    said = "next_step" if autoreset is None and own is None else own if autoreset is None else autoreset
    if own is not None and _mode(own) != _mode(said):
        raise ConfigError(f"autoreset={autoreset!r}, and these environments say {own!r}: leave autoreset out")
    return _mode(said)


def _mode(autoreset: Any) -> str:
    """Gymnasium's AutoresetMode or a name of one, without case and underscores."""
    said = str(getattr(autoreset, "value", autoreset)).lower().replace("_", "").replace("-", "")
    if said not in _AUTORESETS:
        raise ConfigError(
            f"autoreset={autoreset!r}: 'next_step', 'same_step' or 'disabled', as envs.metadata['autoreset_mode'] says"
        )
    return said


def _final_of(info: Mapping[str, Any] | None, row: int, structure: tree.Structure) -> Any:
    """The last observation of one environment's episode, ``None`` where ``info`` does not have it.

    Gymnasium gives an array of objects; other vectors a list, or the arrays ``[envs, ...]`` of a batch. A mask beside it,
    ``_final_obs``, says for which environments it is meant.
    """
    for name in ("final_obs", "final_observation"):
        finals = None if info is None else info.get(name)
        if finals is None:
            continue
        mask = info.get(f"_{name}") if info is not None else None
        if mask is not None and not mask[row]:
            return None
        return _row_of(finals, row, structure)
    return None


def _row_of(finals: Any, row: int, structure: tree.Structure) -> Any:
    if not isinstance(finals, Mapping):
        return finals[row]
    if isinstance(structure, tree.Node):
        return {key: _row_of(finals[key], row, child) for key, child in zip(structure.keys, structure.children, strict=True)}
    return finals


def _with_narrow_reward(batch: dict[str, Any]) -> dict[str, Any]:
    reward = tensors.as_array(batch.get("reward"))
    if reward is None or reward.dtype != np.float64 or reward.ndim != 1:
        return batch
    return {**batch, "reward": Fit(Field((), np.dtype(np.float32), name="reward")).column(reward)}


def _rows(value: Any) -> npt.NDArray[Any]:
    array = tensors.as_array(value)
    return np.asarray(value) if array is None else array


def _copied(value: Any) -> npt.NDArray[Any]:
    return np.array(_rows(value))


def _pick(value: Any, keep: Bools) -> Any:
    return value if keep.all() else tree.transform(value, lambda leaf: _copied(leaf)[keep])
