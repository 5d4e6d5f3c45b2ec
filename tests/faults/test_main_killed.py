"""The loader's process is killed: no worker outlives it, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal

import pytest
from fault_rig import Script

pytestmark = pytest.mark.slow

METHODS = ("fork", "spawn", "forkserver")

MAIN = """\
    def source(state):
        jobs = {"idle": plain, "busy": busy, "blocked": blocked}[state]
        return Batches({i: jobs for i in range(8, 100)})

    def foreign(kind):
        '''A process forked later, with copies of all our descriptors; by Python, or in C.'''
        if kind == "python":
            pid = os.fork()
            while not pid:
                signal.pause()
        else:
            libc = ctypes.PyDLL(None)
            pid = libc.fork()
            while not pid:
                libc.pause()
        say("foreign", pid)

    if __name__ == "__main__":
        method, state, other = sys.argv[1:]
        loader = AsyncDataLoader(source(state), 4, num_workers=2, chunk_size=2,
                multiprocessing_context=method)
        batches = [next(loader), next(loader)]
        for handle in loader._engine.core.pool.handles:
            say("worker", handle.pid)
        if other != "alone":
            foreign(other)
        say("ready")
        while True:
            signal.pause()
"""


def left_in_shm():
    return {name for name in os.listdir("/dev/shm") if name.startswith("al-")}


@pytest.mark.parametrize(
    ("method", "state", "other"),
    [
        *((method, "idle", "alone") for method in METHODS),
        *((method, "blocked", "c") for method in METHODS),
        ("fork", "busy", "alone"),
        ("fork", "blocked", "python"),
    ],
)
def test_no_worker_outlives_a_killed_main_process_and_no_file_is_left(
    tmp_path, method, state, other
):
    before = left_in_shm()
    with Script(tmp_path, MAIN, method, state, other) as script:
        workers = {int(script.read("worker")[0]) for _ in range(2)}
        foreign = {int(script.read("foreign")[0])} if other != "alone" else set()
        script.read("ready")
        if state != "idle":
            assert {int(script.read("busy")[0]), int(script.read("busy")[0])} <= workers
        # The fork server and the resource tracker are multiprocessing's own; a foreign process
        # keeps those alive too.
        pythons = {
            pid
            for pid, command in script.members().items()
            if "forkserver" in command or "tracker" in command
        }
        script.process.send_signal(signal.SIGKILL)
        script.wait_until_gone(*foreign, *((pythons - workers) if foreign else ()))
        assert not workers & set(script.members())
        # the fork server's own folder is left where its process is killed
        assert [name for name in os.listdir(script.tmp) if not name.startswith("pymp-")] == []
        assert left_in_shm() <= before


def test_workers_that_have_not_started_yet_die_with_their_main_process_as_soon_as_they_start(
    tmp_path,
):
    """Killed after the process was made and before it runs a line of ours."""
    body = """\
        if __name__ == "__main__":
            method = sys.argv[1]
            loader = AsyncDataLoader(Batches(), 4, num_workers=4, multiprocessing_context=method)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    for method in METHODS:
        folder = tmp_path / method
        folder.mkdir()
        with Script(folder, body, method) as script:
            script.process.wait()
            script.wait_until_gone()
