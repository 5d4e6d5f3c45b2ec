"""Ctrl-C within a client's calls: the object can be used and closed, and no wrong row is in a table
or in a batch.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from storm_rig import count_points, some_points, strike
from test_client_shared import replay, rows, serving

from async_loader.feeder import connect
from async_loader.lifecycle import Deadline, Patience

POINTS = 12
WEIGHTS = {"w": np.arange(5000, dtype=np.uint8)}


class Objects:
    """A client, with a writer and a source."""

    def __init__(self, client):
        self.client, self.table = client, client.table("t")
        self.writer = self.table.writer(batch_rows=4)
        self.source = self.table.source(prefetch=2)
        self.version, self.value = 0, 0

    def step(self):
        self.value += 1
        return {"obs": np.full(3, self.value, np.float32), "x": self.value}

    def append(self):
        self.writer.append(self.step())

    def extend(self):
        self.value += 9
        self.writer.extend(rows(9, first=self.value))

    def flush(self):
        self.append()
        self.writer.flush(20)

    def plan(self):
        self.check(self.source.plan(4, Patience(deadline=Deadline(20))).batch)

    def sample(self):
        self.check(self.table.sample(4, timeout_s=20))

    def check(self, batch):
        assert (batch["obs"] == batch["x"][:, None]).all()

    def publish(self):
        self.version += 1
        assert self.client.publish("net", WEIGHTS, self.version)

    def latest(self):
        found = self.client.latest("net")
        assert found is None or (found.tensors["w"] == WEIGHTS["w"]).all()

    def update(self):
        ids = self.table.sample(4)["index"]
        assert self.table.update(ids, x=self.table.get(ids)["x"]).stale == 0

    def open_and_close(self):
        self.table.writer().close(20)

    def status(self):
        self.client.status()


CALLS = ("append", "extend", "flush", "plan", "sample", "publish", "latest", "update", "status")


@pytest.mark.parametrize("call", [*CALLS, "open_and_close"])
def test_a_client_can_be_used_and_closed_after_ctrl_c_in_any_call(tmp_path, call):
    with serving(tmp_path, replay()) as (_, client):
        made = Objects(client)
        made.extend()
        made.flush()
        run = getattr(made, call)
        run()
        for at in some_points(count_points(run), POINTS, seed=1):
            strike(run, at)
            run()
        for other in CALLS:
            getattr(made, other)()
        assert len(client.table("t")) <= 500 + made.value


def test_ctrl_c_in_connect_or_close_leaves_no_thread(tmp_path):
    def threads():
        return [one for one in threading.enumerate() if one.name == "async-loader-feeder-client"]

    with serving(tmp_path, replay()) as (_, client):

        def connected():
            connect(client.address, timeout_s=20).close(5)

        for at in some_points(count_points(connected), POINTS, seed=1):
            struck = strike(connected, at)
            error = struck.raised
            while error is not None:  # its frames hold the client
                error.__traceback__, error = None, error.__context__
            del struck
            for thread in threads():
                if thread is not client._connection._thread:
                    thread.join(10)
                    assert not thread.is_alive()
