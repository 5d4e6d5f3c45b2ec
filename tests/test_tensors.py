"""Conversion of arrays to tensors and back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from async_loader import tensors

NUMERIC = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", NUMERIC)
def test_every_supported_dtype_goes_to_torch_and_back_on_the_same_memory(dtype):
    array = np.ones((2, 3), dtype)
    tensor = tensors.to_tensor(array)
    assert tensors.numpy_dtype(tensor.dtype) == array.dtype
    assert tensor.data_ptr() == array.ctypes.data
    assert tensors.to_numpy(tensor).ctypes.data == array.ctypes.data


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 3), (3, 0)])
def test_dtypes_that_numpy_lacks_survive_as_parts(dtype, shape):
    assert tensors.numpy_dtype(dtype) is None
    tensor = torch.rand(shape).to(dtype)
    again = tensors.from_parts(*tensors.to_parts(tensor))
    assert again.dtype == dtype
    assert tuple(again.shape) == shape
    assert torch.equal(again.float(), tensor.float())


def test_as_array_knows_arrays_numpy_scalars_and_tensors_only():
    assert tensors.as_array(np.float32(2)).shape == ()
    assert tensors.as_array(torch.ones(2)).tolist() == [1, 1]
    assert tensors.as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert all(
        tensors.as_array(value) is None
        for value in (1, 2.0, True, "x", None, [1], torch.ones(2).bfloat16())
    )


def test_a_read_only_array_is_copied_not_written_through():
    array = np.arange(3)
    array.flags.writeable = False
    tensors.as_tensor(array).zero_()
    assert array.tolist() == [0, 1, 2]


def test_asking_whether_something_is_a_tensor_does_not_import_torch():
    code = (
        "import sys; from async_loader import tensors; assert not tensors.is_tensor(3); assert "
        "'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


HALF = """
import os, sys, threading
from async_loader import tensors
from async_loader.schema import kind_of

importer = threading.Thread(target=__import__, args=("torch",))
threading.begun, threading.go = threading.Event(), threading.Event()
importer.start()
threading.begun.wait()
assert "torch" in sys.modules and not hasattr(sys.modules["torch"], "Tensor")
assert not tensors.is_tensor(1) and tensors.tensor_types() == ()
assert tensors.reduced(1) is NotImplemented
assert tensors.as_array([1]) is None and kind_of("a") is None
"""
SLOW_TORCH = """
import threading
threading.begun.set()
threading.go.wait()
threading.Event().wait(0.2)
class Tensor: pass
class nn: Parameter = Tensor
"""
WHOLE = (
    HALF
    + "threading.go.set(); importer.join(); import torch; assert tensors.is_tensor(torch.Tensor())"
)


def test_torch_counts_as_absent_while_another_thread_imports_it(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(SLOW_TORCH)
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{WHOLE}"],
        check=True,
        timeout=60,
    )
