"""Metrics: of a feeder by its status, of loaders and tables by their stats, over HTTP."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from async_loader import AsyncDataLoader, ReplayBuffer, connect
from async_loader.errors import AddressInUse, Closed, ConfigError, MissingExtra, Timeout
from async_loader.feeder.server.background_jobs import LoopCalls
from async_loader.feeder.server.policy_lag import LAG_BOUNDS, Publications, ReceivedLags
from async_loader.feeder.serving import FeederProcess
from async_loader.feeder.settings import ServerSettings
from async_loader.observe import Exporter
from async_loader.observe.beside import observed
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
            ("table_items", "size"),
            ("table_inserted_items_total", "inserted_total"),
            ("table_inserted_items_total", "inserted"),
            ("table_sampled_items_total", "sampled"),
            ("table_received_rows_total", "rows_in"),
            ("table_memory_bytes", "nbytes"),
            ("table_queued_rows", "queued_rows"),
        ):
            assert found[f"async_loader_{name}"][labels] == table[key], name
        assert found["async_loader_weights_version"][(("policy", "policy"),)] == 5
        ended = found["async_loader_feeder_clients_ended_total"]
        assert set(ended) == {(("how", how),) for how in status["sessions_ended"]}


def test_counters_count_no_row_that_a_load_brings_and_none_is_taken_away_by_a_clear(tmp_path):
    port, labels = free_port(), (("table", "replay"),)
    (tmp_path / "saves").mkdir()
    with (
        feeder(tmp_path, port, checkpoint={"path": str(tmp_path / "saves")}) as address,
        connect(address) as client,
    ):
        table = client.table("replay")

        def counted() -> tuple[float, ...]:
            found = scrape(port)
            names = "table_inserted_items_total", "table_sampled_items_total", "table_items"
            return tuple(found[f"async_loader_{name}"][labels] for name in names)

        def add(steps: int) -> None:
            with table.writer(schema=STEP) as writer:
                for _ in range(steps):
                    writer.append(x=np.float32(0), policy_version=0)

        add(100)
        table.sample(7)
        table.save("here")
        assert counted() == (100, 7, 100)
        table.clear()
        assert counted() == (100, 7, 0)
        add(10)
        assert counted() == (110, 7, 10)
        table.load("here")
        assert counted() == (110, 7, 100)
        add(1)
        assert counted() == (111, 7, 101)


def test_the_lag_of_received_steps_is_a_histogram(tmp_path):
    port = free_port()
    with feeder(tmp_path, port) as address:
        used_feeder(address)
        found = scrape(port)
    buckets = {
        dict(labels)["le"]: value
        for labels, value in found["async_loader_policy_lag_steps_bucket"].items()
    }
    assert [buckets[le] for le in ("0.0", "1.0", "2.0", "4.0", "+Inf")] == [1, 2, 2, 3, 3]
    (total,) = found["async_loader_policy_lag_steps_sum"].values()
    assert total == 0 + 1 + 4


def test_lags_count_from_the_first_publication_on():
    published = Publications()
    lags = ReceivedLags(published)
    lags.add("policy", 3, 10)
    assert lags.snapshot() == {}
    published.add("policy", 100, 0.0)
    for version, steps in ((100, 1), (98, 2), (30, 3), (101, 4)):
        lags.add("policy", version, steps)
    counts = lags.snapshot()["policy"]["counts"]
    assert len(counts) == len(LAG_BOUNDS) + 1
    assert (counts[0], counts[2], counts[-1], sum(counts)) == (5, 2, 3, 10)
    assert lags.snapshot()["policy"]["sum"] == 2 * 2 + 3 * 70


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


def test_objects_that_are_closed_are_left_out():
    with ReplayBuffer(capacity=10, schema={"x": np.float32}) as buffer:
        exporter = Exporter(buffer, port=0)
    with exporter:
        assert "process_cpu_seconds_total" in scrape(exporter.port)


def test_names_follow_the_conventions(tmp_path):
    port = free_port()
    with feeder(tmp_path, port) as address:
        used_feeder(address)
        names = set(scrape(port))
    ours = {name for name in names if name.startswith("async_loader_")}
    assert ours
    for name in ours:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name
        assert not name.endswith(("_s", "_ms", "_us")), name
        assert not name.endswith("bytes_total_total"), name


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


def test_the_rules_pass_promtool():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with Prometheus")
    for what, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        command = [promtool, "check", what, str(CONFIGS / "prometheus" / name)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stdout + run.stderr


def test_a_port_in_use_is_named():
    with socket.socket() as taken, ReplayBuffer(10, {"x": np.float32}) as buffer:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f":{port} .*give another port"):
            Exporter(buffer, port=port)


@pytest.mark.parametrize(
    ("objects", "port", "said"),
    [((), 0, "nothing to export"), ((3,), 0, "is a int"), ((np.zeros(1),), 0, "ndarray")],
)
def test_what_cannot_be_exported_is_refused(objects, port, said):
    with pytest.raises(ConfigError, match=said):
        Exporter(*objects, port=port)


def test_a_port_out_of_range_is_refused():
    with ReplayBuffer(10, {"x": np.float32}) as buffer:
        with pytest.raises(ConfigError, match="from 0 to 65535"):
            Exporter(buffer, port=70_000)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with ReplayBuffer(10, {"x": np.float32}) as buffer:
        with pytest.raises(MissingExtra, match=r"async_loader\[metrics\]"):
            Exporter(buffer, port=0)


def test_a_scrape_of_a_feeder_that_has_ended_fails():
    calls = LoopCalls(lambda: None)
    calls.close()
    with pytest.raises(Closed):
        calls.ask(dict, 1.0)


def test_a_status_that_is_not_made_in_time_is_a_timeout():
    calls = LoopCalls(lambda: None)
    with pytest.raises(Timeout, match="did not answer within 0 s"):
        calls.ask(dict, 0.0)
    calls.make()  # its thread has given up: nothing happens


def test_all_waiting_calls_are_made_in_one_round():
    woken = threading.Semaphore(0)
    calls, got = LoopCalls(woken.release), []
    threads = [
        threading.Thread(target=lambda: got.append(calls.ask(lambda: 1, 60.0))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert woken.acquire(timeout=60)
    calls.make()
    for thread in threads:
        thread.join(60)
    assert got == [1, 1]


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


def test_a_failing_status_is_the_error_of_a_scrape(tmp_path):
    from async_loader.observe.exporter import MetricsServer

    def fails():
        raise Closed("the server has ended")

    with contextlib.closing(MetricsServer(fails, 0)) as server:
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scrape(server.port)
