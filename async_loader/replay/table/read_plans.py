"""The views of a table that batches are read by."""

from __future__ import annotations

from typing import Any

from async_loader.replay.base.row_format import LOOKAHEAD
from async_loader.replay.episode_ends import check_end_names
from async_loader.replay.read_plan import ReadPlan
from async_loader.replay.samplers import Sampler
from async_loader.replay.table.draw_checks import DrawChecks
from async_loader.replay.table.reader import ReplayReader
from async_loader.replay.table.table_state import TableState
from async_loader.replay.views import View, within


class ReadPlans(DrawChecks):
    """Works out how batches of a view are read, once for each view. Any thread.

    Parameters
    ----------
    table_state : TableState
    """

    def __init__(self, table_state: TableState) -> None:
        super().__init__(table_state)
        self._read_plans: dict[Any, ReadPlan] = {}
        # By the id of a read plan: one reader for each thread that samples at the same time.
        self._idle: dict[int, list[ReplayReader]] = {}

    def read_plan(
        self,
        view: View | None,
        sampler: Sampler | None = None,
        count: int = 0,
        min_size: int = 0,
    ) -> ReadPlan:
        """Return how batches of a view are read, by default the table's view.

        From here on the table keeps the successors that the view shows.

        Parameters
        ----------
        count : int
            Items that ``sampler`` is about to draw at once; 0: none.
        min_size : int
            Items that the table holds before any is drawn; 0: that does not matter.

        Raises
        ------
        ConfigError
            For a view that the table can never show, or never ``count`` items of at once. Then
            nothing is changed.
        """
        if view is None:
            view = self._table_state.view
        key = (view, sampler is not None and sampler.weighted)
        known = self._read_plans.get(key)
        if known is None:
            known = self._register(key, view, sampler, count, min_size)
        return known

    def _register(
        self,
        key: tuple[View | None, bool],
        view: View | None,
        sampler: Sampler | None,
        count: int,
        min_size: int,
    ) -> ReadPlan:
        table_state = self._table_state
        assert table_state.schema is not None
        if view is not table_state.view:  # a table that was loaded may show what it showed
            check_end_names(table_state.schema, view)
        shown = within(view, table_state.table.items.rows)
        read_plan = ReadPlan.of(table_state.schema, shown, weighted=key[1])
        with table_state.lock:
            if read_plan.lookahead > table_state.table.g[LOOKAHEAD]:
                table_state.catch_up()
                table_state.check_look_ahead(read_plan)
                if min_size:
                    self.check_size(min_size, read_plan.lookahead)
                if sampler is not None and count:
                    self._check_plan(sampler, count, min_size, read_plan.lookahead)
            table_state.look_ahead(read_plan)
            self._idle[id(read_plan)] = []
            return self._read_plans.setdefault(key, read_plan)
