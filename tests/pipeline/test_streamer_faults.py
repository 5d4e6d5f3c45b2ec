"""Interleavings of streamer, copy engine and consumer on the model of a device; and faults that
it must find.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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


class WaitsInTheStreamersThread(Streamer):
    """Wrong stream: the current stream of the streamer's thread is not the consumer's."""

    def _send(self, item: Any) -> Any:
        batch = super()._send(item)
        self._backend.wait(batch.device.event)
        return batch

    def _await(self, copy: Any) -> None:
        pass


class RecordsOnAnotherStream(Streamer):
    """Wrong stream: the event is not behind the copy."""

    def _hold(self, host: Any, in_flight: deque[InFlight]) -> Any:
        event = self._backend.record(self._backend.default)
        in_flight.append(InFlight(event, host))
        return event


class RemembersTheFirstStream(Streamer):
    """Wrong stream: the consumer has changed to another one."""

    first: Any = None

    def receive(self, batch: Any) -> Any:
        self.first = self.first or self._backend.current_stream()
        with self._backend.stream(self.first):
            return super().receive(batch)


class ReleaseAtEnqueue(Streamer):
    def _hold(self, host: Any, in_flight: deque[InFlight]) -> Any:
        event = self._backend.record()
        in_flight.append(InFlight(event, None))
        return event


class ReleasesWhatTheConsumerCopied(Streamer):
    """Lets go of the slots of the consumer's copies without a look at the device."""

    def _free_done(self, in_flight: deque[InFlight]) -> None:
        if in_flight is self._by_consumer:
            in_flight.clear()
        else:
            super()._free_done(in_flight)


class CopiesOnTheConsumersStream(Streamer):
    """Wrong stream: the block belongs to the side stream."""

    def send_here(self, batch: Any) -> Any:
        side, self._backend.side = self._backend.side, self._backend.current_stream()
        try:
            return super().send_here(batch)
        finally:
            self._backend.side = side


class UnregisterBeforeSync(Streamer):
    def finish(self) -> None:
        self._unregister()
        self._synchronize()
        self._in_flight.clear()


# -- a scenario for each fault, which the streamer as it is passes ---------------------------------


def consumer_is_faster_than_the_copy(rig: Rig) -> None:
    rig.make()
    rig.step()
    rig.receive()
    rig.run_consumer()


def consumer_changes_its_stream(rig: Rig) -> None:
    for consumer in (0, 1):
        rig.make()
        rig.step()
        rig.receive(consumer)
        rig.run_consumer(consumer)


def more_batches_than_copies_may_be_in_flight(rig: Rig) -> None:
    for _ in range(3):
        rig.make()
        rig.step()


def batch_is_dropped_under_a_pending_kernel(rig: Rig) -> None:
    rig.make()
    rig.step()
    rig.receive()
    rig.run_side()
    rig.drop()
    rig.make()
    rig.step()
    rig.run_side()
    rig.run_consumer()


def slot_is_given_back_while_the_copy_is_pending(rig: Rig) -> None:
    rig.make()
    rig.step()
    rig.run_side(0)


def end_comes_while_the_copy_is_pending(rig: Rig) -> None:
    rig.make()
    rig.step()


def consumer_copies_and_the_copy_is_pending(rig: Rig) -> None:
    rig.draw()
    rig.drop()
    rig.draw(2)


FAULTS: dict[type[Streamer], Callable[[Rig], None]] = {
    NoWaitEvent: consumer_is_faster_than_the_copy,
    EarlySlotReuse: more_batches_than_copies_may_be_in_flight,
    NoRecordStream: batch_is_dropped_under_a_pending_kernel,
    WaitsInTheStreamersThread: consumer_is_faster_than_the_copy,
    RecordsOnAnotherStream: consumer_is_faster_than_the_copy,
    RemembersTheFirstStream: consumer_changes_its_stream,
    ReleaseAtEnqueue: slot_is_given_back_while_the_copy_is_pending,
    UnregisterBeforeSync: end_comes_while_the_copy_is_pending,
    ReleasesWhatTheConsumerCopied: consumer_copies_and_the_copy_is_pending,
    CopiesOnTheConsumersStream: consumer_copies_and_the_copy_is_pending,
}


def _problems(kind: type[Streamer], scenario: Callable[[Rig], None]) -> list[str]:
    rig = Rig(kind)
    scenario(rig)
    return rig.problems()


@pytest.mark.parametrize(
    ("fault", "scenario"), FAULTS.items(), ids=[fault.__name__ for fault in FAULTS]
)
def test_a_seeded_fault_is_detected_where_the_streamer_passes(fault, scenario):
    assert _problems(fault, scenario)
    assert _problems(Streamer, scenario) == []


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
