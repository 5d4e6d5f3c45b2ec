"""AsyncDataLoader's contract: what goes in, what comes out, in which order,
and what is refused before anything starts.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import random
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
from waiting_rig import until

import async_loader
from async_loader import END, AsyncDataLoader, connect
from async_loader.errors import Broken, CannotSend, ConfigError, JobFailed, SchemaError, Unsupported
from async_loader.source import Applied, Jobs, Samples

Step = namedtuple("Step", "obs reward")
WORKERS = pytest.mark.parametrize("workers", [0, 1, 2])


def job(i: int) -> dict:
    return {"i": i, "x": np.full((3,), i, np.float32)}


def jobs_in_order(batch_size, *, of=job):
    """Return a data source of jobs that count up from batch to batch."""
    count = itertools.count()
    return lambda n: [functools.partial(of, next(count)) for _ in range(n)]


def dicts_in_order(make=job):
    count = itertools.count()
    return lambda n: [make(next(count)) for _ in range(n)]


def take(loader, n):
    return [next(loader) for _ in range(n)]


def ended(source, batches):
    """``source`` for this number of batches, then END."""
    left = itertools.count(batches, -1)
    return lambda n: source(n) if next(left) > 0 else END


# -- what a callable may give ----------------------------------------------------------------------


@WORKERS
def test_the_callable_is_called_with_batch_size(workers):
    asked = []
    source = dicts_in_order()
    with AsyncDataLoader(lambda n: asked.append(n) or source(n), 6, num_workers=workers) as loader:
        next(loader)
    assert set(asked) == {6}


@WORKERS
def test_a_list_of_dicts_is_collated_in_order(workers):
    with AsyncDataLoader(dicts_in_order(), 4, num_workers=workers) as loader:
        for n, batch in enumerate(take(loader, 5)):
            assert batch["i"].tolist() == list(range(4 * n, 4 * n + 4))
            assert batch["i"].dtype == torch.int64
            assert torch.equal(batch["x"], batch["i"].float()[:, None].expand(4, 3))


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 3, 6])
@WORKERS
def test_jobs_come_back_in_source_order_within_and_across_batches(workers, chunk_size):
    with AsyncDataLoader(jobs_in_order(6), 6, chunk_size=chunk_size, num_workers=workers) as loader:
        for n, batch in enumerate(take(loader, 8)):
            assert batch["i"].tolist() == list(range(6 * n, 6 * n + 6))
            assert torch.equal(batch["x"][:, 0].long(), batch["i"])


def slow_first(i: int, gate: str) -> int:
    if i == 0:
        while not os.path.exists(gate):
            threading.Event().wait(0.005)
    return i


def test_without_in_order_batches_arrive_as_they_finish(tmp_path):
    gate = tmp_path / "gate"
    source = ended(jobs_in_order(2, of=functools.partial(slow_first, gate=str(gate))), 5)
    with AsyncDataLoader(
        source, 2, num_workers=2, chunk_size=2, prefetch=4, in_order=False, timeout_s=60
    ) as loader:
        first = take(loader, 3)
        assert all(0 not in b.tolist() for b in first)
        gate.touch()
        rest = list(loader)
        assert sorted(i for b in first + rest for i in b.tolist()) == list(range(10))


@pytest.mark.parametrize("nbytes", [64, 1 << 20], ids=["copied", "lent"])
@pytest.mark.parametrize("extra", [{}, {"name": "text"}], ids=["laid out", "loose"])
def test_a_source_that_reuses_its_arrays_changes_no_finished_batch(nbytes, extra):
    array, tensor, count = np.zeros(nbytes, np.uint8), torch.zeros(2), itertools.count()

    def source(n):
        i = next(count)
        array[:] = i
        tensor[:] = i
        return {"x": array, "t": tensor, **extra}

    with AsyncDataLoader(source, 1, prefetch=4) as loader:
        batches = take(loader, 6)
        for i, batch in enumerate(batches):
            assert (batch["x"] == i).all()
            assert (batch["t"] == i).all()


@pytest.mark.parametrize("nbytes", [64, 1 << 20], ids=["small", "large"])
@WORKERS
def test_batches_that_are_kept_are_never_written_again(workers, nbytes):
    source = jobs_in_order(2, of=functools.partial(filled, nbytes))
    with AsyncDataLoader(source, 2, num_workers=workers) as loader:
        kept = take(loader, 20)
    for n, batch in enumerate(kept):
        assert batch["x"][:, 0].tolist() == [2 * n % 256, (2 * n + 1) % 256]
        assert (batch["x"] == batch["x"][:, :1]).all()


def filled(nbytes: int, i: int) -> dict:
    return {"x": np.full(nbytes, i % 256, np.uint8)}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([{"x": 1}], r"returned 1 entries, batch_size is 2"),
        ([{"x": 1}] * 3, r"returned 3 entries, batch_size is 2"),
        ([], r"returned 0 entries, batch_size is 2"),
        (None, r"returned NoneType: return batch_size sample dicts"),
        ("ab", r"returned str"),
        (np.zeros(2), r"returned ndarray"),
        ([{"x": 1}, lambda: 1], r"returned 1 callables and 1 other entries"),
        (iter([1, 2]), r"returned list_iterator"),
    ],
)
def test_an_invalid_result_of_the_callable_fails_one_batch_only(data, text):
    given = iter([data])
    with AsyncDataLoader(lambda n: next(given, [{"x": 1}] * n), 2) as loader:
        with pytest.raises(SchemaError, match=f"data_source .*test_loader.py.* {text}"):
            next(loader)
        assert next(loader)["x"].tolist() == [1, 1]


# -- columns ---------------------------------------------------------------------------------------


def columns(rows=100):
    ids = np.arange(rows)
    return {
        "obs": {
            "a": np.stack([ids, ids], 1).astype(np.float32),
            "t": torch.arange(rows, dtype=torch.int32),
        },
        "pair": (ids.astype(np.uint8), ids > 50),
        "f": np.asfortranarray(np.stack([ids] * 3, 1)),
        "one": ids[:, None].astype(np.float64),
    }


def check_columns(batch, rows):
    index = batch["index"]
    assert index.dtype == torch.int64
    assert index.shape == (rows,)
    assert torch.equal(batch["obs"]["a"], torch.stack([index, index], 1).float())
    assert torch.equal(batch["obs"]["t"], index.int())
    assert torch.equal(batch["pair"][0], index.to(torch.uint8))
    assert torch.equal(batch["pair"][1], index > 50)
    assert torch.equal(batch["f"], torch.stack([index] * 3, 1))
    assert torch.equal(batch["one"], index[:, None].double())
    assert type(batch["pair"]) is tuple


@pytest.mark.parametrize("batch_size", [4, 8192], ids=["copied", "lent"])
@WORKERS
def test_columns_give_rows_that_belong_together_and_their_index(workers, batch_size):
    with AsyncDataLoader(columns(), batch_size, num_workers=workers) as loader:
        for batch in take(loader, 4):
            check_columns(batch, batch_size)
            assert batch["f"].is_contiguous()


def test_the_same_seed_draws_the_same_batches_with_any_workers():
    def drawn(seed, **options):
        with AsyncDataLoader({"x": np.arange(1000)}, 32, seed=seed, **options) as loader:
            return torch.stack([b["index"] for b in take(loader, 6)])

    first = drawn(3)
    assert torch.equal(first, drawn(3))
    assert torch.equal(first, drawn(3, num_workers=2, chunk_size=8))
    assert not torch.equal(first, drawn(4))
    assert not torch.equal(drawn(None), drawn(None))


# -- collate_fn ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [None, 1, 6])
@WORKERS
def test_a_collate_fn_sees_the_whole_batch_in_order_once(workers, chunk_size):
    def collate_fn(samples):
        assert type(samples) is list
        return {
            "ids": torch.tensor([s["i"] for s in samples]),
            "pid": os.getpid(),
            "shape": (len(samples), None),
        }

    with AsyncDataLoader(
        jobs_in_order(6), 6, chunk_size=chunk_size, collate_fn=collate_fn, num_workers=workers
    ) as loader:
        for n, batch in enumerate(take(loader, 4)):
            assert batch["ids"].tolist() == list(range(6 * n, 6 * n + 6))
            assert (batch["pid"] == os.getpid()) == (workers < 2)
            assert batch["shape"] == (6, None)


@pytest.mark.parametrize("ready", [True, False], ids=["callable", "feeder"])
def test_a_collate_fn_sees_the_rows_of_batches_that_come_complete(ready):
    def rows(n):
        return {"o": {"x": np.arange(3 * n).reshape(n, 3)}, "i": np.arange(n)}

    def collate_fn(samples):
        assert all((s["o"]["x"] == np.arange(3) + 3 * s["i"]).all() for s in samples)
        return {"rows": len(samples)}

    with connect("embedded", tables={"t": 100}) as client:
        table = client.table("t")
        with table.writer() as writer:
            writer.extend(rows(50))
        with AsyncDataLoader(rows if ready else table, 4, collate_fn=collate_fn) as loader:
            assert next(loader) == {"rows": 4}


@pytest.mark.parametrize("nbytes", [100, 300_000])
@WORKERS
def test_a_collate_fn_may_return_any_object(workers, nbytes):
    def collate_fn(samples):
        i = samples[0]["i"]
        return [
            np.full(nbytes, i, np.uint8),
            {"t": torch.full((nbytes,), i).bfloat16(), "s": "text"},
            Step(np.arange(3), None),
        ]

    with AsyncDataLoader(jobs_in_order(2), 2, collate_fn=collate_fn, num_workers=workers) as loader:
        for n, (array, rest, step) in enumerate(take(loader, 8)):
            assert array.dtype == torch.uint8
            assert array.shape == (nbytes,)
            assert (array == 2 * n).all()
            assert rest["t"].dtype == torch.bfloat16
            assert (rest["t"] == 2 * n).all()
            assert rest["s"] == "text"
            assert type(step) is Step
            assert step.obs.tolist() == [0, 1, 2]


# -- functions that pickle does not know -----------------------------------------------------------


def test_an_unpicklable_job_fails_its_batch_by_name_and_others_arrive():
    lock = threading.Lock()
    batches = iter([[lambda: 1, lambda: lock and 2]])
    with AsyncDataLoader(
        lambda n: next(batches, [lambda: 3] * n), 2, chunk_size=2, num_workers=2
    ) as loader:
        with pytest.raises(
            CannotSend,
            match=r"job 1 of the batch, .*<lambda> \(.*test_loader.py:\d+\), "
            r"cannot be sent: .*lock",
        ):
            next(loader)
        assert next(loader).tolist() == [3, 3]


# -- the general path ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 4])
@WORKERS
def test_objects_and_ragged_samples_without_a_collate_fn_are_refused_by_name(workers, chunk_size):
    sources = {"no rule": object, "shapes": None}
    counts = itertools.count(1)
    for text, make in sources.items():
        jobs = [make or functools.partial(np.zeros, next(counts)) for _ in range(4)]
        with AsyncDataLoader(
            lambda n, jobs=jobs: jobs, 4, chunk_size=chunk_size, num_workers=workers
        ) as loader:
            for _ in range(2):
                with pytest.raises(
                    SchemaError, match="cannot be collated" if text == "no rule" else "has shapes"
                ):
                    next(loader)


@pytest.mark.parametrize("chunk_size", [1, 2, 4])
@WORKERS
def test_a_new_shape_between_batches_makes_a_new_layout(workers, chunk_size):
    count = itertools.count()

    def source(n):
        width = 1 + next(count) // 2 % 3
        return [functools.partial(np.full, (width, 2), i, np.int16) for i in range(n)]

    with AsyncDataLoader(source, 4, chunk_size=chunk_size, num_workers=workers) as loader:
        for n, batch in enumerate(take(loader, 12)):
            assert batch.shape == (4, 1 + n // 2 % 3, 2)
            assert batch[:, 0, 0].tolist() == [0, 1, 2, 3]


# -- random numbers --------------------------------------------------------------------------------


def noise(_=None):
    return {
        "n": np.random.randint(1 << 30),
        "p": random.getrandbits(30),
        "t": torch.randint(1 << 30, ()),
    }


def values(batch):
    return [batch[k].tolist() for k in "npt"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_random_numbers_in_jobs_do_not_depend_on_the_worker(method):
    def without_torch():  # importing which takes a spawned worker seconds
        return {"n": np.random.randint(1 << 30), "p": random.getrandbits(30), "t": 0}

    draw = noise if method == "fork" else without_torch

    def run(seed, workers):
        with AsyncDataLoader(
            lambda n: [draw] * n,
            8,
            chunk_size=2,
            seed=seed,
            num_workers=workers,
            multiprocessing_context=method,
            timeout_s=60,
        ) as loader:
            return [values(b) for b in take(loader, 5)]

    first = run(1, 2)
    assert run(1, 3) == first
    drawn = [v for batch in first for column in batch for v in column if v]
    assert len(set(drawn)) > len(drawn) - 3  # no stream is drawn twice
    if method == "fork":
        assert run(2, 2) != first


# -- workers ---------------------------------------------------------------------------------------


def test_jobs_under_every_start_method(start_method):
    def local(i):  # sent by value, so that no worker imports this module and torch with it
        return {"i": i}

    with AsyncDataLoader(
        jobs_in_order(8, of=local),
        8,
        chunk_size=2,
        num_workers=2,
        multiprocessing_context=start_method,
        timeout_s=60,
    ) as loader:
        for n, batch in enumerate(take(loader, 5)):
            assert batch["i"].tolist() == list(range(8 * n, 8 * n + 8))


def test_the_worker_init_fn_is_called_with_the_number_in_each_worker(tmp_path):
    def init(number):
        (tmp_path / f"{number}-{os.getpid()}").touch()

    with AsyncDataLoader(
        lambda n: [os.getpid] * n, 4, chunk_size=1, num_workers=2, worker_init_fn=init
    ) as loader:
        pids = set(itertools.chain.from_iterable(b.tolist() for b in take(loader, 10)))
    made = sorted(path.name.split("-") for path in tmp_path.iterdir())
    assert [number for number, _ in made] == ["0", "1"]
    assert pids <= {int(pid) for _, pid in made}


def test_a_worker_init_fn_that_fails_breaks_the_loader_with_its_reason():
    def init(number):
        raise ZeroDivisionError("no licence")

    with AsyncDataLoader(
        lambda n: [int] * n, 4, num_workers=2, worker_init_fn=init, timeout_s=60
    ) as loader:
        with pytest.raises(Broken) as caught:
            next(loader)
    assert "no licence" in f"{caught.value} {caught.value.__cause__}"


# -- prefetch --------------------------------------------------------------------------------------


class Counting:
    """A source that counts how far plans run ahead of deliveries."""

    def __init__(self, plan):
        self.planned = 0
        self._plan = plan

    def plan(self, batch_size, patience):
        self.planned += 1
        return self._plan(batch_size)

    def reader(self):
        return None

    def update_priorities(self, index, priority):
        return Applied(len(index), 0)


@pytest.mark.parametrize("prefetch", [1, 3])
@WORKERS
def test_no_more_batches_are_under_way_than_prefetch(workers, prefetch):
    source = Counting(lambda n: Jobs([functools.partial(filled, 100_000, 1)] * n))
    with AsyncDataLoader(source, 2, num_workers=workers, prefetch=prefetch) as loader:
        for delivered in range(1, 12):
            next(loader)
            threading.Event().wait(0.01)
            assert source.planned <= delivered + prefetch
        assert source.planned >= delivered
        until(lambda: source.planned == delivered + prefetch)


def test_a_user_defined_source_gets_feedback():
    source = Counting(lambda n: Samples([{"x": 1}] * n))
    with AsyncDataLoader(source, 2) as loader:
        assert next(loader)["x"].tolist() == [1, 1]
        assert loader.update_priorities(torch.arange(3), [0.1, 0.2, 0.3]) == Applied(3, 0)
    with (
        AsyncDataLoader({"x": np.arange(3)}, 2) as loader,
        pytest.raises(Unsupported, match="ReplayBuffer"),
    ):
        loader.update_priorities([1], [0.5])


# -- layout, slots, numbers ------------------------------------------------------------------------


def test_stats_count_batches_and_slots():
    for workers in (0, 2):
        with AsyncDataLoader(
            jobs_in_order(2, of=functools.partial(filled, 100_000)), 2, num_workers=workers
        ) as loader:
            assert loader.stats().slots_lent == 0
            held = take(loader, 2)
            stats = loader.stats()
            assert stats.learner.batches == 2
            assert stats.source.batches >= 2
            assert stats.workers.batches >= 2
            assert stats.workers.busy_s > 0
            assert stats.slots >= 3
            assert stats.slots_lent == 2
            assert stats.copied_out == 0
            assert stats.skipped == stats.workers_replaced == 0
            assert stats.bottleneck in ("source", "workers", "copy", "learner")
            held = [*held, *take(loader, 6)]
            stats = loader.stats()
            assert stats.slots_lent == 3
            assert stats.copied_out == 5
            del held
            assert loader.stats().slots_lent == 0


@WORKERS
def test_skipped_batches_are_counted(workers):
    count = itertools.count()
    source = lambda n: [functools.partial(operator.truediv, 1, next(count) % 4)] * n  # noqa: E731
    with AsyncDataLoader(source, 1, num_workers=workers, on_error="skip") as loader:
        assert [next(loader).item() for _ in range(6)] == pytest.approx([1, 0.5, 1 / 3] * 2)
        assert loader.stats().skipped == 2


@pytest.mark.parametrize(
    "kind", ["StopIteration", "Closed", "KeyboardInterrupt", "SystemExit", "GeneratorExit"]
)
@WORKERS
def test_exceptions_that_would_end_the_loop_silently_are_raised_as_job_failed(workers, kind):
    import builtins

    from async_loader import errors

    def fail():
        raise getattr(errors, kind, None) or getattr(builtins, kind)("from the job")

    jobs = iter([[fail, fail]])
    with AsyncDataLoader(
        lambda n: next(jobs, [int] * n), 2, num_workers=workers, timeout_s=60
    ) as loader:
        with pytest.raises((JobFailed, async_loader.errors.AsyncLoaderError), match=kind):
            next(loader)
        assert next(loader).tolist() == [0, 0]


# -- bad arguments ---------------------------------------------------------------------------------

GOOD = {"x": np.arange(4)}
BAD = {
    "chunk_size that does not divide": (
        {"chunk_size": 3},
        "chunk_size 3 does not divide batch_size 8",
    ),
    "negative workers": ({"num_workers": -1}, "num_workers is -1: give an integer of at least 0"),
    "batch_size None": ({"batch_size": None}, "batch_size is None"),
    "prefetch -1": ({"prefetch": -1}, "prefetch is -1: give an integer of at least 0"),
    "prefetch 0": ({"prefetch": 0}, "prefetch=0: the thread that calls next draws rows of a table"),
    "seed float": ({"seed": 1.5}, "seed is 1.5"),
    "timeout nan": ({"timeout_s": float("nan")}, "timeout_s=nan: give seconds, 0 "),
    "in_order str": ({"in_order": "no"}, "in_order is 'no'"),
    "on_error": (
        {"on_error": "ignore"},
        "on_error is 'ignore': give one of 'raise', 'skip', 'fatal'",
    ),
    "batch_format": (
        {"batch_format": "jax"},
        "batch_format='jax': give 'numpy', 'torch' or 'tensordict'",
    ),
    "arrays on a device": (
        {"batch_format": "numpy", "device": "cuda"},
        "batch_format='numpy' and device='cuda': arrays are on",
    ),
    "worker_type": (
        {"worker_type": "threads"},
        "worker_type is 'threads': give one of 'process', 'thread'",
    ),
    "context": (
        {"multiprocessing_context": "thread"},
        "multiprocessing_context is 'thread': give one of",
    ),
    "slot_bytes": ({"slot_bytes": 0}, "slot_bytes is 0"),
    "collate_fn": ({"collate_fn": "default"}, "collate_fn is str: give a callable or None"),
    "device": ({"device": "abacus"}, "device 'abacus' is nothing that torch knows"),
    "device number": ({"device": 1}, "device=1: give a name such as 'cuda:1'"),
    "data_source list": (
        {"data_source": [1, 2]},
        r"data_source is a list, a dataset: say async_loader.DataLoader\(dataset",
    ),
    "data_source None": ({"data_source": None}, "data_source is a NoneType: give a callable"),
    "a source's class": (
        {"data_source": Counting},
        "data_source is the class Counting: give an instance",
    ),
    "empty dict": ({"data_source": {}}, "empty dict: give at least one column"),
    "unequal columns": (
        {"data_source": {"a": np.zeros(3), "o": {"b": np.zeros(4)}}},
        r"columns are of unequal length: 'a' has 3 rows, 'o\.b' has 4",
    ),
    "no rows": ({"data_source": {"a": np.zeros((0, 3))}}, "the columns have 0 rows"),
    "object column": (
        {"data_source": {"a": np.array([None])}},
        "column 'a' is dtype object: give an array of",
    ),
    "scalar column": ({"data_source": {"a": 3}}, "column 'a' is a single number"),
    "list column": (
        {"data_source": {"a": [1, 2]}},
        r"column 'a.0' is a single number: .* numpy.asarray",
    ),
    "reserved weight": (
        {"data_source": {"x": np.zeros(3), "weight": np.zeros(3)}},
        "column 'weight' has a reserved name",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_argument_is_refused_before_anything_starts(case, monkeypatch):
    started = []
    monkeypatch.setattr(threading.Thread, "start", lambda self: started.append(self))
    monkeypatch.setattr(
        "multiprocessing.process.BaseProcess.start", lambda self: started.append(self)
    )
    arguments, text = BAD[case]
    with pytest.raises(ConfigError, match=text):
        AsyncDataLoader(**{"data_source": GOOD, "batch_size": 8, "num_workers": 2, **arguments})
    assert not started
