"""The views that readers of a table use."""

from __future__ import annotations

from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.wire import ErrorCode, View
from async_loader.replay.views import Transitions

MOST_STEPS, MOST_VIEWS = 1024, 64
"""Steps of an n-step return: an item exists only when that many steps have followed. Views are kept
as long as their table."""


class TableViews:
    """The views of one table, which bound each other's number.

    Parameters
    ----------
    table : str
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._used: set[Transitions | None] = set()

    def of(self, said: View | None) -> Transitions | None:
        """Return a view of the wire as the table's. Raises ConfigError; Malformed, LIMIT."""
        if said is None:
            return None
        if said.n > MOST_STEPS:
            text = f"a server sums up {MOST_STEPS} at most: no step is drawn before they followed"
            raise ConfigError(f"n_steps={said.n}: {text}")
        view = Transitions(n_steps=said.n, gamma=said.gamma, reward=said.reward)
        if view not in self._used and len(self._used) >= MOST_VIEWS:
            text = f"readers of table {self._table!r} use {MOST_VIEWS} views, which is the limit"
            raise Malformed(text, ErrorCode.LIMIT)
        return view

    def use(self, view: Transitions | None) -> None:
        """Count a view, which the table keeps."""
        self._used.add(view)
