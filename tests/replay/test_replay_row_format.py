"""Flags of rows have one meaning in the table, in its checkpoints and on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer
from async_loader.feeder.wire import codes
from async_loader.replay.base import row_format as r
from async_loader.replay.buffer import shared_table
from async_loader.replay.table.nonblocking_table import Incoming, NonblockingTable
from async_loader.testing.debug import debug_state


@pytest.mark.parametrize("name", ["TERMINATED", "TRUNCATED", "FINAL", "SHOWN"])
def test_a_flag_of_the_wire_is_that_of_the_table(name: str) -> None:
    assert getattr(r, name) == getattr(codes, name)


def test_a_shown_observation_does_not_mark_its_row_as_deleted() -> None:
    schema = {"obs": Field((), np.dtype(np.float32), next="next_obs")}
    buffer = ReplayBuffer(8, schema, seed=0)
    table = NonblockingTable(shared_table(buffer))
    stream = np.full(1, table.stream("s"))
    for flags in (0, r.FINAL | r.TRUNCATED | r.SHOWN):
        columns = [np.ones(1, np.float32)]
        assert (
            table.insert(Incoming(stream, np.full(1, flags), np.full(1, np.nan), columns), 0) == 1
        )
    heads = debug_state(buffer).state.table.storage.heads()[:2]
    assert (heads[:, r.FLAGS // 8] & r.DELETED == 0).all()
    assert (heads[1, r.FLAGS // 8] & r.FINAL) == r.FINAL
    assert buffer.sample(1)["next_obs"].tolist() == [1.0]
    buffer.close()
