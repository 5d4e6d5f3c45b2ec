"""The thread behind the train queue: passes each batch on, transferred."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from async_loader.errors import Broken, Closed, Timeout
from async_loader.lifecycle import Deadline, join
from async_loader.pipeline.batch import Batch, DeviceCopy, Failure, Wakeup
from async_loader.pipeline.device.cuda_queue import CudaQueue
from async_loader.source import END
from async_loader.stats import Meter


class StreamerInput(Protocol):
    """The streamer's end of the train queue."""

    def get(self, deadline: Deadline) -> Any:
        """An outcome, a Wakeup or END; raises Timeout and Closed."""


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
    output : CudaQueue

    Attributes
    ----------
    output : CudaQueue
    meter : Meter
    opened : bool
        The thread has begun: the consumer may `send_here`.
    tells : bool
        Wake the consumer when ``opened`` becomes true.
    """

    def __init__(self, train_queue: StreamerInput, output: CudaQueue) -> None:
        self.meter = Meter()
        self.output = output
        self.opened = self.tells = False
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
            if self.tells:
                self.output.put_urgent(Wakeup())
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
        if isinstance(item, Batch):
            sent = self._send(item)
            self.meter.batches += 1  # before the batch can be taken, and the count be read
            self.output.put(sent)
        elif isinstance(item, Wakeup) or (isinstance(item, Failure) and item.urgent):
            self.output.put_urgent(item)
        else:
            self.output.put(item)
        return item is not END

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

    def receive_late(self, copy: DeviceCopy | None) -> None:
        """Before a batch is handed out by another call than the one that found it, which was
        interrupted: the current stream may be another one by now.
        """
