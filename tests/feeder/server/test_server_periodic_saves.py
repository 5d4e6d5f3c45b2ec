"""Checkpoints that a feeder makes by itself: when, what is restored, what is counted as lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_loader import AsyncDataLoader, ReplayBuffer, Transitions
from async_loader.errors import Broken, CorruptCheckpoint
from async_loader.feeder import connect
from async_loader.feeder.server.background_jobs import BackgroundJobs
from async_loader.feeder.server.insert_queue import InsertQueue
from async_loader.feeder.server.periodic_saves import ROWS, RowCount, positions_in, unused_in
from async_loader.feeder.server.reader_state import OutgoingBatch, RequeuedRows
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from async_loader.lifecycle import readable

PATIENCE_S = 60.0
SCHEMA = {"x": np.int64}


def settings(folder: Path, every_s: float = 3600.0, table: str = "") -> Path:
    path = folder / "f.yaml"
    table = table or "{capacity: 1000, sampler: {kind: uniform, replacement: false}}"
    path.write_text(
        f"bind: ipc://{folder}/f\ntables: {{t: {table}}}\ndrain_s: 0.5\n"
        f"checkpoint: {{path: saves, every_s: {every_s}}}\n"
    )
    return path


@contextlib.contextmanager
def serving(path: Path) -> Iterator[FeederProcess]:
    """A feeder in a thread, which ends as by SIGTERM."""
    server = FeederProcess(ServerSettings.load(path))
    codes: list[int] = []
    server.codes = codes  # type: ignore[attr-defined]
    thread = threading.Thread(target=lambda: codes.append(server.run()))
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        server.__dict__.clear()


def write(client: Any, values: range) -> None:
    with client.table("t").writer(schema=SCHEMA) as writer:
        for x in values:
            writer.append(x=x)


def rows(client: Any) -> list[int]:
    """All rows: drawn without replacement."""
    table = client.table("t")
    found: list[int] = table.sample(len(table))["x"].tolist()
    return found


def wait_for(client: Any, key: str, least: int) -> dict[str, Any]:
    """The status of the checkpoints of the table, when ``key`` has reached a number."""
    while True:
        found = client.status()["checkpoints"]["t"]
        assert not found["failed"], found
        if (found[key] or 0) >= least:
            return dict(found)
        readable([], 0.02)


def test_what_was_there_at_the_end_is_there_at_the_next_start(tmp_path):
    with serving(settings(tmp_path)) as server, connect(server.address) as client:
        write(client, range(100))
    with serving(settings(tmp_path)) as server, connect(server.address) as client:
        status = client.status()
        assert status["tables"]["t"]["size"] == 100
        found = status["checkpoints"]["t"]
        assert (found["restored_rows"], found["lost_rows"], found["number"]) == (100, 0, 1)
        write(client, range(100, 150))
        assert sorted(rows(client)) == list(range(150))


def test_a_start_that_failed_before_its_kept_tables_were_loaded_loses_no_save(tmp_path):
    with serving(settings(tmp_path)) as server, connect(server.address) as client:
        write(client, range(100))
    path = settings(tmp_path, table="{capacity: 1000, schema: {x: int64}, keep: kept}")
    for table in ServerSettings.load(path).make_tables().values():
        table.close()
    for _ in range(2):
        with serving(path) as server, connect(server.address) as client:
            status = client.status()
            assert status["tables"]["t"]["size"] == 100
            assert status["checkpoints"]["t"]["lost_rows"] == 0


@pytest.mark.parametrize("closed", [True, False])
def test_rows_that_a_learner_had_and_did_not_use_are_in_a_save_and_come_marked(tmp_path, closed):
    path = settings(tmp_path, 0.05, "{queue: 64, schema: {x: int64}}")
    folder = tmp_path / "saves" / "t" / "newest"
    with serving(path) as server, connect(server.address) as client:
        write(client, range(16))
        loader = AsyncDataLoader(client.table("t"), 4)
        had = next(loader)["x"].tolist()
        while client.table("t").stats().size:
            readable([], 0.01)
        if closed:
            loader.close()
        else:
            while not any(len(unused_in(one)) == 16 for one in folder.glob("save-*")):
                readable([], 0.02)
            shutil.copytree(tmp_path / "saves", tmp_path / "kept")
            loader.close()
    if not closed:  # as a kill leaves it
        shutil.rmtree(tmp_path / "saves")
        shutil.move(tmp_path / "kept", tmp_path / "saves")
    with serving(path) as server, connect(server.address) as client:
        assert client.status()["checkpoints"]["t"]["lost_rows"] == 0
        come = client.table("t").sample(12, timeout_s=PATIENCE_S)
        assert sorted([*had, *come["x"].tolist()]) == list(range(16)) or not closed
        assert set(come["x"].tolist()) <= set(range(16))
        assert closed or come["redelivered"].all()


def test_rows_that_go_back_come_to_readers_of_the_same_view_alone():
    table = {"queue": 64, "schema": {"x": "int64", "reward": "float32", "terminated": "bool"}}
    with connect("embedded", tables={"t": table}) as client:
        queue = client.table("t")
        with queue.writer() as writer:
            for i in range(24):
                writer.append(x=i, reward=1.0, terminated=i == 23)
        with AsyncDataLoader(queue.source(view=Transitions(3, gamma=1.0)), 4) as loader:
            assert next(loader)["reward"].tolist() == [3.0] * 4
            while queue.stats().size:
                readable([], 0.01)
        with queue.writer() as writer:
            for i in range(8):
                writer.append(x=i, reward=1.0, terminated=False)
        batch = queue.sample(4, view=Transitions(1, gamma=0.5), timeout_s=PATIENCE_S)
        assert batch["reward"].tolist() == [1.0] * 4
        assert batch["discount"].tolist() == [0.5] * 4


def test_a_save_that_a_second_stop_meets_is_completed(tmp_path, monkeypatch):
    asked = InsertQueue.positions

    def stop_then_ask(self):
        servers[0].stop()
        until_closed.wait(PATIENCE_S)
        return asked(self)

    close, until_closed, servers = BackgroundJobs.close, threading.Event(), []

    def closing_jobs(self, timeout_s):
        until_closed.set()
        return close(self, timeout_s)

    with serving(settings(tmp_path)) as server, connect(server.address) as client:
        codes = server.codes
        servers.append(server)
        write(client, range(100))
        monkeypatch.setattr(InsertQueue, "positions", stop_then_ask)
        monkeypatch.setattr(BackgroundJobs, "close", closing_jobs)
    monkeypatch.undo()
    assert codes == [0]
    with serving(settings(tmp_path)) as server, connect(server.address) as client:
        found = client.status()["checkpoints"]["t"]
        assert (found["restored_rows"], found["lost_rows"]) == (100, 0)


def test_a_table_is_saved_while_it_is_served_and_only_when_it_has_changed(tmp_path):
    with serving(settings(tmp_path, 0.05)) as server, connect(server.address) as client:
        write(client, range(10))
        number = wait_for(client, "number", 1)["number"]
        write(client, range(10, 20))
        assert wait_for(client, "number", number + 1)["save_s"] > 0
        last = wait_for(client, "number", number + 1)["number"]
        readable([], 0.3)
        assert client.status()["checkpoints"]["t"]["number"] <= last + 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the feeder lost")
def test_a_killed_feeder_begins_with_its_newest_save_and_counts_what_is_lost(tmp_path):
    command = [sys.executable, "-m", "async_loader", "serve", "--config"]
    path, process = settings(tmp_path, 0.2), None
    try:
        with connect_to(command, path) as (client, process):
            writer = client.table("t").writer(schema=SCHEMA)
            for x in range(100):
                writer.append(x=x)
            writer.flush()
            wait_for(client, "restored_rows", 0)
            wait_for(client, "number", 1)
            process.send_signal(signal.SIGSTOP)  # from here on it saves nothing
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = subprocess.Popen([*command, str(path)], stderr=subprocess.DEVNULL)
            for x in range(100, 200):
                writer.append(x=x)
            writer.close(PATIENCE_S)
            found = client.status()
            values = rows(client)
            assert len(set(values)) == len(values)
            lost = client.stats().rows_lost
            assert len(values) + lost == 200
            assert found["checkpoints"]["t"]["lost_rows"] == lost  # all were acknowledged
    finally:
        if process is not None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def connect_to(command: list[str], path: Path) -> Iterator[Any]:
    process = subprocess.Popen([*command, str(path)], stderr=subprocess.DEVNULL)
    with connect(f"ipc://{path.parent}/f", timeout_s=PATIENCE_S) as client:
        yield client, process


def test_a_writer_goes_on_with_a_feeder_that_was_restored_as_with_the_one_before(tmp_path):
    path = settings(tmp_path)
    with contextlib.ExitStack() as stack:
        with serving(path) as server:
            client = stack.enter_context(connect(server.address, timeout_s=PATIENCE_S))
            writer = client.table("t").writer(schema=SCHEMA, batch_rows=10)
            for x in range(40):
                writer.append(x=x)
            writer.flush()
        (save,) = (tmp_path / "saves/t/newest").glob("save-*")
        ((_, applied, _),) = positions_in(save)
        assert applied >= 4
        with serving(path):
            for x in range(40, 60):
                writer.append(x=x)
            writer.close(PATIENCE_S)
            assert client.stats().rows_lost == 0
            assert sorted(rows(client)) == list(range(60))
            client.close()


def test_a_damaged_save_is_named_and_nothing_starts(tmp_path):
    path = settings(tmp_path)
    with serving(path) as server, connect(server.address) as client:
        write(client, range(10))
    (data,) = (tmp_path / "saves/t/newest").glob("save-*/data.bin")
    data.write_bytes(b"x" + data.read_bytes()[1:])
    with pytest.raises(CorruptCheckpoint, match=str(data)):
        FeederProcess(ServerSettings.load(path))


def test_a_folder_that_cannot_be_written_to_is_said_in_the_status_and_serving_goes_on(tmp_path):
    if os.geteuid() == 0:
        blocker = tmp_path / "saves/t/newest"  # root can write anywhere: a file is in the way
        blocker.parent.mkdir(parents=True)
        blocker.write_text("")
    with serving(settings(tmp_path, 0.05)) as server, connect(server.address) as client:
        write(client, range(10))
        while not (failed := client.status()["checkpoints"]["t"]["failed"]):
            readable([], 0.02)
        assert "newest" in failed
        write(client, range(10, 20))
        assert client.status()["tables"]["t"]["size"] == 20


def block(folder: Path) -> None:
    """Let no save of table t be made, by root neither."""
    folder.joinpath("t").mkdir(parents=True, exist_ok=True)
    folder.joinpath("t/newest").write_text("")


@pytest.mark.parametrize("how", ["stop", "drain", "nothing to save"])
def test_a_feeder_whose_last_save_fails_says_so_with_its_exit_code(tmp_path, how):
    with serving(settings(tmp_path)) as server:
        codes = server.codes
        with connect(server.address, timeout_s=PATIENCE_S) as client:
            if how != "nothing to save":
                write(client, range(10))
            block(tmp_path / "saves")
            if how == "drain":
                with pytest.raises(Broken, match=r"table 't' was not saved: .*newest"):
                    client.drain()
    assert codes == [how != "nothing to save"]


def test_positions_are_those_of_the_moment_of_the_save(tmp_path):
    """While saves are made, a writer goes on: each has the rows of its position, and no other."""
    with serving(settings(tmp_path, 0.01)) as server, connect(server.address) as client:
        with client.table("t").writer(schema=SCHEMA, batch_rows=1) as writer:
            for x in range(400):
                writer.append(x=x)
            writer.flush()
            for number in range(3):
                for x in range(100):
                    writer.append(x=x)
                wait_for(client, "number", number + 1)
    save = max((tmp_path / "saves/t/newest").glob("save-*"))
    ((_, applied, done),) = positions_in(save)
    table = ReplayBuffer.from_checkpoint(save.parent)
    inserted = table.stats().inserted
    table.close()
    assert (min(applied, 700), done) == (inserted, 0)  # the last message ends the episode


@pytest.mark.parametrize("killed", [False, True])
def test_rows_of_a_queue_are_marked_after_a_kill_and_not_after_an_end_in_order(tmp_path, killed):
    path, address = tmp_path / "f.yaml", f"ipc://{tmp_path}/f"
    table = "{queue: 64, schema: {x: {dtype: int64}}}"
    path.write_text(
        f"bind: {address}\ntables: {{t: {table}}}\ncheckpoint: {{path: saves, every_s: 3600}}\n"
    )
    with serving(path), connect(address, timeout_s=PATIENCE_S) as client:
        write(client, range(8))
    if killed:  # what such a process leaves
        count = RowCount(tmp_path / "saves" / "t" / ROWS)
        count.note(count.before)
        count.close()
    with serving(path), connect(address, timeout_s=PATIENCE_S) as client:
        with AsyncDataLoader(client.table("t").source(), 8, timeout_s=PATIENCE_S) as loader:
            assert next(loader)["redelivered"].tolist() == [killed] * 8


def test_a_source_with_a_seed_goes_on_with_its_draws_after_a_restart(tmp_path):
    path = settings(tmp_path, table="{capacity: 1000}")
    with serving(path) as server, connect(server.address) as client:
        write(client, range(500))
    with contextlib.ExitStack() as stack:
        with serving(path) as server:
            client = stack.enter_context(connect(server.address))
            with AsyncDataLoader(client.table("t").source(seed=3), 8) as whole:
                expected = [next(whole)["x"].tolist() for _ in range(60)]
            loader = AsyncDataLoader(client.table("t").source(seed=3), 8)
            stack.enter_context(loader)
            found = [next(loader)["x"].tolist() for _ in range(5)]
            server._send_ends = lambda reason: None  # as one that is killed
        with serving(path):
            found += [next(loader)["x"].tolist() for _ in range(55)]
            loader.close()
            client.close()
    assert found == expected


def test_rows_that_were_delivered_after_a_save_come_marked_when_it_is_loaded(tmp_path):
    path = settings(tmp_path, table="{queue: 64, schema: {x: int64}}")
    with serving(path) as server, connect(server.address) as client:
        write(client, range(8))
        table = client.table("t")
        table.save("older")
        assert not table.sample(8)["redelivered"].any()
        table.load("older")
        assert table.sample(8)["redelivered"].all()


def test_rows_that_were_used_after_a_save_do_not_come_again(tmp_path):
    path = settings(tmp_path, 0.05, "{queue: 64, schema: {x: int64}}")
    folder = tmp_path / "saves" / "t" / "newest"
    with serving(path) as server, connect(server.address) as client:
        write(client, range(8))
        with AsyncDataLoader(client.table("t"), 4) as loader:
            next(loader), next(loader)
            while not any(len(unused_in(one)) for one in folder.glob("save-*")):
                readable([], 0.02)
    with serving(path) as server, connect(server.address) as client:
        assert client.status()["checkpoints"]["t"]["restored_rows"] in (0, 4)  # the last in use


def test_returned_rows_are_marked_after_a_kill():
    rows = RequeuedRows()
    batch = OutgoingBatch(2, [np.arange(2), np.zeros(2, np.bool_)])
    rows.put((1, ""), batch, seen=False)
    rows = RequeuedRows.load(rows.dump())
    rows.mark()
    assert [one.tolist() for one in rows.get((1, ""))] == [[0, 1], [True, True]]


def test_a_get_that_waits_over_a_restart_finds_no_row_by_the_old_ids(tmp_path):
    path, found = settings(tmp_path), []
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(serving(path))
        client = stack.enter_context(connect(first.address))
        write(client, range(20))
        ids = client.table("t").sample(8)["index"]
        first.stop()
        while not first.codes:
            readable([], 0.01)
        thread = threading.Thread(target=lambda: found.append(client.table("t").get(ids)))
        thread.start()
        (tmp_path / "saves").rename(tmp_path / "gone")
        second = stack.enter_context(serving(path))
        with connect(second.address) as other:
            write(other, range(100, 120))
        thread.join(PATIENCE_S)
        assert len(found[0]["index"]) == 0
