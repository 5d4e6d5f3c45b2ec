"""A process that forks scripts, and a named pipe for jobs that tell where they are."""

from __future__ import annotations

import fault_rig
import pytest
from fault_rig import NamedPipe
from zygote import Zygote


@pytest.fixture(scope="session", autouse=True)
def zygote():
    """Before any test looks which processes there are."""
    fault_rig.zygote.append(Zygote())
    yield
    fault_rig.zygote.pop().close()


@pytest.fixture
def told(tmp_path):
    pipe = NamedPipe(tmp_path)
    yield pipe
    pipe.close()
