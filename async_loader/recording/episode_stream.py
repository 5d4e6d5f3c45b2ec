"""One stream of steps: it remembers the observation before each, and ends episodes that are cut."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from async_loader import tensors, tree
from async_loader.errors import Timeout
from async_loader.recording.env_schema import NEXT, StepFields
from async_loader.table import Writer


def copied(value: Any) -> Any:
    """Return a copy of a (nested) observation or action: environments may write into the
    observation that they returned, and into the action that they are given.
    """
    return tree.transform(value, _copied)


def _copied(leaf: Any) -> Any:
    array = tensors.as_array(leaf)
    return leaf if array is None else np.array(array)


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

    def __init__(
        self,
        writer: Writer,
        fields: StepFields,
        stream: Hashable | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._writer, self._fields = writer, fields
        self._stream, self._timeout_s = stream, timeout_s
        self._obs: Any = None
        self._open = False

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
        fields, ends = self._fields, bool(terminated) or bool(truncated)
        obs, self._obs = self._obs, None
        step = {"obs": obs, "action": action, "reward": reward, **extra}
        if fields.stores_next:
            step[NEXT] = after
        try:
            self._writer.append(
                step,
                terminated=bool(terminated),
                truncated=bool(truncated),
                final_obs=after if ends and fields.linked else None,
                stream=self._stream,
                timeout_s=self._timeout_s,
            )
        except Timeout:
            self._obs = obs
            raise
        self._obs, self._open = None if ends else copied(after), not ends

    def cut(self) -> None:
        """End the episode that is under way as truncated, with its last observation."""
        if self._open:
            self._writer.end_episode(
                truncated=True,
                final_obs=self._obs if self._fields.linked else None,
                stream=self._stream,
                timeout_s=self._timeout_s,
            )
        self._obs, self._open = None, False
