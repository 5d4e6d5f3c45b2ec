"""Which file of the feeder may import which: files have ranks, and imports go downward only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FEEDER = Path(__file__).parent.parent.parent / "async_loader" / "feeder"
RANKS = [
    "reserve_descriptor",
    "status wire.bounds wire.codes zmtp.errors shared.offer derived_settings settings_errors "
    "client.forks client.stats",
    "client client.batch_structure client.notifier client.outbox server.acceptor server.folders "
    "server.policy_lag",
    "wire.data wire.header wire.scan wire.schema_codec zmtp.frames shared.batch_ring "
    "shared.listener table_settings client.waker",
    "wire.control wire.row_layout zmtp.curve zmtp.mechanism zmtp.null shared plain_values",
    "wire.calls wire.rows wire.weights zmtp.connection server.outgoing_batches",
    "wire.batches wire.control_codec zmtp",
    "wire.message server.peer_connection",
    "wire",
    "addresses",
    "client.batch_copies client.errors client.row_buffer client.session client.stream_numbers",
    "server.background_jobs server.counters server.message_queues server.producer_streams "
    "server.send_buffers",
    "server.table_views server.weights",
    "curve_keys listen_sockets settings",
    "client.calls client.channel client.reader_state client.row_packer client.slots "
    "server.insert_queue server.reader_state",
    "address_lock curve_auth client.row_queue client.sockets",
    "server.batch_scheduler server.sessions server.sockets",
    "self_test client.io_thread",
    "client.offered_memory client.writer_channel",
    "client.deliveries",
    "server.dispatch server.kernel_warmup server.pending server.state",
    "client.connection client.reader_channel server.deferred server.insert_handler "
    "server.sample_queue server.status",
    "client.arguments client.priority_updates client.row_sink client.sample_channel client.weights "
    "server.call_handler",
    "client.source client.table_calls client.traffic client.writer server.control_handler "
    "server.pull_handler",
    "client.owner server.event_loop",
    "client.table server",
    "client.client serving",
    "embedded",
    "client.connect",
    "feeder",
    "commands",
]
"""From the bottom up, by names within the feeder; a folder's name is its ``__init__``. Names in
one line are siblings.
"""
RANK = {name: rank for rank, line in enumerate(RANKS) for name in line.split()}
PURE = ("wire", "zmtp")
NO_IO = {"socket", "zmq", "time", "threading", "select", "selectors", "pickle"}


def files() -> dict[str, str]:
    found = {}
    for path in sorted(FEEDER.rglob("*.py")):
        parts = path.relative_to(FEEDER).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name or "feeder"] = path.read_text()
    return found


def imports(code: str) -> Iterator[str]:
    """Absolute names of all imports, also late ones and those for types."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breaches(name: str, code: str) -> list[str]:
    wrong = []
    for target in imports(code):
        if name.split(".")[0] in PURE and target.split(".")[0] in NO_IO:
            wrong.append(f"{name} imports {target}: it has no socket, no clock and no thread")
        if not target.startswith("async_loader.feeder."):
            continue
        within = target.removeprefix("async_loader.feeder.")
        while within and within not in RANK:
            within = within.rpartition(".")[0]
        within = within or "feeder"
        if within != name and RANK[within] >= RANK[name]:
            wrong.append(f"{name} (rank {RANK[name]}) imports {within} (rank {RANK[within]})")
        if {name.split(".")[0], within.split(".")[0]} == {"client", "server"}:
            wrong.append(f"{name} imports {within}: client and server meet in the wire only")
    return wrong


def test_every_file_has_one_rank():
    names = " ".join(RANKS).split()
    assert len(names) == len(set(names))
    assert set(names) == set(files())


def test_imports_go_downward_only():
    assert [text for name, code in files().items() for text in breaches(name, code)] == []


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("wire.codes", "import socket", "no socket"),
        ("zmtp.connection", "def f():\n    from time import monotonic", "no clock"),
        ("client.outbox", "from async_loader.feeder.client.connection import Connection", "rank"),
        (
            "client.client",
            "from async_loader.feeder.server.weights import WeightStore",
            "the wire only",
        ),
        ("server.event_loop", "from async_loader.feeder.client import outbox", "the wire only"),
        ("curve_auth", "from async_loader.feeder.server.sockets import ServerSockets", "rank"),
        ("settings", "def f():\n    from async_loader.feeder import serving", "rank"),
    ],
)
def test_a_planted_breach_is_caught(name, code, text):
    (wrong,) = breaches(name, code)
    assert text in wrong


def test_no_file_is_longer_than_a_sitting():
    assert {
        name: lines for name, code in files().items() if (lines := len(code.splitlines())) > 400
    } == {}
