"""Builds a user's batch from columns: nested as steps are, with ids of this client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tree
from async_loader.schema import Schema

SERVER_BITS = 48
"""Higher bits of an id are the number of its server; see `Connection.servers`. The first is 0."""


class BatchStructure:
    """Builds the batches of one schema.

    Parameters
    ----------
    schema : Schema
        Of a batch's rows, with ``index``.
    sequences : bool
        Whether a row is a sequence, whose ``step_index`` holds ids too.

    Attributes
    ----------
    shown : Schema
        Of the batches.
    ids : list of int
        Places of its fields that hold ids.
    """

    def __init__(self, schema: Schema, sequences: bool = False) -> None:
        self.schema = self.shown = schema
        names = [field.name for field in schema.fields]
        self.ids = [names.index(name) for name in ("index", "step_index")[: 1 + sequences]]
        root = schema.structure
        flat = type(root) is tree.Node and root.kind is dict and not any(root.children)
        self._names = root.keys if flat and root is not None else None

    def batch(self, columns: Sequence[npt.NDArray[Any]], server: int) -> dict[str, Any]:
        """Return the batch; ``server`` is the number of the server that gave its ids.

        Ids that can be written are changed in place: a batch in a slot is copied to a device from
        there.
        """
        if server:
            columns = list(columns)
            for place in self.ids:
                columns[place] = _ids_of(columns[place], server)
        if self._names is not None:
            return tree.fields(self._names, columns)
        batch: dict[str, Any] = tree.rebuild_batch(self.shown.structure, columns)
        return batch


def _ids_of(ids: npt.NDArray[np.int64], server: int) -> npt.NDArray[np.int64]:
    """Return ids as this client has them; -1, where there is no step, stays."""
    into = ids if ids.flags.writeable else ids.copy()
    return np.add(ids, server << SERVER_BITS, out=into, where=ids >= 0)


def local_ids(index: npt.NDArray[np.int64], server: int) -> npt.NDArray[np.bool_]:
    """Return which ids are of this server."""
    here: npt.NDArray[np.bool_] = index >> SERVER_BITS == server
    return here


def remote_ids(index: npt.NDArray[np.int64], server: int) -> npt.NDArray[np.int64]:
    """Return ids of this server as it gave them."""
    return index - (server << SERVER_BITS)
