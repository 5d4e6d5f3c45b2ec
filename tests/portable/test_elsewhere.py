"""On systems without Linux's interfaces the package is imported, and a client of a feeder works."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

PLAY = Path(__file__).with_name("play.py")


def play(*arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PLAY), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all works\n"


@pytest.mark.skipif(sys.platform == "linux", reason="for other systems")
def test_this_system_imports_the_package_and_is_told_what_needs_linux():
    play()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the feeder needs Linux")
@pytest.mark.parametrize("system", ["macos", "windows"])
def test_without_the_interfaces_of_linux_a_client_writes_samples_and_gets_weights(system: str):
    import msgspec

    from async_loader.feeder import connect
    from async_loader.feeder.serving import FeederProcess
    from async_loader.feeder.settings import ServerSettings

    settings = ServerSettings.from_plain({"replay": 1000})
    server = FeederProcess(msgspec.structs.replace(settings, bind="tcp://127.0.0.1:0"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with connect(server.address) as learner:
            learner.publish("policy", {"w": np.ones(1 << 19, np.float32)}, version=3)
            play(server.address, LIKE=system)
    finally:
        server.stop()
        thread.join()
        server.close()
