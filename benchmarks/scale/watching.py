"""What it costs a feeder to be looked at: CPU time of its process with and without."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import cycle
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from benchmarks.feeder import ours
from benchmarks.feeder.processes import child
from benchmarks.feeder.workloads import Work
from benchmarks.harness import Figures

ACTORS = 16
STEPS_PER_S = 20
"""Of each actor: the feeder has work to do, and each window of time has the same."""
TURNS = 3
WORK = Work("small")


def watched(seconds: float, how: str) -> Figures:
    """Serve 16 actors, in turns with a watcher and without; ``how``: scrape or viewer."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        server, address = stack.enter_context(_serving(folder))
        actors = stack.enter_context(child(ours.PRELOAD, _act, address))
        actors.hear()
        with_it, without, asked = [], [], 0
        for _ in range(TURNS):
            without.append(_cpu_s(seconds))
            with _observed(how, server) as url, child((), _watch, how, url) as watcher:
                watcher.hear()
                with_it.append(_cpu_s(seconds))
                watcher.say("end")
                asked += watcher.hear()
        beyond = statistics.median(one - other for one, other in zip(with_it, without, strict=True))
    return {
        "percent": 100 * beyond / seconds,
        "without_percent": 100 * statistics.median(without) / seconds,
        "asked": asked / TURNS / seconds,
    }


def _cpu_s(seconds: float) -> float:
    """CPU seconds of all threads of this process, the feeder's, in a window of time."""
    begun = time.process_time()
    time.sleep(seconds)
    return time.process_time() - begun


@contextmanager
def _serving(folder: str) -> Iterator[tuple[Any, str]]:
    server = ours.server(WORK, "ipc", folder)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server, ours.address_of(server)
    finally:
        server.stop()
        thread.join()


@contextmanager
def _observed(how: str, server: Any) -> Iterator[str]:
    """Serve metrics or the dashboard as `async-loader serve` does; give the address to ask."""
    from async_loader.observe.dashboard import Dashboard
    from async_loader.observe.exporter import MetricsServer, feeder_metrics

    status = partial(server.ask_status, ours.LIMIT_S)
    if how == "viewer":
        with Dashboard(status, 0) as page:
            yield f"{page.url}frame.json"
    else:
        with closing(MetricsServer(lambda: feeder_metrics(status()), 0)) as metrics:
            yield f"http://127.0.0.1:{metrics.port}/metrics"


def _act(pipe: Any, address: str) -> None:
    """Write at a steady rate until the pipe is closed."""
    from async_loader.feeder import connect

    with ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(ACTORS)]
        writers = [one.table(ours.TABLE).writer() for one in clients]
        pipe.send("ready")
        for step in cycle(WORK.steps()):
            for writer in writers:
                writer.append(step)
            if pipe.poll(1 / STEPS_PER_S):
                return


def _watch(pipe: Any, how: str, url: str) -> None:
    """Scrape each second, or take the events that a page takes; say how many there were."""
    count = 0
    if how == "viewer":
        with urlopen(url) as events:
            pipe.send("ready")
            while not pipe.poll():
                count += events.readline().startswith(b"data:")
    else:
        pipe.send("ready")
        while not pipe.poll(1.0):
            with urlopen(url) as page:
                count += bool(page.read())
    pipe.recv()
    pipe.send(count)
