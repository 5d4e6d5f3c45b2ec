"""Groups of a table of rollouts, for a trainer that does not say what it has trained."""

from __future__ import annotations

from typing import Any

from async_loader.lifecycle import Deadline, Patience
from async_loader.source import Ready

Groups = list[list[Any]]


class DrawnGroups:
    """Batches of a table, taken group by group.

    A batch counts as trained when more is asked for than it has. Until then a save of the table has
    its groups, which come again: so a trainer may read ahead of its saves.

    Parameters
    ----------
    table : Rollouts | RolloutsClient
    **wishes
        See `Rollouts.source`.
    """

    def __init__(self, table: Any, **wishes: Any) -> None:
        self.source = table.source(**wishes)
        self._schema = table.group_schema
        self._left: Groups = []
        self._lease: object = None

    def take(self, count: int, timeout_s: float | None) -> Groups:
        """Return the members of the next groups of a batch, at most ``count``; none at the end.

        A member is a dict of its fields, with ``index`` and ``lag``. Raises Timeout.
        """
        if not self._left:
            self.settle()
            patience = Patience(deadline=Deadline(timeout_s))
            plan = self.source.plan(self.source.batch_size, patience)
            if not isinstance(plan, Ready):
                return []
            self._lease, batch, ragged = plan.lease, plan.batch, self._schema.ragged
            names = batch.keys() & {"index", "lag", *ragged, *self._schema.small}
            self._left = [[] for _ in batch["prompt_index"]]
            for i, group in enumerate(batch["group"]):
                span = slice(*batch["offsets"][i : i + 2])
                member = {name: batch[name][span if name in ragged else i] for name in names}
                self._left[group].append(member)
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def settle(self) -> None:
        """The batch is trained, if all of it was taken."""
        if self._lease and not self._left:
            self.source.settle(self._lease)
