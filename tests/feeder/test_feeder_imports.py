"""Rules of imports that only the feeder has, besides those of `tests/test_imports.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FEEDER = Path(__file__).parent.parent.parent / "async_loader" / "feeder"
PURE = ("wire", "zmtp")
NO_IO = {"socket", "zmq", "time", "threading", "select", "selectors", "pickle"}
SIDES = {"client", "server"}
"""Meet in the wire only."""


def files() -> dict[str, str]:
    return {
        ".".join(path.relative_to(FEEDER).with_suffix("").parts): path.read_text()
        for path in sorted(FEEDER.rglob("*.py"))
    }


def imports(code: str) -> Iterator[str]:
    """Absolute names of all imports, also late ones and those for types."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breaches(name: str, code: str) -> list[str]:
    wrong, own = [], name.split(".")[0]
    for target in imports(code):
        if own in PURE and target.split(".")[0] in NO_IO:
            wrong.append(f"{name} imports {target}: it has no socket, no clock and no thread")
        other = target.removeprefix("async_loader.feeder.").split(".")[0]
        if {own, other} == SIDES:
            wrong.append(f"{name} imports {target}: client and server meet in the wire only")
    return wrong


def test_client_and_server_meet_in_the_wire_and_protocols_do_no_input_or_output():
    assert [text for name, code in files().items() for text in breaches(name, code)] == []


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("wire.codes", "import socket", "no socket"),
        ("zmtp.connection", "def f():\n    from time import monotonic", "no clock"),
        (
            "client.client",
            "from async_loader.feeder.server.weights import WeightStore",
            "the wire only",
        ),
        ("server.event_loop", "from async_loader.feeder.client import outbox", "the wire only"),
    ],
)
def test_a_planted_breach_is_caught(name, code, text):
    (wrong,) = breaches(name, code)
    assert text in wrong


LONGER = {
    "client.source",
    "client.table",
    "server.batch_scheduler",
    "server.control_handler",
    "server.event_loop",
    "server.insert_queue",
    "settings",
    "wire.control",
}
"""Files that clusters and periodic saves have made longer: to be divided."""


def test_no_other_file_is_longer_than_400_lines():
    assert {name for name, code in files().items() if len(code.splitlines()) > 400} <= LONGER
