"""Runs of a table whose every call is decided by a seed, for comparing one table with another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from async_loader import Field, ReplayBuffer, Transitions
from async_loader.replay.checkpoint import writing
from tests.table_parts import debug_state

PLAIN = {"obs": ((3,), "float32"), "reward": "float32", "done": "bool"}
LINKED = {
    "obs": Field((4, 300), np.uint8, stack=3, next="next_obs"),
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")


class Run:
    """Adds, samples, updates and deletes, the same way for the same seed. What every call returned
    is in ``log``.
    """

    def __init__(self, buffer: ReplayBuffer, seed: int, view: Transitions | None = None) -> None:
        self.buffer, self.rng, self.view = buffer, np.random.default_rng(seed), view
        self.linked = "truncated" in {field.name for field in buffer.schema.fields}
        self.log: list[Any] = []

    def step(self, calls: int, batch: int = 5) -> list[Any]:
        for _ in range(calls):
            kind = self.rng.integers(0, 10)
            if kind < 6:
                self.add()
            elif kind < 9:
                self.draw(batch)
            else:
                self.change()
        return self.log

    def add(self) -> None:
        stream = ("actor", int(self.rng.integers(0, 4)))
        value, end = self.rng.random(), int(self.rng.integers(0, 12))
        priority = (
            float(self.rng.random())
            if debug_state(self.buffer).state.prioritized and self.rng.random() < 0.7
            else None
        )
        if not self.linked:
            step = {"obs": np.full(3, value, np.float32), "reward": value, "done": end == 0}
            self.log.append(self.buffer.add(step, stream=stream, priority=priority, timeout_s=0))
            return
        step = {
            "obs": np.full((4, 300), 255 * value, np.uint8),
            "reward": value,
            "terminated": end == 0,
            "truncated": end == 1,
        }
        final = np.full((4, 300), end, np.uint8) if end < 2 else None
        self.log.append(self.buffer.add(step, stream=stream, priority=priority, final_obs=final))

    def draw(self, batch: int) -> None:
        count = min(batch, len(self.buffer))
        if count:
            self.log.append(self.buffer.sample(count, view=self.view))

    def change(self) -> None:
        newest = max([one for one in self.log if isinstance(one, int)], default=0)
        ids = np.unique(self.rng.integers(max(0, newest - 150), newest + 1, 3))
        if debug_state(self.buffer).state.prioritized:
            self.log.append(
                tuple(vars_of(self.buffer.update_priorities(ids, self.rng.random(len(ids)))))
            )
        elif self.rng.random() < 0.5:
            self.log.append(tuple(vars_of(self.buffer.delete(ids[:1]))))
        else:
            self.log.append(
                tuple(vars_of(self.buffer.update(ids, reward=np.ones(len(ids), np.float32))))
            )


def vars_of(applied: Any) -> tuple[int, int]:
    return applied.applied, applied.stale


def contents(buffer: ReplayBuffer) -> dict[str, Any]:
    """Everything that decides what a table does next."""
    owner = debug_state(buffer).state
    with owner.lock:
        table = owner.table
        heads = table.storage.heads().copy()
        used = heads[:, 0] > 0
        cells = [table.storage.cell(i)[used] for i in range(len(table.storage.layout.places))]
        heads[:, 3] &= (1 << 32) - 1
        found = {
            "counters": repr(table.state()),
            "heads": heads,
            "cells": cells,
        }
        found |= {
            "alive": table.items.alive.copy(),
            "given": table.given.copy(),
            "times": table.times.copy(),
        }
        found["sampler"] = repr(owner.sampler.state())
        return found


def copy_of(folder: Path, name: str) -> Path:
    return Path(shutil.copytree(folder, folder.parent / name))


class Disk:
    """What a save changes the file system by. Counts the calls, and does something else at one."""

    CALLS = ("makedirs", "mkdir", "rename", "fsync", "rmtree", "write", "open")

    def __init__(self, patch: Any, at: int = -1, instead: Any = None, half: bool = False) -> None:
        self.calls: list[str] = []
        self._at, self._instead, self._half = at, instead, half
        fake_os = SimpleNamespace(**vars(os))
        for name in ("makedirs", "mkdir", "rename", "fsync"):
            setattr(fake_os, name, self._counted(name, getattr(os, name)))
        patch.setattr(writing, "os", fake_os)
        rmtree = self._counted("rmtree", shutil.rmtree)
        patch.setattr(writing, "shutil", SimpleNamespace(rmtree=rmtree))
        patch.setattr(writing, "open", self._counted("open", self._open), raising=False)

    def _counted(self, name: str, function: Any) -> Any:
        def call(*arguments: Any, **given: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 == self._at:
                if self._half and name == "write":
                    function(arguments[0][: len(arguments[0]) // 2])
                self._instead()
            return function(*arguments, **given)

        return call

    def _open(self, path: Path, mode: str) -> Any:
        file = open(path, mode, buffering=0)  # noqa: SIM115
        written = SimpleNamespace(write=self._counted("write", file.write))
        written.flush, written.fileno = file.flush, file.fileno
        return _Closing(file, written)


class _Closing:
    def __init__(self, file: Any, written: Any) -> None:
        self._file, self._written = file, written

    def __enter__(self) -> Any:
        return self._written

    def __exit__(self, *_: object) -> None:
        self._file.close()
