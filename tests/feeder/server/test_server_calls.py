"""Calls of tables in a server: checkpoints beside the loop, folders that no save leaves, turns,
and bounds.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_rig import SCHEMA, Rig

from async_loader import ReplayBuffer
from async_loader.errors import ConfigError, CorruptCheckpoint, Timeout
from async_loader.feeder import connect, wire
from async_loader.feeder.plain_values import view_from
from async_loader.feeder.server.background_jobs import BackgroundJobs
from async_loader.feeder.server.periodic_saves import Folders
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import CheckpointSettings, ServerSettings
from async_loader.feeder.wire import Plane
from async_loader.lifecycle import EventFd, readable
from async_loader.replay.rate_limiter import Queue
from async_loader.replay.samplers import Fifo

PATIENCE_S = 30.0


@pytest.fixture
def serve(tmp_path):
    """Starts a server in a thread; its address. All are stopped at the end."""
    started = []

    def start(checkpoint=tmp_path / "saves", **tables):
        settings = ServerSettings.from_plain(tables or {"one": 1000})
        made = {"bind": f"ipc://{tmp_path}/f{len(started)}", "drain_s": 0.5}
        if checkpoint is not None:
            made["checkpoint"] = CheckpointSettings(path=str(checkpoint))
        from msgspec.structs import replace

        serving = FeederProcess(replace(settings, **made))
        thread = threading.Thread(target=serving.run)
        thread.start()
        started.append((serving, thread))
        return serving.address

    yield start
    while started:  # pytest keeps the fixture for longer than its tables may live
        serving, thread = started.pop()
        serving.stop()
        thread.join(PATIENCE_S)


def fill(table, rows, first=0):
    with table.writer() as writer:
        writer.extend(x=np.arange(first, first + rows))


# -- folders -------------------------------------------------------------------------------------


@given(st.text(max_size=40), st.text(min_size=1, max_size=256))
def test_no_path_and_no_name_of_a_table_leaves_the_folder(path, table):
    root = Path("/nowhere/at/all")
    try:
        found = Folders(root).of(table, path)
    except ConfigError:
        return
    assert len(found.relative_to(root).parts) >= 1
    assert ".." not in found.parts


@given(st.lists(st.text(min_size=1, max_size=256), min_size=2, max_size=2, unique=True))
def test_two_tables_never_share_a_folder(names):
    one, other = (Folders("/nowhere").of(name, ".") for name in names)
    assert one != other
    assert one.parent == other.parent


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "saves" / "one").mkdir(parents=True)
    (tmp_path / "saves" / "one" / "out").symlink_to(tmp_path)
    (tmp_path / "saves" / "two").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="through a link"):
        Folders(tmp_path / "saves").of("one", "out/there")
    with pytest.raises(ConfigError, match="link"):
        Folders(tmp_path / "saves").of("two", ".")


# -- saves and loads -----------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_said_to_be_one(serve, tmp_path):
    with connect(serve()) as client:
        table = client.table("one")
        fill(table, 30)
        table.save("x")
        (data,) = (tmp_path / "saves" / "one" / "x").glob("save-*/data*")
        data.write_bytes(data.read_bytes()[:-1])
        with pytest.raises(CorruptCheckpoint, match="data"):
            table.load("x")
        assert len(table) == 30


def test_a_server_answers_others_while_a_table_is_saved(serve, monkeypatch):
    going, begun = threading.Event(), threading.Event()
    real = ReplayBuffer.save

    def slow(self, path, **options):
        begun.set()
        assert going.wait(PATIENCE_S)
        return real(self, path, **options)

    monkeypatch.setattr(ReplayBuffer, "save", slow)
    with connect(serve()) as client:
        table = client.table("one")
        fill(table, 10)
        thread = threading.Thread(target=table.save, args=("x",))
        thread.start()
        assert begun.wait(PATIENCE_S)
        assert len(table.sample(8)["x"]) == 8
        fill(table, 5, first=10)
        assert client.status()["tables"]["one"]["size"] == 15
        going.set()
        thread.join(PATIENCE_S)


def test_a_table_rests_while_it_is_loaded_and_nothing_is_lost(serve, monkeypatch):
    going, begun = threading.Event(), threading.Event()
    real = ReplayBuffer.load

    def slow(self, path, **options):
        begun.set()
        assert going.wait(PATIENCE_S)
        return real(self, path, **options)

    with connect(serve()) as client:
        table = client.table("one")
        fill(table, 10)
        table.save("x")
        monkeypatch.setattr(ReplayBuffer, "load", slow)
        loading = threading.Thread(target=table.load, args=("x",))
        loading.start()
        assert begun.wait(PATIENCE_S)
        status = client.status()["tables"]["one"]
        assert status["waiting"] == ["everyone: it is being loaded"]
        with pytest.raises(Timeout, match="the table is being loaded"):
            table.sample(4, timeout_s=0.05)
        sizes, writer = [], table.writer()
        asking = threading.Thread(target=lambda: sizes.append(len(table)))
        writing = threading.Thread(
            target=lambda: (writer.extend(x=np.arange(100, 105)), writer.close())
        )
        asking.start()
        writing.start()
        client.status()
        assert not sizes
        going.set()
        for thread in (loading, asking, writing):
            thread.join(PATIENCE_S)
        assert sizes[0] >= 10
        assert set(table.sample(500)["x"].tolist()) == {*range(10), *range(100, 105)}


def test_jobs_are_done_in_order_and_ended():
    bell, told, going = EventFd(), [], threading.Event()
    jobs = BackgroundJobs(bell.ring)
    try:
        jobs.add(lambda: going.wait(PATIENCE_S), told.append)
        for i in range(1, 9):
            jobs.add(lambda i=i: i, told.append)
        going.set()
        until = time.monotonic() + PATIENCE_S
        while jobs.busy and time.monotonic() < until:
            readable([bell.fileno()], PATIENCE_S)
            bell.clear()
            jobs.finish()
        assert told == [True, *range(1, 9)]
    finally:
        assert jobs.close(PATIENCE_S)
        bell.close()


# -- turns and bounds ----------------------------------------------------------------------------


# -- hostile sessions ----------------------------------------------------------------------------


def queue() -> ReplayBuffer:
    return ReplayBuffer(100, SCHEMA, sampler=Fifo(), limiter=Queue(100), max_times_sampled=1)


def any_call(draw: random.Random) -> tuple[Plane, wire.Control, bytes | None]:
    """Well-formed, and as its sender likes."""
    table = draw.choice(["t", "t", "t", "queue", "no such table"])
    view = draw.choice(
        [
            None,
            None,
            {
                "kind": draw.choice(["transitions", "sequences", "hindsight", "other", 3]),
                "n_steps": draw.choice([1, 3, 1 << 20, 1 << 40, "x"]),
                "gamma": 0.5,
                "reward": draw.choice(["reward", "x"]),
            },
        ]
    )
    count = draw.choice([1, 2, 5, 300])
    ids = np.array(
        [draw.choice([0, 1, 5, -1, 2**62, -(2**63)]) for _ in range(count)], np.int64
    ).tobytes()
    slots = tuple(draw.choice([0, 1, 2**32 - 1]) for _ in range(draw.randrange(3)))
    sizes = [1, 2, 50, 1 << 20]
    kind = draw.randrange(10)
    wait_s = draw.choice([0.0, 0.01, 1e9, -0.01, -1e9])
    if kind < 2:
        body = wire.OpenReader(
            table=table, batch_size=draw.choice(sizes), view=view, wait_s=wait_s,
            transport=draw.choice(["tcp", "shm"]),
        )  # fmt: skip
        return Plane.CONTROL, body, None
    if kind < 4:
        pull = wire.Pull(draw.choice([0, 1, 2, 2**62]), slots, wait_s)
        return Plane.PULL, pull, None
    if kind == 9:
        return Plane.CONTROL, wire.CloseReader(draw.choice([0, 1, 2**62]), 0, slots), None
    if kind == 4:
        return Plane.PULL, wire.Get(table=table, count=count, view=view), ids
    if kind == 5:
        code, nbytes = draw.choice([(8, 8), (1, 1), (14, 16)])
        spec = wire.TensorSpec(
            draw.choice(["x", "done", "y", ""]) or "x.y",
            code,
            (count, *draw.choice([(), (1,), (2, 3)])),
        )
        body = wire.Update(table=table, count=count, specs=(spec,))
        return Plane.PULL, body, ids + draw.randbytes(spec.nbytes) if nbytes else ids
    if kind == 6:
        return Plane.PULL, wire.Delete(table=table, count=count), ids
    if kind == 7:
        values = np.array(
            [draw.choice([0.0, 1.0, -1.0, np.nan, np.inf]) for _ in range(count)]
        ).tobytes()
        spec = wire.TensorSpec("priority", 12, (count,))
        return Plane.PULL, wire.Prioritize(table=table, count=count, specs=(spec,)), ids + values
    body = draw.choice([wire.About, wire.Clear, wire.Save, wire.Load])(table=table)
    return Plane.CONTROL, body, None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_call_is_a_fault_of_the_server_and_none_harms_another(seed):
    draw = random.Random(seed)
    tables = {
        "t": ReplayBuffer(100, SCHEMA, seed=0),
        "queue": ReplayBuffer.queue(50, SCHEMA, seed=0),
    }
    with Rig(tables) as rig:
        peer, honest = rig.peer(), rig.peer()
        for number, table in enumerate(tables, 1):
            honest.open_writer(number, producer=bytes([number]) * 16, table=table)
            honest.insert(0, range(20), number)
        for _ in range(300):
            plane, body, data = any_call(draw)
            peer.send(plane, body, draw.choice([0, 1, 2, 7]), data=data)
            while peer.receive(plane, wait=False) is not None:
                pass
        assert rig.server.counters["faults"] == 0
        rig.server_state.sessions.drop(peer_session := rig.server_state.sessions.get(peer.session))
        rig.server._control_handler.leave(peer_session)
        honest.insert(1, range(20, 24), 1)
        honest.open_reader(9)
        honest.pull(1, 9)
        rig.turn()
        assert honest.receive(Plane.PULL).body.rows == 4


@pytest.mark.parametrize(
    "view",
    [
        {},
        {"kind": "sequence", "length": 4},
        {"kind": "sequences"},
        {"kind": "sequences", "length": 4, "stride": 4, "eta": 2.0},
        {"kind": "sequences", "length": 1 << 21},
        {"kind": "transitions", "n_steps": 1, "gamma": float("nan")},
        {"kind": "transitions", "n_steps": 1, "length": 4},
        {"kind": "hindsight", "strategy": "random", "ends": False},
        {"kind": "hindsight", "compute_reward": "print"},
    ],
)
def test_a_wrong_view_is_refused(view):
    with pytest.raises(ConfigError):
        view_from(view)
