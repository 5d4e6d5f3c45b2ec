"""Interleavings of streamer, copy engine and consumer on the model of a device; and faults that
it must find.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from device_rig import Rig
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from async_loader.pipeline.device.streamer import Streamer
from async_loader.pipeline.device.transfer_thread import InFlight


class NoWaitEvent(Streamer):
    def _await(self, copy: Any) -> None:
        pass


class EarlySlotReuse(Streamer):
    """Makes room by letting go of the oldest copy instead of waiting for it."""

    def _free_oldest(self) -> None:
        self._in_flight.popleft()


class NoRecordStream(Streamer):
    def _protect(self, copy: Any) -> None:
        pass


class ReleaseAtEnqueue(Streamer):
    def _hold(self, host: Any, in_flight: deque[InFlight]) -> Any:
        event = self._backend.record()
        in_flight.append(InFlight(event, None))
        return event


FAULTS = [NoWaitEvent, EarlySlotReuse, NoRecordStream, ReleaseAtEnqueue]


# -- any order of events ---------------------------------------------------------------------------

ROWS, FORMS = st.integers(1, 5), st.sampled_from(["contiguous", "loose"])
MOVES = st.one_of(
    st.tuples(st.just("make"), ROWS, FORMS),
    st.tuples(st.just("send"), ROWS, FORMS),
    st.tuples(st.just("step")),
    st.tuples(st.just("receive"), st.integers(0, 1)),
    st.tuples(st.just("draw"), ROWS, FORMS, st.integers(0, 1)),
    st.tuples(st.just("drop")),
    st.tuples(st.just("run_side"), st.integers(1, 3)),
    st.tuples(st.just("run_consumer"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("change_ring")),
)


def _play(kind: type[Streamer], moves: list[tuple[Any, ...]]) -> list[str]:
    rig = Rig(kind)
    for name, *arguments in moves:
        getattr(rig, name)(*arguments)
    return rig.problems()


@given(st.lists(MOVES, max_size=40))
@settings(max_examples=300, deadline=None)
def test_what_the_consumers_kernels_read_is_what_was_written(moves):
    assert _play(Streamer, moves) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_interleavings_find_each_fault_by_themselves(fault):
    find(
        st.lists(MOVES, min_size=10, max_size=40),
        lambda moves: bool(_play(fault, moves)),
        settings=settings(
            max_examples=2000,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            derandomize=True,
        ),
    )
