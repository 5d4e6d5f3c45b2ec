"""A feeder for one script: there when the constructor returns, gone when its parent is, however
that ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from async_loader import Field, ReplayBuffer, Transitions
from async_loader.errors import Broken, ConfigError, OutOfMemory, Timeout
from async_loader.feeder import connect
from async_loader.feeder.embedded import Embedded
from async_loader.feeder.settings import ServerSettings
from async_loader.lifecycle import Deadline, Patience, readable

SETTINGS = ServerSettings.of(["replay:1000"])
SLACK_S = 60.0


def folder_of(embedded):
    return Path(embedded.address.removeprefix("ipc://")).parent


def test_steps_go_in_and_come_out():
    embedded = Embedded(SETTINGS)
    with connect(embedded.address) as client:
        with client.table("replay").writer() as writer:
            for i in range(10):
                writer.append(x=np.int64(i))
        assert client.status()["tables"]["replay"]["size"] == 10
    embedded.close()


@pytest.mark.parametrize(
    ("table", "kind", "said"),
    [
        ({"capacity": 10**12, "schema": {"x": "float32"}}, OutOfMemory, "tables.t: .*GiB"),
        ({"capacity": 60, "schema": {"x": "int64"}, "view": Transitions(3)}, ConfigError, "reward"),
        ({"capacity": 60, "schema": {"x\ud800": "int64"}}, ConfigError, "cannot travel"),
        (ReplayBuffer(60), ConfigError, "tables.t: expected a map, got <ReplayBuffer"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused_as_in_this_process(table, kind, said):
    with pytest.raises(kind, match=said) as refused:
        connect("embedded", tables={"t": table})
    assert "Traceback" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["terminated", "truncated"])
@pytest.mark.parametrize("way", ["append", "extend"])
def test_a_step_that_is_done_ends_its_episode_in_the_feeder(way, other):
    schema = {
        "obs": Field((), np.int64, next="next_obs"),
        "reward": np.float32,
        "done": np.bool_,
        other: np.bool_,
    }
    steps = [{"obs": t, "reward": 1.0, "done": t % 3 == 2, other: False} for t in range(9)]
    with connect("embedded", tables={"replay": 1000}) as client:
        with client.table("replay").writer(schema=schema) as writer:
            if way == "append":
                for step in steps:
                    writer.append(step)
            else:
                writer.extend({name: np.array([step[name] for step in steps]) for name in schema})
        source = client.table("replay").source(view=Transitions(n_steps=2, gamma=0.5))
        batch = source.plan(200, Patience(deadline=Deadline(SLACK_S))).batch
        source.close()
    episode, t = np.divmod(batch["obs"], 3)
    assert set(batch["obs"].tolist()) == set(range(9))
    assert (batch["next_obs"] // 3 == episode).all(), "no episode is linked to the next"
    assert batch["discount"].tolist() == np.where(t == 0, 0.25, 0.0).tolist(), "done is terminated"
    assert batch["reward"].tolist() == np.where(t == 2, 1.0, 1.5).tolist()


@pytest.mark.slow
def test_what_waits_for_a_full_queue_does_not_hold_up_its_end():
    with connect("embedded", tables={"queue": {"queue": 2}}) as client:
        process = psutil.Process(client._embedded.pid)
        writer = client.table("queue").writer(linger_ms=0, batch_rows=1)
        for i in range(3):  # two that the queue takes, and one message that waits
            writer.append(x=i)
        with pytest.raises(Timeout, match="not acknowledged"):
            client.close(timeout_s=0.1)
    assert not process.is_running()


def test_nothing_is_left_of_it():
    embedded = Embedded(SETTINGS)
    folder, pid = folder_of(embedded), embedded.pid
    assert folder.stat().st_mode & 0o777 == 0o700
    embedded.close()
    assert not folder.exists()
    assert not psutil.pid_exists(pid)
    embedded.close()


def test_a_feeder_that_died_is_no_trouble_to_close():
    embedded = Embedded(SETTINGS)
    os.kill(embedded.pid, signal.SIGKILL)
    folder = folder_of(embedded)
    embedded.close()
    assert not folder.exists()


def test_calls_to_a_feeder_that_died_fail_at_once():
    # waits for ever when a feeder is lost that may be started anew
    with connect("embedded") as client:
        source, ends = client.table("replay").source(), []

        def learn():
            try:
                source.plan(4, Patience())
            except Broken as error:
                ends.append(str(error))

        thread = threading.Thread(target=learn)
        thread.start()
        pid = client._embedded.pid
        client.status()
        os.kill(pid, signal.SIGKILL)
        thread.join(SLACK_S)
        for call in (client.status, lambda: client.table("replay").writer().append(x=1)):
            with pytest.raises(Broken, match=f"pid {pid}.* exit code -9"):
                call()
    assert len(ends) == 1
    assert f"pid {pid}" in ends[0]


PARENT = """
    import os, sys, time
    from async_loader.feeder.embedded import Embedded
    from async_loader.feeder.settings import ServerSettings
    embedded = Embedded(ServerSettings.of(["replay:1000"]))
    print(embedded.pid, embedded.address, flush=True)
    {end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "exitcode"),
    [
        ("os.kill(os.getpid(), 9)", -9),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("os._exit(4)", 4),
        # A process that holds everything that the parent had.
        (
            "pid = os.fork() or time.sleep(1000)\n    print(pid, flush=True)\n    "
            "os.kill(os.getpid(), 9)",
            -9,
        ),
    ],
)
def test_it_ends_with_its_parent(end, exitcode):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT.format(end=end))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().decode().split()
        fork = parent.stdout.readline() if "fork" in end else b""
        try:
            child = os.pidfd_open(int(pid))
        except ProcessLookupError:
            child = None  # it has ended already
        assert parent.wait(SLACK_S) == exitcode
        if child is not None:
            assert readable([child], SLACK_S), "it outlives its parent"
            os.close(child)
        if fork:
            os.kill(int(fork), signal.SIGKILL)
    assert not Path(address.removeprefix("ipc://")).parent.exists()


@pytest.mark.slow
def test_a_parent_that_dies_while_it_starts_leaves_nothing():
    code = """
        import os, signal, subprocess
        from async_loader.feeder import embedded
        class Fast(subprocess.Popen):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                print(self.pid, os.listdir(os.path.dirname(options["stdout"].name)),
                        options["stdout"].name, flush=True)
        subprocess.Popen = Fast
        # it has its settings by then
        embedded.readable = lambda fds, left_s: os.kill(os.getpid(), signal.SIGKILL)
        embedded.Embedded(embedded.ServerSettings.of(["replay:1000"]))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    ) as parent:
        pid, *_, log = parent.stdout.readline().split()
        assert parent.wait(SLACK_S) == -9
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(SLACK_S)
    assert not Path(log).parent.exists()
