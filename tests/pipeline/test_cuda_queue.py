"""The hand-over between the streamer's thread and the consumer."""

from __future__ import annotations

import threading
import time
import weakref

import pytest
from waiting_rig import LIMIT_S

from async_loader.errors import Broken, Closed, Timeout
from async_loader.lifecycle import Deadline
from async_loader.pipeline.batch import Failure
from async_loader.pipeline.device.cuda_queue import CudaQueue
from async_loader.source import END

NOW = Deadline(0.0)


def test_items_come_in_their_order_and_are_counted():
    queue = CudaQueue()
    queue.put(1)
    queue.put(2)
    assert queue.depth == 2
    assert [queue.get(NOW), queue.get(NOW)] == [1, 2]
    assert queue.depth == 0


def test_an_urgent_item_overtakes_what_is_queued():
    queue = CudaQueue()
    failure = Failure(ValueError(), urgent=True)
    queue.put(1)
    queue.put_urgent(failure)
    assert [queue.get(NOW), queue.get(NOW)] == [failure, 1]


def test_end_is_reached_behind_the_items_and_stays_the_answer():
    queue = CudaQueue()
    queue.put(1)
    queue.put(END)
    assert queue.depth == 1
    assert [queue.get(NOW) for _ in range(3)] == [1, END, END]


def test_get_gives_up_at_its_deadline_and_loses_nothing():
    queue = CudaQueue()
    with pytest.raises(Timeout):
        queue.get(Deadline(0.01))
    queue.put(1)
    assert queue.get(NOW) == 1


def test_put_wakes_a_consumer_that_waits():
    queue, got = CudaQueue(), []
    consumer = threading.Thread(target=lambda: got.append(queue.get(Deadline(LIMIT_S))))
    consumer.start()
    queue.put(1)
    consumer.join(LIMIT_S)
    assert got == [1]


@pytest.mark.parametrize(
    ("end", "error"), [(CudaQueue.close, Closed), (lambda q: q.break_(Broken("gone")), Broken)]
)
def test_the_end_wakes_every_waiting_thread(end, error):
    queue, errors = CudaQueue(), []

    def consume() -> None:
        try:
            queue.get(Deadline(LIMIT_S))
        except (Closed, Broken) as raised:
            errors.append(type(raised))

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    start = time.monotonic()
    end(queue)
    for consumer in consumers:
        consumer.join(LIMIT_S)
    assert errors == [error] * 3
    assert time.monotonic() - start < LIMIT_S / 2


def test_close_drops_what_is_queued_and_what_comes_later():
    class Batch:
        pass

    queue = CudaQueue()
    batches = [Batch(), Batch(), Batch()]
    gone = [weakref.ref(batch) for batch in batches]
    queue.put(batches.pop())
    queue.put_urgent(batches.pop())
    queue.close()
    queue.close()
    queue.put(batches.pop())
    assert [ref() for ref in gone] == [None] * 3
    with pytest.raises(Closed):
        queue.get(NOW)


def test_a_broken_queue_says_why_every_time():
    queue = CudaQueue()
    queue.put(1)
    first = Broken("the device is lost")
    first.__cause__ = ValueError("why")
    queue.break_(first)
    queue.break_(Broken("later"))
    for _ in range(2):
        with pytest.raises(Broken, match="the device is lost") as raised:
            queue.get(NOW)
        assert isinstance(raised.value.__cause__, ValueError)
