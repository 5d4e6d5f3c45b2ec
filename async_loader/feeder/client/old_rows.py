"""What one client knows of published weights, and says of the rows that it is given."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from async_loader.schema import Schema

MOST_BEHIND, EVERY_S = 16, 60.0
_SUFFIX = "_version"
_log = logging.getLogger(__name__)


class OldRows:
    """What one client knows of published weights, and says of the rows that it is given.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.

    Attributes
    ----------
    newest : dict of str to int
        The newest version that this client has published or was given, by the weights' name.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.newest: dict[str, int] = {}
        self._schema: Schema | None = None
        self._places: list[tuple[int, str]] = []
        self._said_at = -math.inf

    def look(self, table: str, schema: Schema, columns: Sequence[npt.NDArray[Any]]) -> None:
        """Warn if a row of this batch is more than `MOST_BEHIND` versions behind."""
        if not self.newest:
            return
        if schema is not self._schema:
            self._places = [
                (place, field.name.removesuffix(_SUFFIX))
                for place, field in enumerate(schema.fields)
                if field.name.endswith(_SUFFIX) and not field.shape and field.dtype.kind in "iu"
            ]
            self._schema = schema
        for place, name in self._places:
            newest = self.newest.get(name)
            if newest is None:
                continue
            behind, now = newest - int(columns[place].min()), self._clock()
            if behind > MOST_BEHIND and now - self._said_at >= EVERY_S:
                self._said_at = now
                _log.warning(
                    "a batch of table %r has rows of weights %r that are %d versions behind "
                    "version %d, which is published: make the queue smaller, or leave old rows "
                    "out with source(max_lag=...)",
                    table, name, behind, newest,
                )  # fmt: skip
