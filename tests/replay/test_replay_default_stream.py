"""Whose steps are these? Where a table links steps, the default is not allowed to be wrong in
silence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from async_loader import Field, ReplayBuffer, Transitions
from async_loader.errors import ConfigError

LINKED: dict[str, Callable[[], ReplayBuffer]] = {
    "next": lambda: ReplayBuffer(50, {"x": Field((), "int64", next="y"), "done": "bool"}),
    "stack": lambda: ReplayBuffer(50, {"x": Field((), "int64", stack=2), "done": "bool"}),
    "view": lambda: ReplayBuffer(
        50, {"x": "int64", "reward": "float32", "done": "bool"}, view=Transitions(3)
    ),
    "view of an unknown schema": lambda: ReplayBuffer(50, view=Transitions(3)),
}


def in_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return found[0]


def step(buffer: ReplayBuffer, x: int, done: bool = False, **more: Any) -> int:
    reward = (
        {} if buffer.schema is not None and "reward" not in str(buffer.schema) else {"reward": 0.0}
    )
    return buffer.add(x=x, done=done, **reward, **more)


@pytest.mark.parametrize("kind", LINKED)
def test_rows_of_a_linked_table_need_a_stream(kind: str) -> None:
    buffer = LINKED[kind]()
    rows: dict[str, Any] = {"x": np.arange(3), "done": np.zeros(3, np.bool_)}
    if kind.startswith("view"):
        rows["reward"] = np.zeros(3, np.float32)
    with pytest.raises(ConfigError, match=r"stream=0 if they follow each other, stream=range\(n\)"):
        buffer.extend(rows)
    assert buffer.stats().streams == 0
    buffer.extend(rows, stream=0)
    buffer.extend(rows, stream=range(3))
    buffer.writer().extend(rows)
    assert buffer.stats().streams == 4


@pytest.mark.parametrize("kind", LINKED)
def test_two_threads_do_not_share_an_episode_of_the_default_stream(kind: str) -> None:
    buffer = LINKED[kind]()
    step(buffer, 0)
    step(buffer, 1)
    refused = in_thread(lambda: step(buffer, 100))
    assert isinstance(refused, ConfigError)
    assert "give each thread a writer()" in str(refused)
    step(buffer, 2)
    assert isinstance(in_thread(lambda: step(buffer, 100, stream="mine")), int)
    assert isinstance(in_thread(lambda: step(buffer, 3, stream=0)), int), "said is said"
