"""``AsyncDataLoader(into=...)``: batches in the caller's own tensors."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from fake_device import FakeBackend, FakeStream
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    END,
    AsyncDataLoader,
    Field,
    Prioritized,
    ReplayBuffer,
)
from async_loader.errors import ConfigError, SchemaError
from tests.test_transform import EVERYWHERE, KINDS, SOURCES, WIDE, columns

B = 8


def given_tensors(width: int = 3, index: bool = False) -> dict[str, torch.Tensor]:
    made = {"x": torch.full((B, width), -1.0), "i": torch.full((B,), -1)}
    return made | ({"index": torch.full((B,), -1)} if index else {})


def clones(batch: dict) -> dict:
    return {name: value.clone() for name, value in batch.items()}


# -- what is delivered -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "width"),
    [
        (KINDS["inline"], 3),
        (KINDS["processes"], WIDE),
        (KINDS["chunks"], 3),
        (KINDS["threads"], WIDE),
    ],
    ids=["inline", "processes, in slots", "chunks", "threads, in slots"],
)
@pytest.mark.parametrize("kind", SOURCES)
def test_batches_come_in_the_given_tensors_and_are_those_that_come_without(kind, how, width):
    found = []
    for into in (None, given_tensors(width)):
        with AsyncDataLoader(SOURCES[kind](width), B, seed=3, into=into, **how) as loader:
            found.append([])
            for batch in itertools.islice(loader, 5):
                if into is not None:
                    assert batch["x"] is into["x"]
                    assert batch["i"] is into["i"]
                    assert loader.stats().slots_lent == 0
                found[-1].append(clones(batch))
    for a, b in zip(*found, strict=True):
        assert list(a) == list(b)
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("how", "count"),
    [*((how, 2) for how in KINDS.values()), (KINDS["inline"], 1), ({}, 3)],
    ids=str,
)
def test_n_dicts_are_used_in_turn_and_keep_a_batch_until_their_next_turn(how, count):
    buffers = [given_tensors() for _ in range(count)]
    with AsyncDataLoader(SOURCES["jobs"](), B, into=buffers, **how) as loader:
        for number in range(7):
            batch = next(loader)
            assert batch["x"] is buffers[number % count]["x"]
            for back in range(min(count, number + 1)):
                first = B * (number - back)
                there = buffers[(number - back) % count]["i"]
                assert there.tolist() == list(range(first, first + B))


def test_what_is_not_given_comes_beside_on_memory_of_its_own():
    into = {"x": torch.empty(B, WIDE)}
    with AsyncDataLoader(columns(WIDE), B, into=into, num_workers=2) as loader:
        first = next(loader)
        i = first["i"].clone()
        assert list(first) == ["x", "i", "index"]
        second = next(loader)
        assert torch.equal(first["i"], i)
        assert torch.equal(second["x"][:, 0], second["i"].float())
        assert loader.stats().slots_lent == 0
    assert list(into) == ["x"]


def test_a_table_with_index_weight_and_stacks():
    with ReplayBuffer(
        64,
        {"obs": Field((2,), "float32", stack=3, next="next_obs")},
        sampler=Prioritized(),
    ) as table:
        writer = table.writer()
        for t in range(40):
            writer.append(obs=np.full(2, t, np.float32))
        sample = table.sample(B, batch_format="torch")
        into = {name: torch.empty_like(value) for name, value in sample.items()}
        with AsyncDataLoader(table, B, into=into, seed=0) as loader:
            for _ in range(20):
                batch = next(loader)
                assert all(batch[name] is into[name] for name in into)
                assert torch.equal(batch["next_obs"][:, -1], batch["obs"][:, -1] + 1)
                loader.update_priorities(batch["index"], torch.ones(B))


# -- ends, errors, interruptions -------------------------------------------------------------------


@EVERYWHERE
def test_the_end_and_close_leave_the_last_batch_in_the_tensors(how):
    left, into = list(range(3)), given_tensors()

    def source(n):
        return {"x": np.full((n, 3), left.pop(0), np.float32), "i": np.arange(n)} if left else END

    with AsyncDataLoader(source, B, into=into, **how) as loader:
        assert [batch["x"][0, 0].item() for batch in loader] == [0.0, 1.0, 2.0]
    assert into["x"][0, 0] == 2


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_failed_batch_uses_no_turn_and_leaves_the_tensors_alone(on_error):
    count = itertools.count()

    def broken():
        raise KeyError("no frame")

    def source(n):
        number = next(count)
        job = broken if number == 1 else lambda: {"x": np.full(2, number, np.float32)}
        return [job] * n

    buffers = [{"x": torch.empty(B, 2)} for _ in range(2)]
    with AsyncDataLoader(source, B, into=buffers, on_error=on_error) as loader:
        assert next(loader)["x"] is buffers[0]["x"]
        if on_error == "raise":
            with pytest.raises(KeyError):
                next(loader)
            assert buffers[0]["x"][0, 0] == 0
        batch = next(loader)
        assert batch["x"] is buffers[1]["x"]
        assert batch["x"][0, 0] == 2


def test_a_batch_that_does_not_fit_is_refused_whole_and_the_loader_goes_on():
    sizes = iter([B, B - 1, B])

    def source(n):
        size = next(sizes, None)
        if size is None:
            return END
        return {"x": np.full((size, 3), size, np.float32), "i": np.full(size, size)}

    into = given_tensors()
    with AsyncDataLoader(source, B, into=into) as loader:
        next(loader)
        into["x"].fill_(5)
        with pytest.raises(
            SchemaError, match=re.escape("into['x'] is [8, 3] float32, and the batch has [7, 3]")
        ):
            next(loader)
        assert into["x"].eq(5).all()
        assert next(loader)["x"][0, 0] == B


# -- what is refused before anything starts --------------------------------------------------------


def refused(into, match, data=None, **arguments):
    with pytest.raises(ConfigError, match=re.escape(match)):
        AsyncDataLoader(columns() if data is None else data, B, into=into, **arguments)


def test_what_is_no_tensor_to_write_into_is_refused():
    x = torch.empty(B, 3)
    refused({}, "into is empty")
    refused([], "into= is empty")
    refused([{"x": x}, x], "into= is a list")
    refused(x, "into= is a Tensor")
    refused({"x": None}, "into['x'] is None")
    refused({"x": x.numpy()}, "give torch.from_numpy(array)")
    refused({"x": x.clone().requires_grad_()}, "with a gradient")
    refused(
        {"x": torch.empty(B, 3, device="meta")},
        "on device 'meta', and this field is delivered on cpu",
    )
    refused({"x": torch.empty(B, 3).to_sparse()}, "a sparse coo tensor")
    refused({"x": x}, "leave batch_format out", batch_format="numpy")


def test_dicts_on_the_same_memory_are_refused():
    a, b = given_tensors(), given_tensors()
    refused([a, a], "into[0]['x'] and into[1]['x'] are the same memory")
    refused([a, b | {"i": a["i"]}], "into[0]['i'] and into[1]['i'] are the same memory")


# -- on a device -----------------------------------------------------------------------------------


def on(fake: FakeBackend) -> dict:
    return {"x": fake.empty((B, 3), "float32"), "i": fake.empty((B,), "int64")}


@pytest.mark.parametrize(
    ("how", "count"), [*((how, 2) for how in KINDS.values()), (KINDS["inline"], 1)], ids=str
)
def test_on_a_device_batches_come_in_the_given_arrays(how, count):
    fake = FakeBackend()
    buffers = [on(fake) for _ in range(count)]
    with AsyncDataLoader(SOURCES["jobs"](), B, device=fake, into=buffers, **how) as loader:
        for number in range(6):
            batch = next(loader)
            assert batch["x"] is buffers[number % count]["x"]
            assert batch["i"].numpy().tolist() == list(range(B * number, B * number + B))
            assert np.array_equal(batch["x"].numpy()[:, 0], batch["i"].numpy())
    assert fake.violations == []


@settings(max_examples=30)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12))
def test_small_batches_of_a_table_come_in_the_given_arrays(count, steps):
    """Whatever stream each `next` and its kernel run on, and however late the device is."""
    fake = FakeBackend()
    buffers = [on(fake) for _ in range(count)]
    streams = [FakeStream("first"), FakeStream("second")]
    seen = []
    with ReplayBuffer(32) as table:
        table.extend(columns())
        with AsyncDataLoader(table, B, device=fake, into=buffers, seed=1) as loader:
            next(loader)  # may come before the device is open, and in a slot
            before = fake.copies
            for which, ran in steps:
                with fake.stream(streams[which]):
                    batch = next(loader)
                    seen.append((batch["index"], fake.launch(batch["i"], batch["x"])))
                fake.advance(streams[which], ran)
            assert fake.copies == before + 2 * len(steps)  # each field once, and no block
            for stream in streams:
                fake.drain(stream)
    for index, result in seen:
        assert result.values[0].tolist() == index.tolist()
        assert result.values[1][:, 0].tolist() == index.tolist()
    assert fake.violations == []


@settings(max_examples=30)
@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=12))
def test_kernels_read_the_batch_that_was_current_when_they_were_launched(count, steps):
    """Whatever stream each `next` and its kernel run on, and however late the device is."""
    fake = FakeBackend()
    buffers = [on(fake) for _ in range(count)]
    streams = [FakeStream("first"), FakeStream("second")]
    seen = []
    with AsyncDataLoader(SOURCES["ready"](), B, device=fake, into=buffers) as loader:
        for number, (which, ran) in enumerate(steps):
            with fake.stream(streams[which]):
                batch = next(loader)
                seen.append((B * number, fake.launch(batch["i"], batch["x"])))
            fake.advance(streams[which], ran)
            fake.advance(fake.side, ran)
        for stream in streams:
            fake.drain(stream)
    for first, result in seen:
        assert result.values[0].tolist() == list(range(first, first + B))
        assert result.values[1][:, 0].tolist() == list(range(first, first + B))
    assert fake.violations == []


def test_a_buffer_that_returns_on_another_stream_waits_for_the_stream_before():
    fake = FakeBackend()
    first, second = FakeStream("first"), FakeStream("second")
    late = []
    with AsyncDataLoader(SOURCES["ready"](), B, device=fake, into=on(fake)) as loader:
        for stream in (first, second, first):
            with fake.stream(stream):
                batch = next(loader)
                fake.drain(stream)
                late.append(fake.launch(batch["i"]))  # has not run when the next batch comes
        fake.drain(first)
    assert [result.values[0][0] for result in late] == [0, B, 2 * B]
    assert fake.violations == []
