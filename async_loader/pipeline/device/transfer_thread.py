"""The thread behind the train queue: passes each batch on, transferred."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from async_loader.errors import Broken, Closed, Timeout
from async_loader.lifecycle import Deadline, join
from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.train_queue import TrainQueue
from async_loader.source import END
from async_loader.stats import Meter

StreamerInput: TypeAlias = Any
"""A TrainQueue, or the Supply of what is done inline: its `get` gives outcomes and END."""


@dataclass(slots=True, eq=False)
class InFlight:
    """A copy that may still run, and the host memory that it reads."""

    event: Any
    host: Any


class TransferThread:
    """From the train queue to another queue.

    A batch that cannot be transferred is a Failure in its place; what ends the thread breaks the
    output.

    Parameters
    ----------
    train_queue : StreamerInput
        Closing it ends the thread.
    output : TrainQueue

    Attributes
    ----------
    output : TrainQueue
    meter : Meter
    opened : bool
        The thread has begun: the consumer may `send_here`.
    """

    def __init__(self, train_queue: StreamerInput, output: TrainQueue) -> None:
        self.meter = Meter()
        self.output = output
        self.opened = False
        self._train_queue = train_queue
        self._in_flight: deque[InFlight] = deque()
        self._thread = threading.Thread(target=self.run, name="async-loader-streamer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None) -> bool:
        """Wait until the thread has ended; whether it has. A device that hangs cannot be ended."""
        return join(self._thread, timeout_s)

    # -- the thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """The body of the thread."""
        try:
            self.open()
            self.opened = True
            self.output.wake()
            while self.step():
                pass
        except Closed:
            self.output.close()
        except BaseException as error:  # the top of a thread: forward, never die silently
            self._break(error)
        try:
            self.finish()
        except BaseException as error:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        broken = Broken(
            f"the copy to the device failed and cannot go on: {error!r}: build a new loader"
        )
        broken.__cause__ = error
        self.output.break_(broken)

    def step(self) -> bool:
        """Pass one item on; whether there may be another."""
        item = self._take()
        if item is END:
            self.output.end()
            return False
        if isinstance(item, Batch):
            seq, item = item.seq, self._send(item)
            self.meter.batches += 1  # before the batch can be taken, and the count be read
            item.seq = seq
        if item is not None:
            self.output.put(item.seq, item)
        return True

    def _take(self) -> Any:
        """The next item.

        Nothing stays in flight while this waits long: slots would be held for no reason.
        """
        while self._in_flight:
            try:
                return self._train_queue.get(Deadline(0.0))
            except Timeout:
                self._free_oldest()
        self.meter.wait()
        try:
            return self._train_queue.get(Deadline(None))
        finally:
            self.meter.work()

    # -- what becomes of a batch -------------------------------------------------------------------

    def open(self) -> None:
        """The thread begins."""

    def _send(self, batch: Batch) -> Batch | Failure:
        """Make the value of a batch."""
        raise NotImplementedError

    def send_here(self, batch: Batch) -> Batch | Failure:
        """As the thread does, in the consumer's thread: `Streamer` alone can."""
        raise NotImplementedError

    def _free_oldest(self) -> None:
        """Wait for the oldest transfer that is in flight."""

    def finish(self) -> None:
        """The thread ends."""

    def receive(self, batch: Batch) -> Any:
        """The value of a batch, in the consumer's thread. Does not wait."""
        return batch.value


class PinningThread(TransferThread):
    """The value of a batch is what a function makes of it, such as its copy in page-locked
    memory: for loaders that pin memory for no device.
    """

    def __init__(
        self,
        train_queue: StreamerInput,
        output: TrainQueue,
        hand_out: Callable[[Batch], Any],
        function: Callable[[Any], Any],
    ) -> None:
        super().__init__(train_queue, output)
        self._hand_out = hand_out
        self._function = function

    def _send(self, batch: Batch) -> Batch | Failure:
        try:
            batch.value = self._function(self._hand_out(batch))
        except Exception as error:  # of this batch alone, as far as can be known
            return Failure(error, lease=batch.lease)
        batch.detach()
        return batch
