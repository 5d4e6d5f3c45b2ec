"""DataLoader and the end of the program: Ctrl-C, a killed main process, a loader that no code
closed.
"""

from __future__ import annotations

import os
import signal

import pytest
from fault_rig import Script

BODY = """\
    from async_loader import DataLoader
    from async_loader.compat.torch import DataLoader as TorchLoader

    class Items:
        def __len__(self):
            return 1000

        def __getitem__(self, i):
            return blocked(i) if i >= 8 else i

    if __name__ == "__main__":
        door, kind = sys.argv[1:]
        if kind == "thread":
            process_hooks._EXIT_TIMEOUT_S = 1.0  # such workers block for ever
        if door == "torch":
            loader = TorchLoader(Items(), 4, num_workers=2)
        else:
            loader = DataLoader(Items(), 4, num_workers=2, worker_type=kind)
        batches = iter(loader)
        next(batches), next(batches)
        say("ready")
        if sys.argv[-1] != "leave":
            next(batches)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("door", "kind"), [("core", "process"), ("core", "thread"), ("torch", "process")]
)
def test_ctrl_c_ends_the_program(tmp_path, door, kind):
    with Script(tmp_path, BODY, door, kind) as script:
        script.read("ready")
        script.read("busy")
        os.killpg(script.process.pid, signal.SIGINT)
        code, err = script.end()
        assert code in (-signal.SIGINT, 130), err
        script.wait_until_gone()
        assert "KeyboardInterrupt" in err
        assert "async-loader-worker" not in err


@pytest.mark.parametrize("door", ["core", "torch"])
def test_no_worker_outlives_a_killed_main_process(tmp_path, door):
    with Script(tmp_path, BODY, door, "process") as script:
        script.read("ready")
        script.read("busy")
        script.process.send_signal(signal.SIGKILL)
        script.wait_until_gone()
        assert len(script.members()) <= 1


@pytest.mark.slow
def test_a_program_ends_in_the_middle_of_an_epoch(tmp_path):
    body = BODY.replace('!= "leave"', '== "never"')
    with Script(tmp_path, body, "core", "process") as script:
        code, err = script.end()
        assert (code, err) == (0, "")
        script.wait_until_gone()
