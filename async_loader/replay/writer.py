"""The writer of one stream: it knows how episodes end, and counts what it has added."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader.errors import Closed, ConfigError
from async_loader.lifecycle import seconds_or_none
from async_loader.replay.arguments import one_of
from async_loader.replay.inserting import Inserter
from async_loader.replay.owner import Owner
from async_loader.replay.rows import TERMINATED, TRUNCATED
from async_loader.replay.staging import Ends
from async_loader.replay.tally import Tally
from async_loader.schema import Schema


class StreamWriter:
    """Appends the steps of one stream, in order. Made by `ReplayBuffer.writer`. One thread at a time.

    A call that Ctrl-C interrupts has added its step or has not, and `steps` says which.

    Attributes
    ----------
    stream : hashable
        The stream's name.
    """

    def __init__(self, owner: Owner, inserter: Inserter, stream: Hashable) -> None:
        self._owner, self._in, self.stream = owner, inserter, stream
        self._tally = Tally(owner)
        self._closed = False
        self._ends: tuple[Schema | None, Ends] = (None, Ends(None))

    @property
    def schema(self) -> Schema | None:
        """What a step is; ``None`` before the table's first one if no schema was given."""
        return self._owner.schema

    @property
    def steps(self) -> int:
        """Steps that this writer has added. It never falls."""
        return self._tally.steps

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
            the first step, if there is no schema) has fields of these names, and the step does not say it itself.
        final_obs : array or (nested) dict of arrays, optional
            The observation after the episode's last step.

        Returns
        -------
        int
            The step's id.

        Raises
        ------
        SchemaError, Timeout, WouldDeadlock, Closed
            As `ReplayBuffer.add`. Nothing was written.
        """
        if self._closed:
            raise closed_writer()
        values = fields if step is None else dict(one_of(step, fields, "step"))
        flags = self._how_it_ends().into(values, terminated, truncated)
        tally = self._tally
        name = self._in.add(values, self.stream, flags, priority, timeout_s, final_obs, tally.begin_one())
        tally.end_one()
        return name

    def extend(
        self,
        batch: Mapping[str, Any] | None = None,
        /,
        *,
        priority: Any = None,
        timeout_s: float | None = None,
        final_obs: Any = None,
        **fields: Any,
    ) -> npt.NDArray[np.int64]:
        """Add the stream's next steps. As `ReplayBuffer.extend`."""
        if self._closed:
            raise closed_writer()
        batch = one_of(batch, fields, "batch")
        ids = self._in.extend(batch, self.stream, priority, timeout_s, final_obs, ids=self._tally.begin)
        self._tally.end(len(ids))
        return ids

    def end_episode(self, final_obs: Any = None, *, terminated: bool = False, truncated: bool = False) -> None:
        """See `ReplayBuffer.end_episode`."""
        if terminated and truncated:
            raise ConfigError("terminated and truncated: an episode ends in one way, give the one that counts")
        self._in.end_episode(self.stream, final_obs, TERMINATED if terminated else TRUNCATED)

    def flush(self, timeout_s: float | None = None) -> None:
        """Do nothing: a step is in the table when `append` returns. Other writers have to wait for that."""
        seconds_or_none("timeout_s", timeout_s)

    def close(self) -> None:
        """End the open episode, as `end_episode` without arguments does. May be called again; `append` raises Closed then."""
        if not self._closed:
            if not self._owner.foreign and not self._owner.closed:
                self.end_episode()
            self._closed = True

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _how_it_ends(self) -> Ends:
        schema, ends = self._ends
        if schema is not self._owner.schema:
            schema = self._owner.schema
            ends = Ends(schema)
            self._ends = (schema, ends)
        return ends


def closed_writer() -> Closed:
    return Closed("this writer was closed: get another from the buffer")
