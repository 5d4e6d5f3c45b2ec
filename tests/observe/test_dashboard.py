"""The dashboard: its frames, its HTTP, and what a real browser shows of it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest
from browser_rig import browser
from dashboard_rig import feeder
from status_rig import cluster_status, feeder_status, session_status
from status_rig import table_status as busy

from async_loader import connect
from async_loader.observe import Dashboard
from async_loader.observe.dashboard.frame import frame_of

STEP = {"x": np.float32, "policy_version": np.int64}


def get(url: str, **headers: str) -> bytes:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def table_status(**more: object) -> dict[str, object]:
    plain = {
        "size": 10, "capacity": 100, "inserted": 10, "sampled": 0, "deleted": 0, "stale": {},
        "nbytes": 4096, "inserts_per_s": 1.0, "samples_per_s": 2.0, "samples_per_insert": 0.0,
        "waiting": [], "policies": {}, "writers": 1, "readers": 1, "queued_rows": 0,
        "queue_age_s": 0.0, "readers_wait": 0.0, "writers_wait": 0.0,
    }  # fmt: skip
    return {**plain, **more}


def status_of(uptime_s: float, incarnation: str = "a", **table: object) -> dict[str, object]:
    return {
        "address": "ipc:///feeder", "pid": 1, "incarnation": incarnation, "uptime_s": uptime_s,
        "draining": False, "sessions_open": 0, "sessions_ended": {"left": 0}, "sessions": [],
        "sessions_died": [],
        "weights": {}, "weights_age_s": {}, "weights_waiting": {},
        "tables": {"replay": table_status(**table)},
    }  # fmt: skip


def test_a_frame_equals_the_status(tmp_path):
    with feeder(tmp_path) as process, connect(process.address, name="actor-0") as client:
        client.publish("policy", {"w": np.zeros(2, np.float32)}, version=5)
        with client.table("replay").writer(schema=STEP) as writer:
            writer.extend(x=np.zeros(50, np.float32), policy_version=np.full(50, 3))
            writer.flush()
            status = client.status()
            frame = frame_of(status)
    table = frame["tables"]["replay"]
    for key in ("size", "capacity", "inserted", "writers", "nbytes", "policies"):
        assert table[key] == status["tables"]["replay"][key], key
    assert table["policies"]["policy"]["lag"] == 2
    assert [one["name"] for one in frame["sessions"]] == ["actor-0"]
    assert frame["weights"] == {"policy": 5}


def test_pages_over_http():
    with Dashboard(lambda: status_of(1.0), port=0) as dashboard:
        page = get(dashboard.url).decode()
        assert "<title>async_loader</title>" in page
        page = re.sub(r"/\*!.*?\*/", "", page)
        assert not re.search(r"(src|href)=|https?://|\.(js|css) \*/", page), "of one file"
        assert json.loads(get(f"{dashboard.url}frame.json"))["pid"] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{dashboard.url}etc/passwd")


def test_beyond_the_loopback_a_token_is_needed():
    with Dashboard(lambda: status_of(1.0), port=0, address="0.0.0.0") as dashboard:
        url = dashboard.url.replace("0.0.0.0", "127.0.0.1")
        assert b"async_loader" in get(url)
        for wrong in (url.partition("?")[0], f"{url}x"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                get(wrong)


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_shows_what_the_status_says_and_connects_again(tmp_path):
    with browser(tmp_path) as window:
        with feeder(tmp_path) as process, connect(process.address, name="actor-0") as client:
            client.publish("policy", {"w": np.zeros(2, np.float32)}, version=5)
            with client.table("replay").writer(schema=STEP) as writer:
                writer.extend(x=np.zeros(50, np.float32), policy_version=np.full(50, 3))
                writer.flush()
                with Dashboard(lambda: process.ask_status(30.0), port=0) as dashboard:
                    port = dashboard._server.server_port
                    window.open(dashboard.url)
                    window.wait_for("document.querySelector('[data-v=\"replay.size\"]')")
                    shown, text = window.values(), window.text()
                    table = process.ask_status(30.0)["tables"]["replay"]
        assert float(shown["replay.size"]) == table["size"]
        assert float(shown["replay.samples_per_insert"]) == table["samples_per_insert"]
        assert shown["replay.lag.policy"] == str(table["policies"]["policy"]["lag"])
        assert shown["weights.policy"] == "5"
        assert "actor-0" in text
        window.wait_for("document.getElementById('state').textContent === 'reconnecting'")
        with feeder(tmp_path) as process:
            with Dashboard(lambda: process.ask_status(30.0), port=port):
                window.wait_for("document.getElementById('state').textContent === 'live'")
                assert float(window.values()["replay.size"]) == 0.0


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_shows_roles_the_dead_and_a_full_table_and_no_empty_curve(tmp_path):
    status = feeder_status(
        tables={"replay": busy(size=990, full=True, inserts_per_s=748.0, writers=1)},
        sessions=[
            session_status(1),
            session_status(2, name="a-watcher", role="watcher", writers=0),
        ],
        sessions_died=[session_status(3, state="died", silent_s=90.0)],
    )
    shown = [status]
    with browser(tmp_path) as window, Dashboard(lambda: shown[0], port=0) as dashboard:
        window.open(dashboard.url)
        window.wait_for("document.querySelectorAll('figure').length")

        def texts(of: str) -> list[str]:
            found = window.run(
                f"return [...document.querySelectorAll('{of}')].map(e => e.innerText)"
            )
            return [" ".join(one.split()) for one in found]

        assert texts("figcaption") == ["in 748 steps/s", "kept 990 steps"]
        assert texts(".badge") == ["full"]
        assert texts(".said.wait")[0].startswith("actor-3 (actor) died ")
        died, lives = texts("#clients tr")
        assert re.fullmatch(r"actor-3 node7\S+ actor died [\d:]{8} 1 min 30 s ago", died)
        assert lives.startswith("actor-1 node7.cluster.example:1001 actor connected")
        window.look(400)
        shown[0] = cluster_status(status, None)
        window.wait_for("document.querySelectorAll('#shards tr').length")
        serves, silent = texts("#shards tr")
        assert serves == "shard-0 serving, full 990 748 0 1 0"
        assert silent.startswith("shard-1 silent")
