"""Freed memory that the C library keeps."""

from __future__ import annotations

import platform
import resource

import numpy as np
import pytest

from async_loader.shm.hugepages import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc learns")
def test_a_batch_after_the_first_needs_no_new_pages():
    keep_freed_memory()
    keep_freed_memory()
    np.ones(3 << 20, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(3 << 20, np.uint8)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    # one batch alone has this number of pages; without the setting twenty times that are fetched
    assert faults < 768
