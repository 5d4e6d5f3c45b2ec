"""A table whose frames are compressed gives the batches of one whose frames are not."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    AsyncDataLoader,
    Field,
    Lifo,
    Prioritized,
    ReplayBuffer,
    Sequences,
    Transitions,
)
from async_loader.errors import (
    ConfigError,
    OutOfMemory,
    SchemaError,
)
from async_loader.replay.table.storage import StorageLayout
from async_loader.schema import Schema
from tests.table_parts import debug_state

pytest.importorskip("cramjam")

SMALL = {"reward": "float32", "terminated": "bool", "truncated": "bool"}


def schema(codec: str | None, padding: str = "repeat") -> dict[str, object]:
    obs = Field((40, 40), "uint8", stack=3, next="next_obs", padding=padding, codec=codec)
    return {"obs": obs, **SMALL}


def frames(steps: np.ndarray) -> np.ndarray:
    """Frames of which every third does not compress at all."""
    made = np.broadcast_to(steps[:, None, None] % 251, (len(steps), 40, 40)).astype(np.uint8)
    for i in np.flatnonzero(steps % 3 == 0).tolist():
        made[i] = np.random.default_rng(steps[i]).integers(0, 256, (40, 40))
    return made


def episode(first: int, length: int, truncated: bool = False) -> dict[str, np.ndarray]:
    steps = np.arange(first, first + length)
    ends = np.arange(length) == length - 1
    return {
        "obs": frames(steps),
        "reward": steps.astype(np.float32),
        "terminated": ends & (not truncated),
        "truncated": ends & truncated,
        "final_obs": frames(steps + 1000),
    }


def pair(**kwargs) -> list[ReplayBuffer]:
    return [ReplayBuffer(300, schema(codec), seed=3, **kwargs) for codec in (None, "lz4")]


def rows_bytes(spec: dict[str, object], capacity: int) -> int:
    """Bytes of a table beside its compressed values."""
    return StorageLayout.of(Schema.of(spec), capacity, ring=0).nbytes


def assert_equal(one: dict, *others: dict) -> None:
    for other in others:
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize(
    "view", [None, Transitions(3, 0.9), Sequences(8, burn_in=2, bootstrap=1, boundary="pad")]
)
@pytest.mark.parametrize("prioritized", [False, True])
def test_the_same_calls_give_the_same_batches_without_a_codec_and_on_a_disk(
    tmp_path, view, prioritized
):
    sampler = (lambda: Prioritized(0.6, 0.4)) if prioritized else (lambda: None)
    tables = [
        ReplayBuffer(300, schema(c, "zero"), seed=3, view=view, sampler=sampler(), disk=d)
        for c, d in ((None, None), ("lz4", None), (None, tmp_path))
    ]
    rng = np.random.default_rng(0)
    for round_ in range(12):
        length, dead = int(rng.integers(20, 60)), rng.integers(0, 600, 5)
        for table in tables:
            table.extend(**episode(round_ * 60, length, round_ % 3 == 0), stream=round_ % 2)
            table.add(obs=frames(np.array([7]))[0], reward=1.0, terminated=False, truncated=False)
            if round_ % 4 == 3:
                table.end_episode(final_obs=frames(np.array([8]))[0], truncated=True)
            table.delete(dead)
            table.update(dead, reward=np.full(5, -1, np.float32))
        one, *others = (table.sample(64) for table in tables)
        assert_equal(one, *others)
        if prioritized:
            error = rng.random(one["index"].shape)
            for table in tables:
                table.update_priorities(one["index"], error)
        ids = rng.integers(0, 700, 30)
        assert_equal(*(table.get(ids) for table in tables))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_decompresses_in_its_workers(workers):
    batches = []
    for table in pair():
        table.extend(**episode(0, 250), stream=0)
        source = table.source(view=Transitions(2), seed=5)
        with AsyncDataLoader(source, 32, num_workers=workers, batch_format="numpy") as loader:
            batches.append([{k: v.copy() for k, v in next(loader).items()} for _ in range(5)])
    for one, other in zip(*batches, strict=True):
        assert_equal(one, other)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(0, 2)), max_size=25),
    st.integers(68, 90),
)
def test_steps_that_a_full_ring_pushes_out_are_the_oldest_and_the_rest_is_whole(rounds, room):
    """A naive reference: all steps that were ever added, by id."""
    spec = {"x": Field((300,), "uint8", codec="lz4"), "n": "int64", "terminated": "bool"}
    room = rows_bytes(spec, 200) + room * 304
    with ReplayBuffer(200, spec, max_bytes=room, seed=0) as table:
        added: dict[int, np.ndarray] = {}
        n = 0
        for count, compresses, stream in rounds:
            rng = np.random.default_rng(n)
            x = rng.integers(0, 2 if compresses else 256, (count, 300)).astype(np.uint8)
            ids = table.extend(
                x=x, n=np.arange(n, n + count), terminated=np.zeros(count, bool), stream=stream
            )
            added.update(zip(ids.tolist(), x, strict=True))
            n += count
            held = table.get(np.array(sorted(added)))
            kept = held["index"].tolist()
            assert kept == sorted(added)[len(added) - len(kept) :]
            assert len(kept) >= min(len(added), 40)
            for one, value in zip(kept, held["x"], strict=True):
                np.testing.assert_array_equal(value, added[one])
            ring = debug_state(table).state.table.ring.size
            assert table.stats().compressed_nbytes <= ring
            assert table.nbytes <= room


def test_a_reader_never_sees_a_value_that_was_overwritten_meanwhile():
    spec = {"x": Field((64, 64), "uint8", codec="lz4"), "n": "int64"}
    rows = rows_bytes(spec, 5000)
    end = threading.Event()
    with ReplayBuffer(5000, spec, max_bytes=rows + 400_000, seed=0) as table:

        def add(n: int) -> None:
            value = np.random.default_rng(n % 50).integers(0, 256, (64, 64)).astype(np.uint8)
            table.add(x=value, n=n)

        def write() -> None:
            n = 100
            while not end.is_set():
                add(n)
                n += 1

        for n in range(100):
            add(n)
        known = [
            np.random.default_rng(n).integers(0, 256, (64, 64)).astype(np.uint8) for n in range(50)
        ]
        writer = threading.Thread(target=write)
        with AsyncDataLoader(table, 32, num_workers=2, batch_format="numpy") as loader:
            writer.start()
            try:
                for _ in range(60):
                    for batch in (next(loader), table.sample(32)):
                        for n, value in zip(batch["n"].tolist(), batch["x"], strict=True):
                            np.testing.assert_array_equal(value, known[n % 50])
            finally:
                end.set()
                writer.join()
        assert table.stats().deleted > 0


def test_a_checkpoint_keeps_the_values_whatever_the_size_of_the_table(tmp_path):
    plain, table = pair()
    ids = np.arange(1200)
    for one in (plain, table):
        one.extend(**episode(0, 250), stream=0)
    table.save(tmp_path)
    for one in (plain, table):
        one.extend(**episode(250, 90, True), stream=1)
    table.save(tmp_path)
    back = ReplayBuffer.from_checkpoint(tmp_path)
    other = pair()[1]
    other.extend(**episode(500, 120), stream=0)
    other.load(tmp_path)
    for one in (back, other):
        assert one.schema == table.schema
        assert_equal(one.get(ids), plain.get(ids))
    for one in (plain, back, other):
        one.extend(**episode(700, 60), stream=1)
        assert_equal(one.get(ids), plain.get(ids))
    back.save(tmp_path)  # its values lie elsewhere than in the last save
    with pytest.raises(ConfigError, match="the capacity and the max_bytes that it was saved with"):
        ReplayBuffer.from_checkpoint(tmp_path, capacity=900)
    with ReplayBuffer.from_checkpoint(tmp_path) as again:
        assert_equal(again.get(ids), plain.get(ids))


@pytest.mark.parametrize(
    ("error", "said", "make"),
    [
        (SchemaError, "codec='zip': it is 'lz4'", lambda: Field((40, 40), "uint8", codec="zip")),
        (
            ConfigError,
            "use the Fifo remover",
            lambda: ReplayBuffer(9, {"x": Field(300, "uint8", codec="lz4")}, remover=Lifo()),
        ),
        (
            ConfigError,
            "raise max_bytes",
            lambda: ReplayBuffer(900, schema("lz4"), max_bytes="90KB"),
        ),
        (
            OutOfMemory,
            "max_bytes= gives less",
            lambda: ReplayBuffer(10**9, schema("lz4")),
        ),
    ],
)
def test_what_does_not_fit_a_codec_is_refused_at_once(error, said, make):
    with pytest.raises(error, match=said):
        make()
