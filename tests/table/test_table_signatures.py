"""Every table and every writer has the methods of the Protocol, with its parameters in its order,
with its defaults.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from async_loader import ReplayBuffer
from async_loader.feeder.client.table import TableClient
from async_loader.feeder.client.writer import RemoteWriter
from async_loader.replay.vector_writer import VectorWriter
from async_loader.replay.writer import LocalWriter
from async_loader.table import Table, Writer
from async_loader.table import VectorWriter as VectorWriterProtocol

IMPLEMENTERS: list[tuple[type, type]] = [
    (Table, ReplayBuffer),
    (Writer, LocalWriter),
    (Table, TableClient),
    (Writer, RemoteWriter),
    (VectorWriterProtocol, VectorWriter),
]
TRANSPORT = {"writer", "source"}
"""Methods that may take more keywords where the table is elsewhere, of how steps and batches
travel.
"""


def names_of(protocol: type) -> list[str]:
    return [
        name
        for name in vars(protocol)
        if not name.startswith("_") or name in ("__len__", "__enter__", "__exit__")
    ]


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()
    ]


def methods() -> list[Any]:
    return [
        pytest.param(protocol, kind, name, id=f"{kind.__name__}.{name}")
        for protocol, kind in IMPLEMENTERS
        for name in names_of(protocol)
        if callable(getattr(protocol, name))
    ]


def differences(protocol: type, kind: type, name: str) -> list[str]:
    wanted, found = parameters(getattr(protocol, name)), parameters(getattr(kind, name))
    more = found[len(wanted) :] if name in TRANSPORT else []
    if wanted != found[: len(found) - len(more)]:
        return [
            f"{kind.__name__}.{name}{inspect.signature(getattr(kind, name))} is not "
            f"{inspect.signature(getattr(protocol, name))}"
        ]
    wrong = [
        one
        for one, how, default in more
        if how is not inspect.Parameter.KEYWORD_ONLY or default is inspect.Parameter.empty
    ]
    return [
        f"{kind.__name__}.{name} needs {wrong}, which the Protocol does not have" for _ in wrong[:1]
    ]


@pytest.mark.parametrize(("protocol", "kind", "name"), methods())
def test_a_method_takes_what_the_protocol_says(protocol: type, kind: type, name: str) -> None:
    assert not differences(protocol, kind, name)


@pytest.mark.parametrize(("protocol", "kind"), IMPLEMENTERS, ids=lambda one: one.__name__)
def test_what_is_no_method_is_there_too(protocol: type, kind: type) -> None:
    made_by_init = {"stream", "streams", "schema"}  # attributes of instances
    assert [
        name for name in names_of(protocol) if not hasattr(kind, name) and name not in made_by_init
    ] == []


def test_a_parameter_in_another_place_is_found() -> None:
    class Other(LocalWriter):
        def flush(self, timeout_s: float = 5.0) -> None: ...

    assert differences(Writer, Other, "flush")
    assert not differences(Writer, Other, "close")
