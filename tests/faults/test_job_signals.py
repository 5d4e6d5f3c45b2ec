"""Signals that are sent to every process of a job: the program handles them, once, and its workers
go on.
"""

import multiprocessing
import os
import signal

import numpy as np
import pytest
from fault_rig import Batches, Script
from waiting_rig import until

from async_loader import AsyncDataLoader
from async_loader.feeder import connect

METHODS = ["fork", "spawn", "forkserver"]

BODY = """\
    import socket, subprocess, threading
    from async_loader import DataLoader

    NUMBERS = [getattr(signal, f"SIG{name}") for name in
               ("TERM", "INT", "HUP", "USR1", "USR2", "ALRM", "QUIT", "XCPU", "PROF")]

    def masks(i):
        lines = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
        return [line for line in lines.splitlines() if line[:6] in ("SigBlk", "SigIgn")]

    class Data:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            return masks(i)

    def handled(number, frame):
        say("handled", number, os.getpid())
        if number == signal.SIGUSR2:
            raise KeyboardInterrupt

    def jobs(n):
        return [functools.partial(masks, i) for i in range(n)]

    if __name__ == "__main__":
        for number in NUMBERS:
            signal.signal(number, handled)
        here, ours = socket.socketpair()
        ours.setblocking(False)
        signal.set_wakeup_fd(ours.fileno())
        # each fork is told of one, before its first line
        main = os.getpid()
        os.register_at_fork(
            after_in_child=lambda: os.kill(os.getpid(), signal.SIGUSR1))
        method, kind = sys.argv[1:]
        same = dict(num_workers=2, multiprocessing_context=method, collate_fn=list)
        make, source = (DataLoader, Data()) if kind == "data" else (AsyncDataLoader, jobs)
        loader = make(source, 2, **same)
        batches = iter(loader)
        seen = next(batches)
        engine = loader._engine
        core = engine._core if kind == "data" else engine.core
        # a fork server that ends while it starts a worker takes that one along
        while not all(handle.ready for handle in core.pool.handles):
            threading.Event().wait(0.01)
        for number in NUMBERS:
            seen += next(batches)
            try:
                os.killpg(0, number)
            except KeyboardInterrupt:
                say("raised")
        seen += next(batches)
        loader.close()
        signal.set_wakeup_fd(-1)
        say("replaced", loader.stats().workers_replaced)
        say("woken", len(here.recv(100)))
        # of those that no signal has ended
        say("masks", all(lines == masks(0) for lines in seen if lines))
"""


@pytest.mark.parametrize("kind", ["data", "async"])
@pytest.mark.parametrize("method", METHODS)
def test_a_signal_to_the_whole_job_is_handled_once_and_ends_no_worker(tmp_path, method, kind):
    with Script(tmp_path, BODY, method, kind) as script:
        pid = str(script.process.pid)
        for _ in range(9):
            assert script.read("handled")[1] == pid
        assert script.read("raised") == []
        assert script.read("replaced") == ["0"]
        assert script.read("woken") == ["9"], "workers wrote to the program's wake-up descriptor"
        assert script.read("masks") == ["True"], "programs that a worker starts handle signals"
        assert script.end() == (0, "")
        assert not script._lines, "a handler ran elsewhere"


@pytest.mark.parametrize("method", METHODS)
def test_what_multiprocessing_ends_at_a_programs_exit_ends_although_it_drops_sigterm(method):
    with AsyncDataLoader(Batches(), 4, num_workers=2, multiprocessing_context=method) as loader:
        next(loader)
        worker = next(p for p in multiprocessing.active_children() if "worker" in p.name)
        worker.terminate()
        # not asked before the loader's thread knows it: a fork server tells the first who asks
        until(lambda: loader.stats().workers_replaced)
        assert worker.exitcode == -signal.SIGKILL


def test_an_exit_code_that_a_fork_server_has_told_another_thread_is_not_made_up(caplog):
    settings = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    with AsyncDataLoader(Batches(), 4, **settings) as loader:
        next(loader)
        (worker, _) = loader._engine.core.pool.handles
        worker.process._popen.returncode = 255  # as multiprocessing does then
        os.kill(worker.pid, signal.SIGKILL)
        until(lambda: loader.stats().workers_replaced)
    assert f"{worker} ended; starting another" in caplog.text


def test_an_embedded_feeder_serves_on_when_its_job_is_told_to_end():
    with connect("embedded", tables={"replay": 100}) as client:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(client._embedded.pid, number)
        with client.table("replay").writer() as writer:
            writer.append(x=np.int64(1))
        process = client._embedded._process
    assert process.returncode == 0
