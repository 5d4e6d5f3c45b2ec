"""The pictures of the dashboard, called by ``scripts/pictures``: a feeder at rest, under load, and
after a ``kill -9`` of an actor; a cluster after one of a shard.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from browser_rig import Browser, browser

from async_loader import AsyncDataLoader, connect
from async_loader.observe import Dashboard
from async_loader.scale import Cluster

LOAD_S, AFTER_S = 50.0, 75.0
TABLE = {
    "capacity": 20_000,
    "limiter": {"min_size_to_sample": 2_000, "samples_per_insert": 8, "error_buffer": 4_000},
    "schema": {
        "obs": {"dtype": "float32", "shape": [8]},
        "reward": "float32",
        "policy_version": "int64",
    },
}


def client_of(addresses: Sequence[str], name: str) -> Any:
    return (
        connect(addresses[0], name=name)
        if len(addresses) == 1
        else Cluster.static(addresses, name=name)
    )


def act(addresses: Sequence[str], number: int) -> None:
    """Write steps, some hundreds a second, with the newest weights' version, until killed."""
    with client_of(addresses, f"actor-{number}") as client:
        writer = client.table("replay").writer()
        version = 0
        while True:
            newest = client.latest("policy", newer_than=version or None)
            version = newest.version if newest else version
            rows = 20 + 10 * number
            writer.extend(
                obs=np.zeros((rows, 8), np.float32),
                reward=np.zeros(rows, np.float32),
                policy_version=np.full(rows, version),
            )
            time.sleep(0.06)


def learn(addresses: Sequence[str], batch_s: float) -> None:
    """Take a batch each ``batch_s``, and publish weights each tenth, until killed."""
    with client_of(addresses, "learner") as client:
        with AsyncDataLoader(client.table("replay"), batch_size=128) as loader:
            for step, _ in enumerate(loader):
                if step % 10 == 0:
                    client.publish("policy", {"w": np.zeros(1_000, np.float32)}, step // 10 + 1)
                time.sleep(batch_s)


@contextlib.contextmanager
def processes(*calls: Any) -> Iterator[list[Any]]:
    context = multiprocessing.get_context("spawn")
    made = [context.Process(target=call, args=args) for call, *args in calls]
    try:
        for one in made:
            one.start()
        yield made
    finally:
        for one in made:
            one.kill()
            one.join()


@contextlib.contextmanager
def feeders(folder: Path, count: int) -> Iterator[tuple[list[str], list[Any]]]:
    with contextlib.ExitStack() as stack:
        addresses, made = [], []
        for number in range(count):
            config = folder / f"feeder-{number}.yaml"
            address = f"ipc://{folder}/feeder-{number}"
            config.write_text(json.dumps({"bind": address, "tables": {"replay": TABLE}}))
            command = [sys.executable, "-m", "async_loader", "serve", "--config", str(config)]
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
            addresses.append(address)
            made.append(process)
        for address in addresses:
            connect(address, timeout_s=60.0).close()
        yield addresses, made


def take(window: Browser, path: Path, width: int = 1200, *, dark: bool = False) -> None:
    window.look(width, dark=dark)
    time.sleep(1.5)  # the page draws once a second
    window.screenshot(path)
    print(path, flush=True)


def main(folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="async-loader-") as made,
        browser(Path(made)) as window,
    ):
        home = Path(made)
        with feeders(home, 1) as (addresses, _), connect(addresses[0]) as client:
            with Dashboard(client.status, port=0) as page:
                window.open(page.url)
                take(window, folder / "dashboard-rest.png")
                calls = [(act, addresses, number) for number in range(3)]
                with processes(*calls, (learn, addresses, 0.02)) as (actor, *_):
                    time.sleep(LOAD_S)
                    take(window, folder / "dashboard.png")
                    actor.kill()
                    time.sleep(AFTER_S)
                    take(window, folder / "dashboard-killed.png", dark=True)
        with feeders(home, 3) as (addresses, shards), Cluster.static(addresses) as cluster:
            with Dashboard(lambda: cluster.status(timeout_s=1.0), port=0) as page:
                window.open(page.url)
                calls = [(act, addresses, number) for number in range(4)]
                with processes(*calls, (learn, addresses, 0.01)):
                    time.sleep(LOAD_S / 2)
                    shards[1].kill()
                    time.sleep(LOAD_S / 2)
                    take(window, folder / "dashboard-cluster.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "docs"))
