"""Ctrl-C at any point of a call that adds: a step is in or is not, the writer says which, and the
table goes on.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storm_rig import PACKAGE, alarms, count_points, some_points, strike

from async_loader import Field, MinHeap, Prioritized, ReplayBuffer, Transitions, Uniform
from async_loader.testing.debug import debug_state

MOST = 40
LINKED = {
    "obs": Field((), np.int64, next="next_obs"),
    "reward": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
}


def in_order(buffer: ReplayBuffer) -> list[int]:
    """Every observation that is stored, by the order in which it was added; every row is whole and
    known to the sampler.
    """
    table = debug_state(buffer).state.table
    with debug_state(buffer).state.lock:
        debug_state(buffer).state.own()
        assert (
            table.items.count
            == len(table)
            == int((table.items.alive != 0).sum())
            == table.inserted - table.deleted
        )
        heads = table.storage.heads()
        names = np.sort(heads[heads[:, 0] > 0, 0] - 1)
        rows = table.find(names)
        return table.storage.cell(0)[rows[rows >= 0]].tolist()


def drawn(buffer: ReplayBuffer) -> set[int]:
    return set(buffer.sample(40 * len(buffer))["index"].tolist())


def writers(kind: str) -> tuple[ReplayBuffer, Any, Any]:
    """A table, a writer of it, and what adds the three next steps beginning with a number."""
    if kind == "remover":
        buffer = ReplayBuffer(8, {"obs": np.int64}, sampler=Uniform(), remover=MinHeap(), seed=0)
        writer = buffer.writer()
        return (
            buffer,
            writer,
            lambda n: [writer.append(obs=n + i, priority=float(n + i)) for i in range(3)],
        )
    buffer = ReplayBuffer(64, LINKED, sampler=Prioritized(alpha=0), seed=0)
    steps = {"reward": np.zeros(3), "terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}
    if kind == "vector":
        vector = buffer.vector_writer(3, autoreset="next_step")
        return (
            buffer,
            vector,
            lambda n: vector.append(obs=np.arange(n, n + 3), next_obs=np.arange(3), **steps),
        )
    writer = buffer.writer()
    if kind == "extend":
        return buffer, writer, lambda n: writer.extend(obs=np.arange(n, n + 3), **steps)
    return buffer, writer, lambda n: [writer.append(obs=n + i, reward=0.0) for i in range(3)]


@pytest.mark.parametrize("kind", ["append", "extend", "vector", "remover"])
def test_a_step_that_ctrl_c_interrupts_is_in_or_is_not_and_the_writer_says_which(kind: str) -> None:
    _, _, add = writers(kind)
    add(0)
    add(3)  # what is imported or compiled is so from here on
    total = count_points(lambda: add(6))
    for at in some_points(total, MOST, seed=1):
        buffer, writer, add = writers(kind)
        add(0)
        assert writer.steps == 3
        struck = strike(lambda add=add: add(3), at)
        if struck.raised is None:  # it took fewer points than the one that was counted
            continue
        assert isinstance(struck.raised, KeyboardInterrupt), struck
        steps = writer.steps
        assert in_order(buffer) == list(range(steps)), struck.where
        assert kind != "vector" or steps in (3, 6), "all environments or none"
        add(steps)
        assert writer.steps == steps + 3
        assert in_order(buffer) == list(range(steps + 3))[-8 if kind == "remover" else 0 :], (
            struck.where
        )
        if len(buffer):
            assert len(drawn(buffer)) == len(buffer), struck.where
        if kind in ("append", "extend"):
            batch = buffer.sample(64, view=Transitions(n_steps=1))
            assert (batch["next_obs"] == batch["obs"] + 1).all(), struck.where


def test_what_takes_several_kernels_is_completed_after_ctrl_c() -> None:
    steps = {
        "obs": np.arange(7),
        "reward": np.zeros(7),
        "terminated": np.zeros(7, bool),
        "truncated": np.zeros(7, bool),
    }

    def made() -> tuple[ReplayBuffer, Any, Any]:
        buffer = ReplayBuffer(
            16, {**LINKED, "big": ((100_000,), np.uint8)}, sampler=Prioritized(alpha=0), seed=0
        )
        assert debug_state(buffer).state.table.storage.layout.burst < 7
        vector = buffer.vector_writer(7, autoreset="disabled")
        big = np.zeros((7, 100_000), np.uint8)
        return (
            buffer,
            vector,
            lambda: vector.append(**steps, big=big, next_obs=np.zeros(7, np.int64)),
        )

    made()[2]()  # what is imported or compiled is so from here on
    _, _, call = made()
    for at in some_points(count_points(call), MOST, seed=4):
        buffer, vector, call = made()
        struck = strike(call, at)
        if struck.raised is None:  # it took fewer points than the one that was counted
            continue
        assert isinstance(struck.raised, KeyboardInterrupt), struck
        assert vector.steps in (0, 7), struck.where
        assert in_order(buffer) == list(range(vector.steps)), struck.where


@pytest.mark.parametrize("kind", ["add", "extend", "end"])
def test_compressed_steps_stay_readable_after_ctrl_c(kind: str) -> None:
    """Also when their ring has gone round, and the oldest make room for what is written."""
    schema = {
        "obs": Field((300,), np.uint8, codec="lz4", next="next_obs"),
        "number": np.int64,
        "terminated": np.bool_,
    }

    def frame(n: int) -> np.ndarray:
        return np.full(300, n % 251, np.uint8)

    def made() -> tuple[ReplayBuffer, Any]:
        buffer = ReplayBuffer(64, schema, seed=0)
        for n in range(300):
            buffer.add(obs=frame(n), number=n, terminated=n % 13 == 12)
        more = {
            "obs": np.stack([frame(n) for n in range(300, 306)]),
            "number": np.arange(300, 306),
            "terminated": np.zeros(6, bool),
        }
        calls = {
            "add": lambda: (
                [buffer.add(obs=frame(n), number=n, terminated=False) for n in range(300, 303)]
                and len(buffer)
            ),
            "extend": lambda: buffer.extend(stream=0, **more),
            "end": lambda: buffer.end_episode(final_obs=frame(300)),
        }
        return buffer, calls[kind]

    made()[1]()  # what is imported or compiled is so from here on
    _, call = made()
    for at in some_points(count_points(call), MOST, seed=6):
        buffer, call = made()
        struck = strike(call, at)
        if struck.raised is None:  # it took fewer points than the one that was counted
            continue
        assert isinstance(struck.raised, KeyboardInterrupt), struck
        for _ in range(2):
            there = np.arange(buffer.stats().inserted)[-len(buffer) :]
            found = buffer.get(there)
            assert len(found["number"]) >= 60, struck.where
            assert (found["obs"] == (found["number"] % 251)[:, None]).all(), struck.where
            batch = buffer.sample(64)
            assert (batch["obs"] == (batch["number"] % 251)[:, None]).all(), struck.where
            assert len(np.unique(batch["index"])) > 20, struck.where
            for n in range(400, 403):
                buffer.add(obs=frame(n), number=n, terminated=False)


@pytest.mark.parametrize("kind", ["end", "update", "delete", "priorities", "view"])
def test_what_changes_steps_may_be_interrupted_and_called_again(kind: str) -> None:
    def made() -> tuple[ReplayBuffer, Any]:
        buffer = ReplayBuffer(64, LINKED, sampler=Prioritized(alpha=0), seed=0)
        buffer.extend(
            stream=0,
            obs=np.arange(9),
            reward=np.zeros(9),
            terminated=np.zeros(9, bool),
            truncated=np.zeros(9, bool),
        )
        calls = {
            "end": lambda: buffer.end_episode(final_obs=9),
            "update": lambda: buffer.update([3], reward=np.ones(1)),
            "delete": lambda: buffer.delete([3]),
            "priorities": lambda: buffer.update_priorities([3], [2.0]),
            "view": lambda: buffer.sample(4, view=Transitions(n_steps=3)),
        }
        return buffer, calls[kind]

    made()[1]()  # what is imported or compiled is so from here on
    _, call = made()
    for at in some_points(count_points(call), MOST, seed=2):
        buffer, call = made()
        struck = strike(call, at)
        if struck.raised is None:  # it took fewer points than the one that was counted
            continue
        assert isinstance(struck.raised, KeyboardInterrupt), struck
        call()
        expected = {"end": 9, "delete": 7, "view": 6}.get(kind, 8)
        assert len(buffer) == expected == buffer.stats().inserted - buffer.stats().deleted, (
            struck.where
        )
        assert len(drawn(buffer)) == expected, struck.where
        batch = buffer.sample(200)
        if kind == "update":
            assert set(batch["reward"][batch["obs"] == 3].tolist()) == {1.0}, struck.where


# Python says so of a signal in __del__
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals_at_random_moments_neither_lose_nor_double_a_step() -> None:
    buffer = ReplayBuffer(4096, LINKED, sampler=Prioritized(alpha=0), seed=0)
    writer = buffer.writer()
    writer.append(obs=0, reward=0.0)
    with alarms(seed=3) as arm:
        for _ in range(50):
            try:
                arm()
                # the signal comes before; a handler's error that is raised in a destructor is
                # dropped
                for _ in range(500):
                    writer.append(obs=writer.steps, reward=0.0)
            except KeyboardInterrupt:
                continue
    stored = in_order(buffer)
    assert stored == list(range(writer.steps))[-len(stored) :]
    batch = buffer.sample(500)
    assert (batch["next_obs"] == batch["obs"] + 1).all()


@pytest.mark.timeout(600)  # of a hundred saves, each of which waits for the disk
# Python says so of a strike in __del__
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_save_that_ctrl_c_interrupts_leaves_no_descriptor_and_the_saves_before_it(
    tmp_path: Path,
) -> None:
    buffer = ReplayBuffer(100, {"x": "int64"}, seed=0)
    buffer.extend(x=np.arange(60))
    within = tuple(
        f"{PACKAGE}replay{os.sep}checkpoint{os.sep}{name}.py" for name in ("disk", "writing")
    )
    buffer.save(tmp_path / "saved")

    def save() -> None:
        buffer.update(np.arange(60), x=np.arange(60))
        buffer.save(tmp_path / "saved")

    total = count_points(save, within)
    save()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for at in some_points(total, 100):
        # the error itself keeps what the call had open
        raised = type(strike(save, at, within=within).raised)
        assert raised in (KeyboardInterrupt, type(None))
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before, at
    with ReplayBuffer.from_checkpoint(tmp_path / "saved") as loaded:
        assert len(loaded) == 60
