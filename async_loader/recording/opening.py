"""What a recorder writes with: its writer, streams of steps, and how all recorders end."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import Broken, Closed, ConfigError, Timeout, Unsupported
from async_loader.recording.env_schema import NEXT, StepFields
from async_loader.schema import Schema
from async_loader.table import Writer, is_table


def copied(value: Any) -> Any:
    """Return a copy of a (nested) observation or action: environments may write into the
    observation that they returned, and into the action that they are given.
    """
    return tree.transform(value, _copied)


def _copied(leaf: Any) -> Any:
    array = tensors.as_array(leaf)
    return leaf if array is None else np.array(array)


@dataclass(eq=False)
class EpisodeStream:
    """The steps of one environment, or of one agent.

    After a Timeout `add` may be called again; any other exception breaks the episode off.

    Parameters
    ----------
    writer : Writer
    fields : StepFields
    stream : hashable, optional
        By default the writer's own.
    timeout_s : float, optional
        How long each call waits for room.
    """

    writer: Writer
    fields: StepFields
    stream: Hashable | None = None
    timeout_s: float | None = None
    _obs: Any = None
    _open: bool = False

    @property
    def begun(self) -> bool:
        """Whether there is an observation that the next step starts from."""
        return self._obs is not None

    def begin(self, obs: Any) -> None:
        """Start an episode. End the one that is under way before."""
        self._obs, self._open = copied(obs), False

    def add(
        self,
        action: Any,
        reward: Any,
        after: Any,
        terminated: Any,
        truncated: Any,
        extra: Mapping[str, Any],
    ) -> None:
        """Add the step from the last observation to ``after``."""
        fields, ends = self.fields, bool(terminated) or bool(truncated)
        obs, self._obs = self._obs, None
        step = {"obs": obs, "action": action, "reward": reward, **extra}
        if fields.stores_next:
            step[NEXT] = after
        try:
            self.writer.append(
                step,
                terminated=bool(terminated),
                truncated=bool(truncated),
                final_obs=after if ends and fields.linked else None,
                stream=self.stream,
                timeout_s=self.timeout_s,
            )
        except Timeout:
            self._obs = obs
            raise
        self._obs, self._open = None if ends else copied(after), not ends

    def cut(self) -> None:
        """End the episode that is under way as truncated, with its last observation."""
        if self._open:
            self.writer.end_episode(
                truncated=True,
                final_obs=self._obs if self.fields.linked else None,
                stream=self.stream,
                timeout_s=self.timeout_s,
            )
        self._obs, self._open = None, False


GONE = (Closed, Broken, Unsupported)
"""Raised where an episode cannot be ended, and need not be: the table or the writer was closed
before, its process has died, or this is a fork of the writer's process.
"""

stream_numbers = itertools.count()
"""For recorders that write with one writer: steps of one stream follow each other, and those of two
environments do not.
"""


class Recording:
    """What all recorders have: values of the next step, a step that waits for room, and the end."""

    _extra: dict[str, Any]
    _pending: tuple[Any, Any, dict[str, Any]] | None = None
    """A step that the environment has made and the table has not taken yet."""
    _ended = False
    _writer: Any
    _fields: StepFields
    _owned: bool
    """The writer was made here, and is closed here."""
    env: Any

    def _open(self, given: object, make: str, whose: Any, schema: Schema, *own: str) -> None:
        """Begin to write, with what a table's method ``make`` returns, or what it has returned.

        ``whose``: the stream, or the environments. ``own``: see `StepFields`, which refuses a table
        that does not fit.

        Raises
        ------
        ConfigError
            If this is no table and no writer, or a writer of a table that has no schema.
        """
        writer: Any = given
        self._extra, self._owned = {}, is_table(given)
        if is_table(given):
            writer = getattr(given, make)(whose, schema=schema if given.schema is None else None)
        elif not (isinstance(given, Writer) if make == "writer" else hasattr(given, "streams")):
            raise ConfigError(
                f"{type(given).__name__} is no table, and not what table.{make}() returns: give "
                "one of the two"
            )
        elif writer.schema is None:
            raise ConfigError(
                "this writer's table has no schema yet: give the table itself, or make it with "
                "schema=async_loader.recording.schema_of(env)"
            )
        self._writer = writer
        try:
            self._fields = StepFields(writer.schema or schema, own)
        except BaseException:
            if self._owned:
                writer.close()
            raise

    def record(self, **fields: Any) -> None:
        """Give values of the next step that no environment knows: ``log_prob``, ``value``,
        ``policy_version``. Fields of the table that are not the recorder's own need this.

        Of a vector they are arrays ``[envs, ...]``, of several agents dicts by agents.
        """
        self._extra.update(fields)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when all steps are in the table, which may be elsewhere."""
        self._writer.flush(timeout_s)

    def close(self, **kwargs: Any) -> None:
        """End the episodes as truncated, `flush`, and close the environment."""
        try:
            if not self._ended:
                self._ended = True
                with contextlib.suppress(*GONE):
                    self._cut()
                # where the table was closed before, that has told what became of the steps
                with contextlib.suppress(Closed, Unsupported):
                    self._writer.flush()
                with contextlib.suppress(Closed, Unsupported):
                    if self._owned:
                        self._writer.close()
        finally:
            self.env.close(**kwargs)

    def _step(self, action: Any) -> Any:
        """Make a step of the environment unless one waits for room, and add it."""
        self._check_open()
        pending, self._pending = self._pending, None
        if pending is None:
            kept, extra = self._checked(action), self._extra
            pending = kept, self.env.step(action), extra
            self._extra = {}
        try:
            self._add(*pending)
        except Timeout:
            self._pending = pending
            raise
        return pending[1]

    def _checked(self, action: Any) -> Any:
        """Return a copy of the action, into which the environment may write, if a step may be
        made.
        """
        raise NotImplementedError

    def _add(self, action: Any, made: Any, extra: dict[str, Any]) -> None:
        """Add a step that the environment has made."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._ended:
            raise Closed("this recorder was closed: make another")

    def _cut(self) -> None:
        """End the episodes that are under way. A step that could not be added is given up."""
        raise NotImplementedError
