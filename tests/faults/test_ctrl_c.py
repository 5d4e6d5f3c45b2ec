"""Ctrl-C, as a signal to the process and as a terminal sends it to the whole group: the program
ends by itself.
"""

from __future__ import annotations

import os
import signal
import weakref

import pytest
from fault_rig import Script

from async_loader import process_hooks

INTERRUPTED = (-signal.SIGINT, 130)


def interrupt(script, whole_group=True):
    (os.killpg if whole_group else os.kill)(script.process.pid, signal.SIGINT)


def assert_ended(script):
    code, err = script.end()
    assert code in INTERRUPTED, err
    script.wait_until_gone()
    assert "KeyboardInterrupt" in err
    assert "Process async-loader-worker" not in err, "a worker printed a traceback of its own"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "whole_group"),
    [("fork", False), ("fork", True), ("spawn", True), ("forkserver", True)],
)
def test_ctrl_c_in_next(tmp_path, method, whole_group):
    body = """\
        if __name__ == "__main__":
            source = Batches({0: blocked, 2: blocked})
            with AsyncDataLoader(source, 4, num_workers=2, chunk_size=2,
                    multiprocessing_context=sys.argv[1]) as loader:
                say("ready")
                next(loader)
    """
    with Script(tmp_path, body, method) as script:
        script.read("ready")
        # both, because the fork server's children print what ends them before they are workers
        for _ in range(2):
            script.read("busy")
        interrupt(script, whole_group)
        assert_ended(script)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ctrl_c_in_the_constructor_with_half_of_the_workers_born(tmp_path, method):
    body = """\
        class Slow:
            calls = 0

            def reader(self):
                Slow.calls += 1
                if Slow.calls == 3:  # one for the schema, one for each worker
                    say("constructing")
                    threading.Event().wait()

            def plan(self, batch_size, patience):
                return END

            def update_priorities(self, index, priority):
                pass

            def waiting_for(self):
                pass

        if __name__ == "__main__":
            AsyncDataLoader(Slow(), 4, num_workers=2, multiprocessing_context=sys.argv[1])
    """
    with Script(tmp_path, body, method) as script:
        script.read("constructing")
        interrupt(script)
        assert_ended(script)


def test_ctrl_c_that_is_caught_while_next_waits_loses_no_batch(tmp_path):
    body = """\
        gate = os.path.join(os.environ["TMPDIR"], "gate")
        os.mkfifo(gate)

        def wait(i):
            say("busy")
            os.close(os.open(gate, os.O_RDONLY))
            return plain(i)

        with AsyncDataLoader(Batches({4: wait}), 4, num_workers=2, prefetch=1,
                multiprocessing_context="fork") as loader:
            got = [first(next(loader))]
            for _ in range(3):
                try:
                    say("ready")
                    next(loader)
                except KeyboardInterrupt:
                    say("caught")
            os.close(os.open(gate, os.O_WRONLY))
            got += [first(next(loader)) for _ in range(3)]
        say("got", *got)
    """
    with Script(tmp_path, body) as script:
        script.read("busy")
        for _ in range(3):
            script.read("ready")
            interrupt(script)
            script.read("caught")
        assert script.read("got") == ["0", "4", "8", "12"]
        assert script.end() == (0, "")


def test_a_section_keeps_the_programs_handler_whatever_that_calls(monkeypatch):
    class Handler:
        calls = 0

        def __call__(self, number, frame):
            self.calls += 1
            with process_hooks.SignalsDeferred():
                pass

    class Early:  # a signal comes while the handlers of a section are installed
        def __getattr__(self, name):
            return getattr(real, name)

        def signal(self, number, handler):
            if number == signal.SIGUSR1 and not mine.calls:
                os.kill(os.getpid(), signal.SIGUSR1)
            return real.signal(number, handler)

    mine, real = Handler(), process_hooks._signal
    before = signal.signal(signal.SIGUSR1, mine)
    try:
        monkeypatch.setattr(process_hooks, "_signal", Early())
        with process_hooks.SignalsDeferred():
            pass
        assert signal.getsignal(signal.SIGUSR1) is mine
        os.kill(os.getpid(), signal.SIGUSR1)
        assert mine.calls == 2
    finally:
        signal.signal(signal.SIGUSR1, before)
    gone, mine = weakref.ref(mine), None
    assert gone() is None
