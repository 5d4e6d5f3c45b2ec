"""Ctrl-C at any point of a call that changes what a source with ``max_lag`` draws: after the call
is made again it draws the steps within the lag, and no other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from storm_rig import count_points, some_points, strike

from async_loader import Prioritized, ReplayBuffer
from async_loader.replay.buffer import parts_of
from async_loader.replay.samplers import Fifo, Sampler
from async_loader.replay.table.nonblocking_table import NonblockingTable
from async_loader.replay.table.sampler_session import SamplerSession

SCHEMA = {"x": "int64", "policy_version": "int64"}
MOST = 60


class Rig:
    """A table of which 1 and 2 are drawn, with a lag of 1, and 3 to 5 are early."""

    def __init__(self, sampler: Callable[[], Sampler]) -> None:
        prioritized = sampler().prioritized
        settings = {"sampler": Prioritized()} if prioritized else {}
        self.buffer = ReplayBuffer(30, SCHEMA, seed=0, **settings)
        self.table = NonblockingTable(parts_of(self.buffer))
        self.add(1, 2)
        self.session: SamplerSession = self.table.drawing(
            None, 0, 1, None, sampler(), max_lag=1, newest_of={"policy": 2}.get
        )
        self.add(1, 3, 2, 4, 5, 3)

    def add(self, *versions: int) -> None:
        made = np.array(versions)
        self.buffer.extend(x=made, policy_version=made)

    def versions(self) -> dict[int, int]:
        """The version of each step that the table holds, by id."""
        there = self.buffer.get(np.arange(200))
        return dict(zip(there["index"].tolist(), there["policy_version"].tolist(), strict=True))

    def check(self, newest: int) -> None:
        """Draw, and compare with what the table holds."""
        versions = self.versions()
        young = {one for one, v in versions.items() if newest - 1 <= v <= newest}
        lag = self.session._sampler
        assert lag.early == sum(v > newest for v in versions.values())
        assert lag.own_items.count == len(young)
        names = [field.name for field in self.session.schema.fields]
        count = len(young) if not lag.repeats else 40 * len(young)
        if young:
            drawn = self.session.arrays(count)[names.index("index")].tolist()
            assert set(drawn) == young
        if not lag.repeats:
            assert self.session.most(100) == len(young)


# the calls, and the newest version after them
CALLS: dict[str, tuple[Callable[[Rig], None], int]] = {
    "publish": (lambda rig: rig.session.publish(3), 3),
    "publish, and skip some": (lambda rig: rig.session.publish(5), 5),
    "delete": (lambda rig: rig.buffer.delete(np.array([0, 3, 4, 6])) and None, 2),
    "add": (lambda rig: rig.buffer.clear() or rig.add(2, 3, 4), 2),
}


@pytest.mark.parametrize("sampler", [Fifo, lambda: Prioritized(alpha=0.0)], ids=["fifo", "prio"])
@pytest.mark.parametrize(("call", "newest"), CALLS.values(), ids=CALLS)
def test_steps_within_the_lag_are_drawn_after_ctrl_c_anywhere(
    call: Callable[[Rig], None], newest: int, sampler: Callable[[], Sampler]
) -> None:
    call(Rig(sampler))  # what is imported or compiled is so from here on
    rig = Rig(sampler)
    total = count_points(lambda: call(rig))
    for at in some_points(total, MOST, seed=3):
        rig = Rig(sampler)
        struck = strike(lambda rig=rig: call(rig), at)
        if struck.raised is None:  # it took fewer points than the one that was counted
            continue
        assert isinstance(struck.raised, KeyboardInterrupt), struck
        call(rig)
        rig.check(newest)
        rig.add(newest + 1, newest, newest - 1)
        rig.check(newest)
        rig.session.publish(newest + 1)
        rig.check(newest + 1)


def test_a_run_that_begins_again_leaves_all_out_after_ctrl_c_anywhere() -> None:
    def call(rig: Rig) -> None:
        rig.session.publish(0)

    call(Rig(Fifo))
    first = Rig(Fifo)
    total = count_points(lambda: call(first))
    for at in some_points(total, MOST, seed=3):
        rig = Rig(Fifo)
        strike(lambda rig=rig: call(rig), at)
        call(rig)
        assert rig.session.most(100) == rig.session._sampler.early == 0
        assert rig.table.stale_by_reason == {"became_old": 0, "came_old": 0, "other_run": 8}
        rig.add(0, 5)  # 5: of an actor of the earlier run
        rig.session.publish(1)
        assert rig.session.most(100) == 1
        assert rig.table.stale_by_reason["other_run"] == 9
