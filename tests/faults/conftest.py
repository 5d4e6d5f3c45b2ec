"""A named pipe for jobs that tell where they are."""

from __future__ import annotations

import pytest
from fault_rig import NamedPipe


@pytest.fixture
def told(tmp_path):
    pipe = NamedPipe(tmp_path)
    yield pipe
    pipe.close()
