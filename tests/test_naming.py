"""Short names for what a user handed in, for messages."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from async_loader.naming import describe


class Dataset:
    def __getitem__(self, i):
        return i

    def __call__(self):
        return 0

    def __repr__(self):
        raise AssertionError("a screenful")


def function():
    return 0


@pytest.mark.parametrize(
    ("obj", "text"),
    [
        (function, r"^function \(.*test_naming.py:\d+\)$"),
        (lambda: 0, r"^<lambda> \(.*test_naming.py:\d+\)$"),
        (Dataset().__getitem__, r"^Dataset\.__getitem__ \(.*test_naming.py:\d+\)$"),
        (Dataset(), r"^<Dataset>$"),
        (Dataset, r"^test_naming\.Dataset$"),
        (int, "^int$"),
        (operator.add, "add$"),
        ([1, 2].__getitem__, r"^list\.__getitem__$"),
        (functools.partial(Dataset().__getitem__, 3), r"^partial\(Dataset\.__getitem__ \(.*\), 3\)$"),
        (functools.partial(function, np.zeros(1000), "x" * 100), r"^partial\(function \(.*\), <ndarray>, 'x{56}\.\.\.\)$"),
        (np.zeros(1000), "^<ndarray>$"),
        ("text", "^'text'$"),
    ],
)
def test_things_have_short_names(obj, text):
    import re

    assert re.search(text, describe(obj)), describe(obj)
    assert len(describe(obj)) < 300
