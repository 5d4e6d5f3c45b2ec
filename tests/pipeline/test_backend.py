"""What of the torch backends can be known without a device: views, page-locking through a stub
of the runtime, errors.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import numpy as np
import pytest
import torch

from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError
from async_loader.pipeline.device.cuda_backend import BlockViews, CudaBackend, backend_for
from async_loader.schema import Schema

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]


def test_views_of_a_block_are_the_arrays_of_the_batch():
    for dtype in DTYPES:
        layout = BatchLayout.contiguous(
            Schema.of(
                {
                    "a": ((3, 2), dtype),
                    "flag": ((), "bool"),
                    "empty": ((0, 4), "float32"),
                    "n": "int32",
                }
            ),
            5,
        )
        root = np.zeros(-(-layout.nbytes // 64) * 64, np.uint8)
        arrays = layout.views(root)
        for array in arrays:
            array[...] = np.arange(array.size).reshape(array.shape).astype(array.dtype)
        for view, array in zip(
            BlockViews.of(layout.regions).on(torch.from_numpy(root)), arrays, strict=True
        ):
            assert view.shape == array.shape
            assert np.array_equal(view.numpy(), array), dtype


@pytest.mark.parametrize("device", ["cuda:99", "xpu:99", "no such thing", object()])
def test_a_device_that_is_not_there_is_refused_before_anything_starts(device):
    with pytest.raises(ConfigError, match="use"):
        backend_for(device)


class Runtime:
    """libcudart, as far as page-locking goes: answers what it is told to."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.held, self.flags = list(codes), set(), set()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert size > 0
        self.flags.add(flags)
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            self.held.add(address)
        return code

    def cudaHostUnregister(self, address: int) -> int:
        if address not in self.held:
            return 713
        self.held.remove(address)
        return 0


class Stubbed(CudaBackend):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__(torch.device("cuda", 0))
        self.runtime, self.drained = runtime, 0

    def _drain(self) -> None:
        self.drained += 1


MEMORY = np.zeros(4 * 4096, np.uint8)


def stubbed(monkeypatch, *codes):
    backend = Stubbed(Runtime(*codes))
    cuda = SimpleNamespace(cudart=lambda: backend.runtime)
    monkeypatch.setattr("async_loader.pipeline.device.cuda_backend._cuda", lambda: cuda)
    return backend


def test_what_is_page_locked_is_released(monkeypatch):
    backend = stubbed(monkeypatch)
    assert backend.register(MEMORY)
    assert backend.runtime.held == {MEMORY.ctypes.data}
    assert backend.runtime.flags == {1}
    backend.unregister(MEMORY)
    assert not backend.runtime.held
    assert backend.drained == 0


def test_memory_that_cannot_be_page_locked_is_told_once_and_leaves_no_error(monkeypatch, caplog):
    backend = stubbed(monkeypatch, 2, 712)
    with caplog.at_level(logging.WARNING, "async_loader"):
        assert not backend.register(MEMORY)
        assert not backend.register(MEMORY)
    assert not backend.runtime.held
    assert backend.drained == 2
    assert [r.getMessage() for r in caplog.records] == [
        "batches are copied to cuda:0 from pageable memory, which is slower: "
        "cudaHostRegister of 16384 bytes failed with CUDA error 2"
    ]


def test_the_cuda_backend_uses_streams_and_events_of_torch_cuda_only(monkeypatch):
    """Spelled out because no test here can run it: which calls, on which stream, with which
    device.
    """
    cuda, streams = MagicMock(), [MagicMock(), MagicMock()]
    cuda.Stream.side_effect = streams
    monkeypatch.setattr("async_loader.pipeline.device.cuda_backend._cuda", lambda: cuda)
    device = torch.device("cpu", 0)  # so that tensors can be made
    backend = CudaBackend(device)
    backend.open()
    side, waits = streams
    cuda.set_device.assert_called_once_with(device)
    assert cuda.Stream.call_args_list == [call(device=device)] * 2  # the other one for waits
    cuda.set_stream.assert_called_once_with(side)
    cuda.Event.assert_called_once_with(blocking=True)  # the one that waits sleep by
    woken = cuda.Event.return_value

    root = np.arange(100, dtype=np.uint8)
    block = backend.upload(root, 70)
    assert block.shape == (128,)
    assert block[:70].tolist() == list(range(70))

    cuda.Event.return_value = MagicMock()
    event = backend.record()
    assert cuda.Event.call_args_list[1:] == [call()]
    event.record.assert_called_once_with(side)
    backend.wait(event)
    cuda.current_stream.assert_called_once_with(device)
    event.wait.assert_called_once_with(cuda.current_stream.return_value)
    tensor = MagicMock()
    backend.protect(tensor)
    tensor.record_stream.assert_called_once_with(cuda.current_stream.return_value)
    event.query.return_value = True
    backend.synchronize(event)
    woken.record.assert_not_called()
    event.query.return_value = False
    backend.synchronize(event)
    event.synchronize.assert_not_called()
    assert waits.mock_calls == [call.wait_event(event)]
    woken.record.assert_called_once_with(waits)
    woken.synchronize.assert_called_once_with()
    with torch.inference_mode(), backend.aside():
        assert not torch.empty(1).is_inference()
    cuda.stream.assert_called_once_with(side)
