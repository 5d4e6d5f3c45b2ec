"""``AsyncDataLoader(transform=...)``: a function of whole batches, called where they are made."""

from __future__ import annotations

import functools
import itertools
import os
import threading
import traceback

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import AsyncDataLoader, ReplayBuffer, connect

KINDS = {
    "inline": {},
    "processes": {"num_workers": 2},
    "chunks": {"num_workers": 2, "chunk_size": 2},
    "threads": {"num_workers": 2, "worker_type": "thread"},
}
EVERYWHERE = pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
WIDE = 3000
"""Floats of a row: eight rows of them are more than what is copied out of a slot."""


def job(i: int, width: int) -> dict:
    return {"x": np.full(width, i, np.float32), "i": i}


def jobs(width=3):
    count = itertools.count()
    return lambda n: [functools.partial(job, next(count), width) for _ in range(n)]


def ready(width=3):
    """Complete batches on arrays that their maker uses again."""
    x, count = np.zeros((8, width), np.float32), itertools.count()

    def source(n):
        first = n * next(count)
        x[:] = np.arange(first, first + n)[:, None]
        return {"x": x, "i": torch.arange(first, first + n)}

    return source


def samples(width=3):
    count = itertools.count()
    return lambda n: [job(next(count), width) for _ in range(n)]


def columns(width=3):
    i = np.arange(100)
    return {"x": np.repeat(i[:, None], width, 1).astype(np.float32), "i": i}


def table(width=3):
    made = ReplayBuffer(128)
    made.extend(columns(width))
    return made


SOURCES = {
    "jobs": jobs,
    "samples": samples,
    "ready": ready,
    "columns": columns,
    "table": table,
}
ALL_SOURCES = pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)


def take(loader, count):
    """Copies: the same memory is used again."""
    return [{k: v.clone() for k, v in next(loader).items()} for _ in range(count)]


def change(batch: dict) -> dict:
    assert all(type(value) is np.ndarray for value in batch.values())
    assert len(batch["x"]) == 8
    batch["x"] *= 2  # in place
    return {
        "x": batch["x"],
        "half": batch["x"].astype(np.float64) / 4,
        "flat": torch.from_numpy(batch["x"][0].copy()),
        "turned": batch["x"].T,
        "first": batch["x"][:, :1],
        "i": batch["i"],
    }


@pytest.mark.parametrize("width", [3, WIDE], ids=["small", "in slots"])
@EVERYWHERE
@ALL_SOURCES
def test_fields_may_be_changed_added_left_out_and_reshaped(make, how, width):
    source = make(width)
    with AsyncDataLoader(source, 8, transform=change, seed=0, **how) as loader:
        batches = take(loader, 6)
    for batch in batches:
        i = batch["i"].float()
        assert list(batch) == ["x", "half", "flat", "turned", "first", "i"]
        assert torch.equal(batch["x"], 2 * i[:, None].expand(8, width))
        assert torch.equal(batch["half"], i.double()[:, None].expand(8, width) / 2)
        assert torch.equal(batch["flat"], 2 * i[0].expand(width))
        assert torch.equal(batch["turned"], batch["x"].T)
        assert torch.equal(batch["first"], batch["x"][:, :1])
    if isinstance(source, ReplayBuffer):
        source.close()


def noisy(batch: dict, rng: np.random.Generator) -> dict:
    batch["noise"] = rng.random(len(batch["x"]))
    return batch


@pytest.mark.parametrize("make", [jobs, columns, table], ids=["jobs", "columns", "table"])
def test_a_seed_gives_the_same_random_numbers_with_and_without_workers(make):
    found = []
    for how in KINDS.values():
        with AsyncDataLoader(make(), 8, transform=noisy, seed=5, **how) as loader:
            found.append(take(loader, 5))
    assert len({tuple(batch["noise"].tolist()) for batch in found[0]}) == 5
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a)


def where(batch: dict) -> dict:
    return {"pid": np.array([os.getpid()]), "thread": np.array([threading.get_ident()])}


def refuse(batch: dict) -> dict:
    raise KeyError("no such crop")


@EVERYWHERE
@ALL_SOURCES
def test_its_error_arrives_at_next_with_where_it_was_raised(make, how):
    source = make()
    with AsyncDataLoader(source, 8, transform=refuse, **how) as loader:
        for _ in range(2):  # and the loader goes on
            with pytest.raises(KeyError, match="no such crop") as caught:
                next(loader)
            error = caught.value
            text = "".join(traceback.format_exception(error))
            assert "in refuse" in text
    if isinstance(source, ReplayBuffer):
        source.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_feeder_are_transformed_where_they_arrive(workers):
    with connect("embedded", tables={"replay": {"capacity": 128}}) as client:
        remote = client.table("replay")
        with remote.writer() as writer:
            for i in range(40):
                writer.append(job(i, WIDE))
        with AsyncDataLoader(remote, 8, transform=change, num_workers=workers) as loader:
            for batch in take(loader, 4):
                assert torch.equal(batch["x"][:, 0], 2 * batch["i"].float())
                assert torch.equal(batch["turned"], batch["x"].T)


@EVERYWHERE
@pytest.mark.parametrize("width", [3, WIDE], ids=["small", "large"])
@ALL_SOURCES
def test_batches_go_to_a_device_with_what_was_added_and_without_what_was_left_out(make, width, how):
    source = make(width)
    with AsyncDataLoader(source, 8, transform=change, device="fake", **how) as loader:
        for _ in range(3):
            batch = next(loader)
            assert list(batch) == ["x", "half", "flat", "turned", "first", "i"]
            x, i = batch["x"].numpy(), batch["i"].numpy()
            assert np.array_equal(x, np.repeat(2.0 * i[:, None], width, 1))
            assert np.array_equal(batch["turned"].numpy(), x.T)
            assert np.array_equal(batch["half"].numpy(), x / 4)
    if isinstance(source, ReplayBuffer):
        source.close()


NUMBERS = st.sampled_from([np.uint8, np.int64, np.float32, np.bool_])


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), NUMBERS, st.booleans()), max_size=4), st.data())
def test_any_mixture_of_kept_and_new_arrays_arrives_as_it_was_made(parts, data):
    made = []

    def mix(batch):
        out = {}
        for number, (rows, dtype, kept) in enumerate(parts):
            new = np.arange(rows * 50).reshape(rows, 50).astype(dtype)
            out[str(number)] = batch["x"][:rows] if kept else new
        made.append({name: value.copy() for name, value in out.items()})
        return out | {"i": batch["i"]}

    workers = data.draw(st.sampled_from([0, 2]))
    with AsyncDataLoader(
        columns(50), 8, transform=mix, num_workers=workers, worker_type="thread", prefetch=2
    ) as loader:
        found = [{k: v.numpy().copy() for k, v in b.items() if k != "i"} for b in take(loader, 3)]
    for batch in found:
        assert any(
            all(np.array_equal(batch[k], one[k]) and batch[k].dtype == one[k].dtype for k in one)
            and batch.keys() == one.keys()
            for one in made
        )
