"""Metrics: of a feeder by its status, of loaders and tables by their stats, over HTTP."""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from async_loader import AsyncDataLoader, ReplayBuffer, connect
from async_loader.errors import ConfigError
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from async_loader.observe import Exporter
from async_loader.observe.exporter import observed
from async_loader.stats import LearnerMeter

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

CONFIGS = Path(__file__).parent.parent.parent / "configs"
STEP = {"x": np.float32, "policy_version": np.int64}


def scrape(port: int) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Values by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def feeder(tmp_path, port: int, **more: object):
    """A feeder in a thread, with metrics beside it, as `async-loader serve` has them."""
    settings = ServerSettings.of(["replay:1000"], bind=f"ipc://{tmp_path}/feeder")
    plain = {"bind": settings.bind, "tables": {"replay": 1000}, "metrics": {"port": port}}
    plain |= more
    path = tmp_path / "feeder.yaml"
    path.write_text(json.dumps(plain))
    settings = ServerSettings.load(path)
    process = FeederProcess(settings)
    thread = threading.Thread(target=process.run)
    with observed(settings, process.ask_status):
        thread.start()
        try:
            yield process.address
        finally:
            process.stop()
            thread.join(60)


def used_feeder(address: str) -> dict[str, object]:
    """Write, publish and draw; return the status after it."""
    with connect(address, name="learner") as client:
        client.publish("policy", {"w": np.zeros(2, np.float32)}, version=5)
        with client.table("replay").writer(schema=STEP) as writer:
            for version in (5, 4, 1):
                writer.append(x=np.float32(0), policy_version=version)
                writer.flush()
        client.table("replay").sample(2)
        return client.status()


def test_a_scrape_of_a_feeder_equals_its_status(tmp_path):
    port = free_port()
    with feeder(tmp_path, port) as address:
        status = used_feeder(address)
        found = scrape(port)
        table, labels = status["tables"]["replay"], (("table", "replay"),)
        for name, key in (
            ("table_size", "size"),
            ("table_inserted", "inserted"),
            ("table_sampled", "sampled"),
            ("table_rows_in_total", "rows_in"),
            ("table_memory_bytes", "nbytes"),
            ("table_queued_rows", "queued_rows"),
        ):
            assert found[f"async_loader_{name}"][labels] == table[key], name
        assert found["async_loader_feeder_weights"][(("policy", "policy"),)] == 5
        ended = found["async_loader_feeder_sessions_ended_total"]
        assert set(ended) == {(("how", how),) for how in status["sessions_ended"]}


def test_an_exporter_shows_a_loader_and_a_table():
    with ReplayBuffer(capacity=100, schema={"x": np.float32}) as buffer:
        buffer.extend(x=np.zeros(50, np.float32))
        with AsyncDataLoader(buffer, batch_size=8) as loader:
            for _ in range(5):
                next(loader)
            with Exporter(loader, replay=buffer, port=0) as exporter:
                found = scrape(exporter.port)
    assert found["async_loader_table_size"][(("name", "replay"),)] == 50
    stage = (("name", "0"), ("stage", "learner"))
    assert found["async_loader_loader_stage_batches_total"][stage] == 5
    assert 0 <= found["async_loader_loader_wait_fraction"][(("name", "0"),)] <= 1
    counted = found["async_loader_loader_batch_latency_seconds_count"][(("name", "0"),)]
    assert counted == 5


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\basync_loader_[a-z0-9_]+", text))


def test_every_metric_of_the_board_and_the_alerts_occurs_in_a_scrape(tmp_path):
    port = free_port()
    board = (CONFIGS / "grafana" / "async_loader.json").read_text()
    panels = json.loads(board)["panels"]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    wanted = names_in(board) | names_in((CONFIGS / "prometheus" / "alerts.yml").read_text())
    with feeder(tmp_path, port) as address, connect(address) as client:
        used_feeder(address)
        with (
            client.table("replay").writer() as writer,
            AsyncDataLoader(client.table("replay"), batch_size=2) as loader,
        ):
            writer.append(x=np.float32(0), policy_version=4)
            writer.flush()
            next(loader)
            with Exporter(loader, port=0) as exporter:
                found = set(scrape(port)) | set(scrape(exporter.port))
    assert wanted - found == set()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("waited_s", "place"), [(0.0, 0), (1.5e-6, 1), (1e-3, 10), (1e3, 25)])
def test_calls_of_next_are_counted_by_powers_of_two(waited_s, place):
    clock = Clock()
    meter = LearnerMeter(clock)
    clock.now = waited_s
    meter.waited(0.0)
    assert [i for i, count in enumerate(meter.durations) if count] == [place]
    assert math.isclose(meter.wait_s, waited_s)


class Scalars:
    def __init__(self):
        self.seen = {}

    def add_scalar(self, tag, value, step=None):
        self.seen[tag] = (value, step)


class Run:
    def log(self, data, step=None):
        self.seen = data, step


def test_stats_are_written_to_tensorboard_and_to_wandb():
    with ReplayBuffer(capacity=100, schema={"x": np.float32}) as buffer:
        buffer.extend(x=np.zeros(50, np.float32))
        with AsyncDataLoader(buffer, batch_size=8) as loader:
            next(loader)
            stats = loader.stats()
        board, run = Scalars(), Run()
        stats.log_to(board, step=7)
        assert board.seen["loader/learner/batches"] == (1.0, 7)
        assert "loader/wait_fraction" in board.seen
        buffer.stats().log_to(run, step=8, prefix="replay")
        data, step = run.seen
        assert (data["replay/size"], step) == (50.0, 8)
        with pytest.raises(ConfigError, match="neither add_scalar"):
            stats.log_to({})
