"""The same histories through a feeder: real clients, real sockets, a clock that is moved."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
import threading

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import RolloutMachine

from async_loader import connect
from async_loader.errors import Timeout
from async_loader.feeder.server import Server
from async_loader.feeder.settings import ServiceSettings
from async_loader.feeder.wire import Plane
from async_loader.rollouts.saving import restore, state_of

EXAMPLES = int(os.environ.get("SERVED_HISTORIES", "12"))


class ServedDriver:
    """As `LocalDriver`; `kill` ends a client's session as the server does, and it comes again."""

    def __init__(self, wanted):
        self.now = 0.0
        self.folder = tempfile.mkdtemp()
        endpoints = {plane: f"ipc://{self.folder}/{plane.value}" for plane in Plane}
        self.server = Server(
            {}, endpoints, ServiceSettings(silence_s=1e6), rollouts={"math": wanted},
            clock=lambda: self.now,
        )  # fmt: skip
        self.calls = self.server._rollouts.tables["math"]
        self.address = endpoints[Plane.CONTROL]
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        self.clients = {}

    def port(self, client):
        if client not in self.clients:
            self.clients[client] = connect(self.address, timeout_s=30)
            self.clients[client].table("math")
        return self.clients[client]._rollout_ports["math"]

    def ask(self, client, name, arrays=None, /, **arguments):
        port = self.port(client)
        with contextlib.suppress(Timeout):
            return port.answer(port.ask(name, arguments, arrays or {}, wait_s=0.0))
        return None

    def inside(self, call):
        return self.server._jobs.ask(call, 30)

    def pass_time(self, seconds):
        def pass_():
            self.now += seconds
            self.calls.advance()

        self.inside(pass_)

    def kill(self, client):
        me = self.port(client)._connection.client

        def leave():
            for session in self.server._server_state.sessions:
                if session.hello.client == me:
                    self.server._control_handler.leave(session)

        self.inside(leave)

    def state(self):
        return self.inside(lambda: copy.deepcopy(state_of(self.calls)))

    def load(self, state):
        self.inside(lambda: restore(self.calls, copy.deepcopy(state)))

    def close(self):
        for client in self.clients.values():
            client.close()
        self.server.stop()
        self.server.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()
        shutil.rmtree(self.folder)


class ServedMachine(RolloutMachine):
    driver_of = ServedDriver

    def teardown(self):
        try:
            super().teardown()
        finally:
            if hasattr(self, "driver"):
                self.driver.close()


def test_no_group_is_lost_doubled_split_over_stale_or_stuck_in_a_feeder():
    chosen = settings(
        max_examples=EXAMPLES, stateful_step_count=40, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    run_state_machine_as_test(ServedMachine, settings=chosen)
