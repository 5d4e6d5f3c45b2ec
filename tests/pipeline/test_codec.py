"""Objects on their way to a worker and back."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from async_loader.errors import CannotSend
from async_loader.pipeline import codec


def roundtrip(obj, **options):
    encoded = codec.encode(obj, **options)
    return codec.decode(
        encoded.head,
        [np.frombuffer(b, np.uint8) for b in encoded.buffers],
        [os.dup(fd) for fd in encoded.fds],
    )


def module_level(x):
    return x + 1


def test_lambdas_closures_and_local_classes_go_by_value():
    offset = 5

    class Local:
        def __call__(self, x):
            return x + offset

    assert roundtrip(lambda x: x + offset)(1) == 6
    assert roundtrip([Local(), functools.partial(module_level, 3)])[0](2) == 7


def test_by_value_sends_functions_of_main_whole():
    code = """if True:
        from async_loader.pipeline import codec
        def defined_later(x):
            return x + 1
        by_reference, by_value = codec.encode(defined_later).head, codec.encode(defined_later,
                by_value=True).head
        assert b"defined_later" in by_reference and len(by_reference) < 100 < len(by_value)
        del defined_later
        try:
            codec.decode(by_reference)
        except AttributeError:
            pass
        else:
            raise SystemExit("resolved")
        assert codec.decode(by_value)(2) == 3
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.tensor(3.5),
        torch.ones(4).bfloat16(),
        torch.ones(2).bfloat16().requires_grad_(),
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
    ],
    ids=["plain", "scalar", "bfloat16", "bfloat16 with gradient", "frozen parameter"],
)
@pytest.mark.parametrize("out_of_band", [False, True])
def test_tensors_travel_as_their_arrays(tensor, out_of_band):
    again = roundtrip({"t": tensor}, out_of_band=out_of_band)["t"]
    assert again.dtype == tensor.dtype
    assert again.shape == tensor.shape
    assert torch.equal(again, tensor.detach())
    assert (type(again), again.requires_grad) == (type(tensor), tensor.requires_grad)


class Unwilling:
    def __reduce__(self):
        raise RuntimeError("not me")


@pytest.mark.parametrize(
    ("obj", "name", "reason"),
    [
        (threading.Lock(), "<lock>", "lock"),
        (Unwilling(), "<Unwilling>", "not me"),
        (
            functools.partial(module_level, Unwilling()),
            r"partial\(.*module_level .*, <Unwilling>\)",
            "not me",
        ),
        ((i for i in ()), "<generator>|genexpr", "generator"),
        (open, None, None),
    ],
    ids=["lock", "unwilling", "partial", "generator", "builtin"],
)
def test_what_cannot_be_sent_is_named_with_the_reason(obj, name, reason):
    if name is None:
        assert roundtrip(obj) is obj
        return
    with pytest.raises(
        CannotSend, match=rf"({name}).* cannot be sent to a worker process: .*{reason}"
    ):
        codec.encode(obj)
