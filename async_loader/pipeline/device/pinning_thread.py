"""A thread that calls a function with each batch: for loaders that pin memory for no device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_loader.pipeline.batch import Batch, Failure
from async_loader.pipeline.device.cuda_queue import CudaQueue
from async_loader.pipeline.device.transfer_thread import StreamerInput, TransferThread


class PinningThread(TransferThread):
    """The value of a batch is what a function makes of it, such as its copy in page-locked
    memory.
    """

    def __init__(
        self,
        train_queue: StreamerInput,
        output: CudaQueue,
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
            return Failure(error, seq=batch.seq, lease=batch.lease)
        batch.detach()
        return batch
