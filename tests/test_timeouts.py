"""Every public timeout goes through one check: NaN,
negative numbers and what is no number are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from async_loader import AsyncDataLoader, ReplayBuffer, Uniform
from async_loader.dataset.data_loader import DataLoader
from async_loader.errors import ConfigError
from async_loader.lifecycle import seconds, seconds_or_none

pytestmark = pytest.mark.usefixtures("near_feeders")

BAD = (math.nan, -1, -(10**400), -math.inf, "a", True, [1.0], np.float64("nan"))


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_what_is_no_time_is_refused_with_one_message(value: Any) -> None:
    for check in (seconds, seconds_or_none):
        with pytest.raises(
            ConfigError,
            match=r"wait_s=.*: give seconds, 0 \(try once\) or more; math.inf waits for ever",
        ):
            check("wait_s", value)


def _table() -> ReplayBuffer:
    buffer = ReplayBuffer(10, {"x": "int64"}, sampler=Uniform(replacement=False), seed=0)
    buffer.add(x=1)
    return buffer


CALLS: dict[str, Callable[[ReplayBuffer, Any], Any]] = {
    "add": lambda buffer, t: buffer.add(x=1, timeout_s=t),
    "extend": lambda buffer, t: buffer.extend(x=np.arange(3), timeout_s=t),
    "update": lambda buffer, t: buffer.update([0], x=[1], timeout_s=t),
    "clear": lambda buffer, t: buffer.clear(timeout_s=t),
    "load": lambda buffer, t: buffer.load("/nowhere", timeout_s=t),
    "sample": lambda buffer, t: buffer.sample(1, timeout_s=t),
    "append": lambda buffer, t: buffer.writer().append(x=1, timeout_s=t),
    "a vector's append": lambda buffer, t: buffer.vector_writer(1, autoreset="disabled").append(
        x=np.arange(1),
        next_obs=np.arange(1),
        terminated=np.zeros(1, bool),
        truncated=np.zeros(1, bool),
        timeout_s=t,
    ),
    "flush": lambda buffer, t: buffer.writer().flush(timeout_s=t),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", BAD[:5], ids=repr)
def test_calls_of_a_table_refuse_it_also_where_they_would_not_wait(call: str, value: Any) -> None:
    buffer = _table()
    with pytest.raises(ConfigError, match=r"timeout_s=.*: give seconds"):
        CALLS[call](buffer, value)
    assert len(buffer) == 1


@pytest.mark.parametrize("value", [math.nan, -0.5, "a"], ids=repr)
def test_calls_of_a_feeders_client_refuse_it(value: Any) -> None:
    from async_loader.feeder import connect

    for call in (
        lambda: connect("tcp://127.0.0.1:9", timeout_s=value),
        lambda: connect("tcp://127.0.0.1:9", on_disconnect=value if value != "a" else "b"),
    ):
        with pytest.raises(ConfigError, match=r"timeout_s=|on_disconnect="):
            call()
    with connect("embedded", tables={"t": {"capacity": 10, "schema": {"x": "int64"}}}) as client:
        table = client.table("t")
        writer, source = table.writer(), table.source()
        for call in (
            lambda: client.status(timeout_s=value),
            lambda: client.latest("p", timeout_s=value),
            lambda: client.publish("p", {"w": np.zeros(1)}, 1, timeout_s=value),
            lambda: client.close(timeout_s=value),
            lambda: table.source(timeout_s=value),
            lambda: client.drain(timeout_s=value),
            lambda: table.sample(1, timeout_s=value),
            lambda: table.update_priorities([1], [1.0], timeout_s=value),
            lambda: table.update([1], x=[1], timeout_s=value),
            lambda: table.delete([1], timeout_s=value),
            lambda: table.clear(timeout_s=value),
            lambda: table.save("x", timeout_s=value),
            lambda: table.load("x", timeout_s=value),
            lambda: writer.end_episode(timeout_s=value),
            lambda: writer.append(x=1, timeout_s=value),
            lambda: writer.extend(x=np.arange(2), timeout_s=value),
            lambda: writer.flush(timeout_s=value),
            lambda: writer.close(timeout_s=value),
        ):
            with pytest.raises(ConfigError, match="timeout_s="):
                call()
        source.close()
        assert client.latest("p", timeout_s=0) is None


@pytest.mark.parametrize("value", [math.nan, -0.5, "a"], ids=repr)
def test_loaders_refuse_it_when_they_are_made_and_closed(value: Any) -> None:
    for make in (
        lambda t: AsyncDataLoader({"x": np.arange(4)}, 2, timeout_s=t),
        lambda t: DataLoader([1, 2], timeout_s=t),
    ):
        with pytest.raises(ConfigError, match="timeout_s="):
            make(value)
        loader = make(math.inf)
        with pytest.raises(ConfigError, match="timeout_s="):
            loader.close(timeout_s=value)
        loader.close()
