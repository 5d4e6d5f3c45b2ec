"""Tables on a device: the same calls give what a table in this process gives."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from async_loader import (
    AsyncDataLoader,
    Field,
    Hindsight,
    MinSize,
    Prioritized,
    ReplayBuffer,
    Sequences,
    Transitions,
    Uniform,
)
from async_loader.errors import (
    ConfigError,
    NotEnoughData,
    OutOfMemory,
    SchemaError,
    Timeout,
    Unsupported,
)
from async_loader.replay.buffer import shared_table

SCHEMA = {
    "obs": {
        "pixels": Field((2, 3), "uint8", stack=3, next="after"),
        "speed": Field((), "float64", next="after"),
    },
    "mask": Field((2,), "uint16"),
    "large": Field((300,), "float32", padding="zero", stack=2),
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
}
VIEWS = (None, Transitions(n_steps=3, gamma=0.9), Sequences(4), Sequences(4, boundary="pad"))
STREAMS = 3


def drawn(seed: int, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "obs": observed(seed + 1, rows),
        "mask": rng.integers(0, 60_000, (rows, 2)).astype(np.uint16),
        "large": rng.normal(size=(rows, 300)).astype(np.float32),
        "reward": rng.normal(size=rows).astype(np.float32),
    }


def observed(seed: int, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "pixels": rng.integers(0, 255, (rows, 2, 3)).astype(np.uint8),
        "speed": rng.normal(size=rows),
    }


def row(batch: Any, i: int) -> Any:
    return {k: row(v, i) if isinstance(v, dict) else v[i] for k, v in batch.items()}


def check_equal(got: Any, expected: Any) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        if isinstance(value, dict):
            check_equal(got[name], value)
        else:
            assert isinstance(got[name], torch.Tensor)
            there = got[name].numpy()
            assert there.dtype == value.dtype
            np.testing.assert_array_equal(there, value)


def pair(capacity: int = 24, **how: Any) -> tuple[ReplayBuffer, ReplayBuffer]:
    here = ReplayBuffer(capacity, SCHEMA, seed=1, sampler=how.get("sampler", Uniform)())
    there = ReplayBuffer(
        capacity, SCHEMA, seed=1, sampler=how.get("sampler", Uniform)(), device="cpu"
    )
    return here, there


class Both:
    """The same calls of a table here and of one on a device."""

    def __init__(self, sampler: type) -> None:
        self.tables = pair(sampler=sampler)
        self.seed = 0

    def call(self, name: str, *args: Any, **given: Any) -> Any:
        found = [getattr(table, name)(*args, **given) for table in self.tables]
        assert np.array_equal(found[0], found[1])
        return found[0]

    def add(self, stream: int, ends: int) -> None:
        self.seed += 10
        step = row(drawn(self.seed, 1), 0)
        final = {"final_obs": row(observed(self.seed + 5, 1), 0)} if ends else {}
        step |= {"terminated": ends == 1, "truncated": ends == 2}
        self.call("add", step, stream=stream, **final)

    def extend(self, rows: int, ends: list[int], form: str) -> None:
        self.seed += 10
        ended = np.array([ends[i % len(ends)] for i in range(rows)])
        final: Any = observed(self.seed + 5, rows)
        if form == "objects":
            lists = {name: np.full(rows, None) for name in final}
            for i in np.flatnonzero(ended):
                for name, values in final.items():
                    lists[name][i] = values[i]
            final = lists
        elif form == "tensors":
            final = {name: torch.from_numpy(one) for name, one in final.items()}
        batch: Any = drawn(self.seed, rows)
        if form == "tensors":
            batch["large"] = torch.from_numpy(batch["large"])
            batch["reward"] = torch.from_numpy(batch["reward"])
        self.call(
            "extend", batch | {"terminated": ended == 1, "truncated": ended == 2},
            stream=[i % STREAMS for i in range(rows)],
            **({"final_obs": final} if ended.any() else {}),
        )  # fmt: skip

    def end_episode(self, stream: int, shown: bool) -> None:
        self.seed += 10
        final = {"final_obs": row(observed(self.seed, 1), 0)} if shown else {}
        self.call("end_episode", stream=stream, **final)

    def sample(self, view: Any, count: int) -> None:
        here, there = self.tables
        assert len(here) == len(there)
        try:
            here.sample(count, view=view)
        except (NotEnoughData, ConfigError) as error:
            with pytest.raises(type(error)):
                there.sample(count, view=view)
            return
        got = there.sample(count, view=view)
        weight = got.pop("weight", None)
        ids = got["index"]
        check_equal(got, here.get(ids, view=view))
        check_equal(there.get(ids), here.get(ids))
        if weight is not None:
            self.call("update_priorities", ids, np.linspace(0.1, 2.0, count))

    def update(self, ids: list[int]) -> None:
        self.seed += 10
        values = drawn(self.seed, len(ids))
        large = values["large"].reshape(len(ids), 3, 100)  # any shape with as many elements
        self.call("update", np.array(ids), large=large, reward=values["reward"])

    def save_and_load(self, folder: Any, swap: bool) -> None:
        here, there = self.tables
        here.save(folder / "here")
        there.save(folder / "there")
        # either may be loaded as either
        first, second = ("there", "here") if swap else ("here", "there")
        self.tables = (
            ReplayBuffer.from_checkpoint(folder / first),
            ReplayBuffer.from_checkpoint(folder / second, device="cpu"),
        )


CALLS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, STREAMS - 1), st.sampled_from([0, 0, 0, 1, 2])),
    st.tuples(
        st.just("extend"), st.integers(1, 40) | st.integers(300, 900),
        st.lists(st.sampled_from([0, 0, 1, 2]), min_size=1),
        st.sampled_from(["arrays", "objects", "tensors"]),
    ),
    st.tuples(st.just("end_episode"), st.integers(0, STREAMS - 1), st.booleans()),
    st.tuples(st.just("sample"), st.sampled_from(VIEWS), st.integers(1, 16)),
    st.tuples(st.just("update"), st.lists(st.integers(0, 120), min_size=1, max_size=6)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 120), min_size=1, max_size=3)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("save_and_load"), st.booleans()),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(CALLS, min_size=4, max_size=25), sampler=st.sampled_from([Uniform, Prioritized])
)
def test_any_calls_show_what_a_table_in_this_process_shows(tmp_path_factory, calls, sampler):
    both = Both(sampler)
    both.extend(9, [0, 0, 1, 2], "arrays")
    for name, *args in calls:
        if name in ("delete", "clear"):
            both.call(name, *([np.array(args[0])] if args else []))
        elif name == "save_and_load":
            both.save_and_load(tmp_path_factory.mktemp("saves"), *args)
        else:
            getattr(both, name)(*args)
    for view in VIEWS:
        both.sample(view, 4)
    for table in both.tables:
        table.close()


def test_a_vector_of_environments_writes_to_it():
    tables = pair()
    for table in tables:
        with table.vector_writer(2, autoreset="same_step") as writer:
            for t in range(30):
                values = drawn(t, 2)
                ends = np.array([t % 7 == 6, t % 5 == 4])
                last = [row(observed(t + 500, 2), i) if ends[i] else None for i in range(2)]
                if table is tables[1]:
                    values["large"] = torch.from_numpy(values["large"])
                writer.append(
                    **values, next_obs=observed(t + 1 + 1, 2), terminated=ends & (t % 2 == 0),
                    truncated=ends & (t % 2 == 1),
                    info={"final_obs": np.array([*last, None], object)[:2]},
                )  # fmt: skip
    ids = np.arange(80)
    check_equal(tables[1].get(ids), tables[0].get(ids))


def test_batches_are_of_memory_of_their_own():
    table = ReplayBuffer(4, {"x": Field((2,), "float32")}, device="cpu")
    table.add(x=np.ones(2, np.float32))
    batch = table.sample(3)
    batch["x"].zero_()
    for _ in range(9):
        table.add(x=np.full(2, 7, np.float32))
    assert not batch["x"].any()
    assert (table.sample(3)["x"] == 7).all()


def test_a_tensor_that_is_given_may_change_afterwards():
    table = ReplayBuffer(4, device="cpu")
    value = torch.ones(3, 2)
    table.extend(x=value)
    value.zero_()
    assert (table.sample(3)["x"] == 1).all()


def test_a_thread_adds_while_another_samples():
    table = ReplayBuffer(50, {"x": Field((64,), "int64"), "n": "int64"}, device="cpu")
    over, failed = threading.Event(), []

    def draw() -> None:
        try:
            while not over.is_set():
                batch = table.sample(32, timeout_s=30.0)
                if not (batch["x"] == batch["n"][:, None]).all():
                    failed.append(batch)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for n in range(3000):
            table.add(x=np.full(64, n), n=n)
    finally:
        over.set()
        thread.join(30)
    assert not thread.is_alive()
    assert not failed


def test_it_waits_for_steps_no_longer_than_it_is_told():
    table = ReplayBuffer(50, device="cpu")
    with pytest.raises(NotEnoughData):
        table.sample(2)
    with pytest.raises(Timeout, match="no step has been added yet"):
        table.sample(2, timeout_s=0.01)
    table.add(x=np.zeros(2), reward=0.0)
    with pytest.raises(Timeout, match="holds 0 of the 1"):
        table.sample(1, view=Transitions(n_steps=2), timeout_s=0.01)


def test_what_it_does_not_do_is_refused():
    for arguments, said in (
        ({"remover": Prioritized()}, "remover="),
        ({"limiter": MinSize(1)}, "limiter="),
        ({"max_times_sampled": 1}, "max_times_sampled="),
        ({"disk": "."}, "disk="),
        ({"max_bytes": "1MiB"}, "max_bytes="),
    ):
        with pytest.raises(Unsupported, match=said):
            ReplayBuffer(8, device="cpu", **arguments)
    with pytest.raises(Unsupported, match="give a number of steps"):
        ReplayBuffer("1MiB", device="cpu")
    with pytest.raises(Unsupported, match="leave the codec out"):
        ReplayBuffer(8, {"x": Field((4,), "uint8", codec="lz4")}, device="cpu")
    for device in ("tpu7", "meta"):
        with pytest.raises(ConfigError, match="device="):
            ReplayBuffer(8, device=device)
    table = ReplayBuffer(8, {"x": Field((4,), "float32"), "reward": "float32"}, device="cpu")
    with pytest.raises(Unsupported, match="call sample"):
        table.source()
    with pytest.raises(Unsupported, match="call sample"):
        AsyncDataLoader(table, 4)
    table.extend(x=np.zeros((4, 4), np.float32), reward=np.zeros(4))


def test_a_field_that_does_not_fit_is_named_and_nothing_is_added():
    table = ReplayBuffer(8, {"x": Field((4,), "float32"), "reward": "float32"}, device="cpu")
    with pytest.raises(SchemaError, match=r"'x'.*takes float32"):
        table.extend(x=torch.zeros(3, 4, dtype=torch.int64), reward=np.zeros(3))
    with pytest.raises(SchemaError, match="'x'"):
        table.add(x=np.zeros(3, np.float32), reward=0.0)
    with pytest.raises(SchemaError):
        table.extend(x=np.zeros((3, 4), np.float32), reward=np.zeros(2))
    assert len(table) == 0
    table.add(x=torch.zeros(4), reward=1.0)
    assert len(table) == 1


def test_a_table_that_does_not_fit_says_how_large_it_would_be():
    with pytest.raises(OutOfMemory, match="lower the capacity"):
        ReplayBuffer(10**6, {"x": Field((10**8,), "float32")}, device="cpu")


def test_more_rows_than_there_is_room_for_leave_the_newest():
    here, there = (ReplayBuffer(10, seed=1, **how) for how in ({}, {"device": "cpu"}))
    x = np.arange(300).reshape(150, 2)
    for table in (here, there):
        table.extend(x=x)
    ids = np.arange(150)
    check_equal(there.get(ids), here.get(ids))


def test_views_that_compute_with_arrays_are_refused():
    table = ReplayBuffer(
        20,
        {"goal": Field((2,), "float32"), "achieved": Field((2,), "float32"), "reward": "float32",
         "terminated": "bool"},
        device="cpu",
    )  # fmt: skip
    view = Hindsight(
        lambda achieved, desired, info: achieved[:, 0], goal="goal", achieved="achieved"
    )
    table.extend(
        goal=np.zeros((9, 2), np.float32), achieved=np.zeros((9, 2), np.float32),
        reward=np.zeros(9), terminated=np.zeros(9, bool),
    )  # fmt: skip
    for one in (view, Transitions(n_steps=2, reward="goal"), Sequences(4, whole="ragged")):
        with pytest.raises(Unsupported, match="view="):
            table.sample(2, view=one)
        with pytest.raises(Unsupported, match="view="):
            ReplayBuffer(20, table.schema, view=one, device="cpu")


def test_ends_and_rewards_of_shape_1_are_numbers():
    schema = {
        "obs": Field((2,), "float32", next="after"),
        "reward": Field((1,), "float32"),
        "terminated": Field((1,), "bool"),
    }
    here, there = (ReplayBuffer(20, schema, **how) for how in ({}, {"device": "cpu"}))
    for table in (here, there):
        ends = np.arange(9)[:, None] == 6
        table.extend(
            obs=np.arange(18).reshape(9, 2), reward=np.arange(9, dtype=np.float32)[:, None],
            terminated=ends, stream=0, final_obs=np.full((9, 2), 7.0),
        )  # fmt: skip
    for view in (None, Transitions(n_steps=3)):
        check_equal(there.get(np.arange(12), view=view), here.get(np.arange(12), view=view))


def test_ids_of_last_observations_are_not_updated():
    table = ReplayBuffer(9, {"obs": Field((2,), "float32", next="after"), "terminated": "bool"},
                         device="cpu")  # fmt: skip
    table.add(obs=np.zeros(2), terminated=True, final_obs=np.full(2, 7.0))
    assert table.update(np.array([1]), obs=np.ones((1, 2))).stale == 1
    assert table.get([0])["after"].tolist() == [[7.0, 7.0]]


def test_a_field_of_no_elements_is_saved(tmp_path):
    table = ReplayBuffer(9, {"none": Field((0,), "float32"), "x": Field((2,), "int64")},
                         device="cpu")  # fmt: skip
    table.add(none=np.zeros(0), x=np.array([1, 2]))
    table.save(tmp_path)
    again = ReplayBuffer.from_checkpoint(tmp_path, device="cpu")
    assert again.get([0])["x"].tolist() == [[1, 2]]


def test_a_limiter_is_refused_later_too():
    table = ReplayBuffer(9, {"x": Field((2,), "int64")}, device="cpu")
    with pytest.raises(Unsupported, match="waits for nothing"):
        table.limiter = MinSize(1)
    table.limiter = None


def test_last_observations_without_rows_are_an_error():
    table = ReplayBuffer(9, {"obs": Field((2,), "float32", next="after"), "terminated": "bool"},
                         device="cpu")  # fmt: skip
    with pytest.raises(SchemaError, match="has no rows"):
        table.extend(obs=np.zeros((2, 2)), terminated=np.ones(2, bool), stream=0, final_obs=5.0)


@pytest.mark.parametrize("call", ["add", "extend", "end_episode"])
def test_an_interrupt_between_rows_and_their_arrays_leaves_none_wrong(call, monkeypatch):
    table = ReplayBuffer(9, {"obs": Field((2,), "float32", next="after"), "terminated": "bool"},
                         device="cpu")  # fmt: skip
    rows = shared_table(table).rows
    put = rows.put
    for i in range(20):
        table.add(obs=np.full(2, i), terminated=False, stream=0)
    step, last = {"obs": np.full(2, 20.0), "terminated": True}, torch.full((2,), 7.0)
    calls = {
        "add": lambda: table.add(step, stream=0, final_obs=last),
        "extend": lambda: table.extend(
            {name: np.array([value]) for name, value in step.items()},
            stream=0, final_obs=last[None],
        ),
        "end_episode": lambda: table.end_episode(stream=0, final_obs=last),
    }  # fmt: skip
    puts = iter((interrupted,))
    with monkeypatch.context() as patch:
        patch.setattr(rows, "put", lambda *given: next(puts, put)(*given))
        with pytest.raises(KeyboardInterrupt):
            calls[call]()
    last.fill_(9)  # its owner goes on
    found = table.get(np.arange(22))
    assert found["obs"][:, 0].tolist() == found["index"].tolist()
    assert found["after"][:-1, 0].tolist() == found["index"][1:].tolist()
    assert found["after"][-1, 0] == 7


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_batch_is_awaited_again_if_another_thread_has_cleared_the_table(monkeypatch):
    table = ReplayBuffer(9, {"x": Field((2,), "int64")}, device="cpu")
    table.extend(x=np.zeros((4, 2), np.int64))
    monkeypatch.setattr(shared_table(table), "_wait", lambda *_: None if len(table) else fill())
    table.clear()
    calls = []

    def fill():
        calls.append(1)
        if len(calls) == 2:
            table.extend(x=np.ones((4, 2), np.int64))

    assert table.sample(2, timeout_s=5)["x"].tolist() == [[1, 1], [1, 1]]
    assert len(calls) == 2
