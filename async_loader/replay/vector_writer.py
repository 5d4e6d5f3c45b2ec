"""The writer of a vector of environments: a stream for each, and the effect of their resets."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import Broken, Closed, ConfigError, SchemaError, Unsupported
from async_loader.lifecycle import ClosedAtExit
from async_loader.name_hints import describe, explain_wrong_attributes, explain_wrong_names
from async_loader.replay.array_types import Array, Bools
from async_loader.replay.episode_ends import Info, final_of, mode_of, with_time_limits
from async_loader.replay.stream_names import EachStream, fresh_stream, stream_name
from async_loader.replay.table.field_validator import FieldValidator
from async_loader.schema import Field, Schema
from async_loader.table import AutoReset, Ids, VectorEnv
from async_loader.validation import whole

_BOOL = np.dtype(np.bool_)
_ENDS = ("terminated", "truncated")
_MOST_ENVS = 1 << 20  # as many rows as a feeder takes at once
_REMEDY = "make it as vector_writer(envs), or with autoreset=envs.metadata['autoreset_mode']"


@explain_wrong_attributes
class VectorWriter(ClosedAtExit):
    """Adds the steps of a vector of environments, one stream for each.

    Made by ``vector_writer`` of a table.

    Threads: one at a time. A call of `append` adds a step of each environment, or of none if it is
    refused or times out.

    Parameters
    ----------
    writer : Writer
        Of a table, which this one closes. It can add rows all or none, by ``_extend_together``, and
        end the episodes of several streams, by ``_end_episodes``.
    envs : int | VectorEnv
    autoreset : str | gymnasium.vector.AutoresetMode | None
    streams : sequence of hashable | None

    Attributes
    ----------
    streams : list of hashable
        The names of the environments' streams.
    """

    def __init__(
        self,
        writer: Any,
        envs: int | VectorEnv,
        autoreset: AutoReset | None,
        streams: Sequence[Hashable] | None,
    ) -> None:
        self._writer = writer
        self._count = count = whole("envs", getattr(envs, "num_envs", envs), 1, _MOST_ENVS)
        self._mode = mode_of(envs, autoreset)
        if isinstance(streams, str) or not isinstance(streams, Iterable | None):
            raise ConfigError(f"streams={streams!r}: give a list with a name for each environment")
        self.streams = (
            [fresh_stream() for _ in range(count)]
            if streams is None
            else [stream_name(one) for one in streams]
        )
        if len(self.streams) != count:
            raise ConfigError(f"{len(self.streams)} streams for {count} environments: one for each")
        if len(set(self.streams)) != count:
            raise ConfigError(
                f"streams={self.streams}: every environment needs a stream of its own"
            )
        self._each = EachStream(self.streams)
        self._about = _About(None)
        self._closed = False
        self._none = bytes(count)  # of a bool for each environment, none of them true
        self._shape = (count,)
        self._none_ended: Bools = np.zeros(count, np.bool_)
        self._resetting = self._none_ended

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the table's first one if no schema was given."""
        schema: Schema | None = self._writer.schema
        return schema

    @property
    def steps(self) -> int:
        """Steps that this writer has added, of all environments."""
        steps: int = self._writer.steps
        return steps

    @explain_wrong_names
    def append(
        self,
        *,
        next_obs: object,
        terminated: object,
        truncated: object,
        info: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        priority: object = None,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> Ids | None:
        """Add one call of ``envs.step``: fields known before it, and what it returned, by name.

        Parameters
        ----------
        next_obs : array or (nested) dict of arrays [envs, ...]
            What it returned. Stored where the schema has such a field; with ``Field(next=...)`` it
            is what the next call brings.
        terminated, truncated : bool array [envs]
        info : mapping | sequence of mapping, optional
            The infos that it returned: of Gymnasium's vectors one dict, of Stable-Baselines3's one
            for each environment. With same-step autoreset the last observation of an episode,
            ``final_obs`` or ``terminal_observation``, is needed where it was truncated and a table
            shows or stores next observations; a terminated one that has none ends with its own
            observation once more. ``TimeLimit.truncated`` in the dict of an environment that ended
            says that it was truncated.
        priority : float array [envs], optional
        timeout_s : float, optional
            How long to wait until the limiter lets the steps of all environments in at once;
            ``None``: as long as it takes.
        **fields
            Everything else: arrays ``[envs, ...]``. Where this is a table's first batch and there
            is no schema, a ``reward`` of float64, which Gymnasium makes of all rewards, becomes
            float32.

        Returns
        -------
        int64 array | None
            Ids of the steps that were added (``None``: the table gives them elsewhere): all, but
            for those of environments that were only being reset, which with next-step autoreset is
            what the step after an episode's last does.

        Raises
        ------
        SchemaError
            As `ReplayBuffer.extend`; if the environments reset in another way than ``autoreset``
            says; if ``info`` is anything else; and with same-step autoreset if a last observation
            that is needed is not there.
        Timeout, WouldDeadlock
            Nothing was written: the call may be made again.
        ConfigError
            If the limiter can never allow the steps of all environments at once.
        """
        if self._closed:
            raise Closed("this writer was closed: get another from the buffer")
        over, cut = self._ended("terminated", terminated), self._ended("truncated", truncated)
        known: Info = None
        if info is not None:
            known = self._checked_info(info)
            over, cut = with_time_limits(over, cut, known)
        none = self._none
        goes_on = over.tobytes() == none and cut.tobytes() == none  # a third of what `any()` takes
        schema = self._writer.schema
        about = self._about
        if about.schema is not schema:
            about = self._about = _About(schema)
        after, ends = next_obs, self._none_ended
        if not goes_on:
            ends = over | cut
            self._check_mode(ends, known)
            try:
                after = self._after(next_obs, over, cut, known, fields)
            except (IndexError, TypeError, tree.Misfit):
                raise SchemaError(
                    "next_obs, and the last observations in info['final_obs'], are no arrays "
                    f"[{self._count}, ...] that are nested alike: give what envs.step returned"
                ) from None
        if schema is None:
            fields = {**_with_narrow_reward(fields), "next_obs": after}
        elif about.stores_next:
            fields["next_obs"] = after
        final = after if about.linked and not goes_on else None
        streams = self._each
        given = None if priority is None else tensors.to_array(priority)
        if self._resetting.tobytes() != none:
            keep = ~self._resetting
            ends = ends & keep
            rows = keep.nonzero()[0]
            if not len(rows):  # a call that only resets
                self._resetting = self._none_ended
                return np.empty(0, np.int64)
            try:
                final = None if final is None or not ends.any() else _pick(final, keep)
                fields, over, cut = _pick(fields, keep), over[keep], cut[keep]
                given = None if given is None else given[keep]
            except IndexError:
                raise SchemaError(
                    f"there are {self._count} environments, and a field or the priority has not "
                    f"one value for each: each is [{self._count}, ...]"
                ) from None
            streams = streams.some(rows)
        ids: Ids | None = self._writer._extend_together(
            fields,
            streams,
            terminated=over,
            truncated=cut,
            final_obs=final,
            priority=given,
            timeout_s=timeout_s,
        )
        self._resetting = ends if self._mode == "nextstep" else self._none_ended
        return ids

    @explain_wrong_names
    def reset(self, *, final_obs: object = None, mask: object = None) -> None:
        """Tell that ``envs.reset()`` was called: the next steps belong to new episodes.

        Parameters
        ----------
        final_obs : array [envs, ...] or (nested) dict of arrays, optional
            The observations before the reset: open episodes end with them, as truncated. Without
            them they end as `ReplayBuffer.end_episode` without arguments ends them.
        mask : bool array [envs], optional
            Which environments were reset (``options={"reset_mask": mask}``); all by default.
        """
        which = np.ones(self._count, np.bool_) if mask is None else self._ended("mask", mask)
        if not self._closed:
            self._end_episodes(np.flatnonzero(which).tolist(), final_obs)
        self._resetting = self._resetting & ~which

    def _end_episodes(self, rows: list[int], final_obs: object) -> None:
        """End the open episodes of these environments."""
        if final_obs is None or not _About(self._writer.schema).linked:
            self._writer._end_episodes([self.streams[row] for row in rows])
            return
        for row in rows:
            if not self._resetting[row]:
                final = tree.transform(final_obs, functools.partial(_row, row))
                self._writer.end_episode(final_obs=final, stream=self.streams[row])

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all steps that were added are in the table."""
        self._writer.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """End the open episodes, as `reset` does.

        May be called again; `append` raises Closed then.
        """
        if not self._closed:
            # The table has gone, or this is a fork of its process.
            with contextlib.suppress(Closed, Broken, Unsupported):
                self._writer._end_episodes(self.streams)
            self._writer.close(timeout_s)
            self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return (
            f"<VectorWriter envs={self._count} autoreset={self._mode!r} steps={self.steps} {state}>"
        )

    # -- what was returned -------------------------------------------------------------------------

    def _ended(self, name: str, values: object) -> Bools:
        if type(values) is np.ndarray and values.dtype is _BOOL and values.shape == self._shape:
            return values
        ended = np.asarray(tensors.to_array(values), np.bool_)
        if ended.shape != self._shape:
            raise SchemaError(
                f"{name} has shape {list(ended.shape)} for {self._count} environments: one for each"
            )
        return ended

    def _check_mode(self, ends: Bools, info: Info) -> None:
        """Raise SchemaError if the environments reset in another way than ``autoreset`` says."""
        if self._mode == "nextstep" and (again := np.flatnonzero(ends & self._resetting)).size:
            raise SchemaError(
                f"environment {again[0]} ended twice in a row: it does not spend a step on its "
                f"reset, as autoreset='next_step' says: {_REMEDY}"
            )
        if self._mode == "samestep":
            return
        shown = [
            row for row in np.flatnonzero(ends).tolist() if final_of(info, row, None) is not None
        ]
        if shown:
            raise SchemaError(
                f"info['final_obs'] shows that environment {shown[0]} was reset in the step that "
                f"ended its episode, and this writer was made for another autoreset mode: {_REMEDY}"
            )

    def _checked_info(self, info: object) -> Info:
        """Return the infos. Raises SchemaError for anything but one dict, or one for each
        environment.
        """
        if isinstance(info, Mapping):
            return info
        each = list(info) if isinstance(info, list | tuple | np.ndarray) else []
        if len(each) != self._count or not all(isinstance(one, Mapping) for one in each):
            raise SchemaError(
                f"info is {describe(info)}: give what envs.step returned, a dict, or a list of "
                f"dicts with one for each of the {self._count} environments"
            )
        return each

    def _after(
        self, next_obs: object, over: Bools, cut: Bools, info: Info, fields: Mapping[str, Any]
    ) -> Any:
        """Return the observation after each step, also if ``next_obs`` is already that of the next
        episode.
        """
        if self._mode != "samestep":
            return next_obs
        after = tree.transform(next_obs, _copied)
        structure = tree.structure_of(after)
        about, leaves = self._about, list(tree.leaves(after, structure))
        for row in (over | cut).nonzero()[0].tolist():
            final = final_of(info, row, structure)
            if final is None:
                if not about.shows_next:
                    continue
                if cut[row] and not over[row]:
                    raise SchemaError(
                        f"environment {row} was truncated, and info lacks its last observation, "
                        "info['final_obs']: pass info=... as it is; for environments that keep "
                        "none use a schema without next_obs and next=..., or say terminated where "
                        "nothing is to be bootstrapped"
                    )
                own = fields.get(about.observed)
                if own is None or tree.structure_of(own) != structure:
                    continue  # not stored, or refused for that
                final = tree.transform(own, functools.partial(_row, row))
            for leaf, value in zip(leaves, tree.leaves(final, structure), strict=True):
                last = tensors.to_array(value)
                if last.shape != leaf.shape[1:]:
                    raise SchemaError(
                        f"info['final_obs'] of environment {row} has shape {last.shape}, and "
                        f"next_obs {leaf.shape[1:]} for each environment: change both alike, for "
                        "example by a wrapper around the environments"
                    )
                leaf[row] = last
        return after


class _About:
    """What a schema says of the observations after steps.

    Raises
    ------
    SchemaError
        For a schema that shows them by links, and does not store how episodes end.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.schema = schema
        known = () if schema is None or schema.structure is None else schema.structure.keys
        self.stores_next = "next_obs" in known
        followed = [] if schema is None else [one for one in schema.fields if one.next is not None]
        # The field that next_obs follows.
        self.observed = followed[0].name.split(".")[0] if followed else "obs"
        self.linked = bool(followed)
        self.shows_next = schema is None or self.stores_next or self.linked
        if self.linked and not all(name in known for name in _ENDS):
            raise SchemaError(
                "a schema with a next=... that a vector of environments writes has the fields "
                "terminated and truncated"
            )


def _with_narrow_reward(batch: dict[str, Any]) -> dict[str, Any]:
    reward = tensors.as_array(batch.get("reward"))
    if reward is None or reward.dtype != np.float64 or reward.ndim != 1:
        return batch
    narrow = FieldValidator(Field((), np.dtype(np.float32), name="reward")).column(reward)
    return {**batch, "reward": narrow}


def _row(row: int, values: object) -> Any:
    return tensors.to_array(values)[row]


def _copied(value: object) -> Array:
    return np.array(tensors.to_array(value))


def _pick(value: object, keep: Bools) -> Any:
    return tree.transform(value, lambda leaf: tensors.to_array(leaf)[keep])
