"""What fields may be, for every table: whatever a table takes comes back bit by bit, from each kind
of table; what it cannot hold is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schema_programs
from table_rig import Making

from async_loader import Field, ReplayBuffer, Sequences, connect
from async_loader.errors import AsyncLoaderError, ConfigError, OutOfMemory, SchemaError
from async_loader.feeder.curve_keys import load_client_keys, make_keys
from async_loader.feeder.settings import CheckpointSettings, SecuritySettings, ServerSettings
from async_loader.offline import from_hdf5, from_minari, from_npz, to_npz
from async_loader.offline.lerobot import LeRobotSource
from async_loader.shm import segment

pytestmark = pytest.mark.usefixtures("near_feeders")

MASKED = np.ma.masked_array(np.array([1, 999], np.float32), [False, True])


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_schemas_are_alike_here_in_a_feeder_and_in_a_save(first: int) -> None:
    schema_programs.run(first, 50, 31)


@pytest.mark.parametrize(
    "value", [MASKED, MASKED[1:], np.ma.masked, np.ma.masked_array([1.0, 2.0])], ids=repr
)
def test_a_masked_array_is_refused_with_the_call_that_fills_it(make: Making, value: Any) -> None:
    table = make.table(20, {"x": Field(np.shape(value), "float32")})
    writer = make.writer(table)
    writer.append(x=np.zeros(np.shape(value), np.float32))
    writer.flush()
    for call in (
        lambda: writer.append(x=value),
        lambda: writer.extend(x=np.ma.stack([value])),
        lambda: table.update([0], x=np.ma.stack([value])),
        lambda: ReplayBuffer(5).add(x=value),
        lambda: ReplayBuffer(5).extend(x=np.ma.stack([value])),
        lambda: table.get(np.ma.masked_array([0], [True])),
    ):
        with pytest.raises((SchemaError, ConfigError), match=r"masked array.*\.filled\("):
            call()


@pytest.mark.parametrize("field", [Field((1 << 40,)), Field((1 << 52,))], ids=str)
def test_a_field_of_absurd_size_is_refused_before_anything_starts(field: Field) -> None:
    with pytest.raises((SchemaError, OutOfMemory), match=r"at most|are available"):
        ReplayBuffer(10, {"x": field})
    with pytest.raises(ConfigError, match=r"tables\.t"):
        ServerSettings.from_plain({"t": {"capacity": 10, "schema": {"x": field}}})


def episodes(**settings: Any) -> ReplayBuffer:
    table = ReplayBuffer(100, {"x": "int64", "terminated": "bool"}, seed=0, **settings)
    table.extend(x=np.arange(100), terminated=np.arange(100) % 5 == 4, stream=0)
    return table


@pytest.mark.parametrize("times", [0, 5])
def test_a_batch_beyond_the_memory_is_refused_with_what_it_needs_and_what_there_is(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = episodes(max_times_sampled=times)
    counted = table.stats().sampled
    monkeypatch.setattr(segment, "available_bytes", lambda: 60 << 20)
    need = r"needs [0-9.]+ [GM]iB, 60\.0 MiB are available"
    calls = [lambda: table.get(np.zeros(5_000_000, np.int64))]
    if not times:
        calls += [
            lambda: table.sample(5_000_000),
            lambda: table.sample(4, view=Sequences(1_000_000, whole=True)),
            lambda: table.get([0, 5, 10, 15], view=Sequences(1_000_000, whole=True)),
            lambda: table.sample(1, view=Sequences(10**9, whole=True)),
        ]
    for call in calls:
        with pytest.raises(OutOfMemory, match=need):
            call()
    assert table.stats().sampled == counted


@pytest.mark.parametrize("path", [b"path", "", "a\0b", "\ud800", None, 3], ids=repr)
def test_a_path_that_names_no_file_is_refused(
    make: Making, path: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    table = make.table(10, {"x": "int8"})
    calls = [
        lambda: table.save(path),
        lambda: table.load(path),
        lambda: ReplayBuffer.from_checkpoint(path),
        lambda: from_npz(path),
        lambda: to_npz(ReplayBuffer(10, {"x": "int8"}), path),
        lambda: from_hdf5(path),
        lambda: from_minari(path),
        lambda: LeRobotSource(path),
        lambda: make_keys(path, ["one"]),
        lambda: load_client_keys(path),
        lambda: ServerSettings.load(path),
    ]
    if path is not None:
        calls += [
            lambda: ReplayBuffer(10, disk=path),
            lambda: connect("tcp://127.0.0.1:1", keys=path),
            lambda: ServerSettings.of(["t:10"], checkpoint=path),
            lambda: CheckpointSettings(path=path),
            lambda: SecuritySettings(keys=path),
        ]
    for call in calls:
        with pytest.raises(AsyncLoaderError):
            call()
    assert not list(tmp_path.iterdir())
