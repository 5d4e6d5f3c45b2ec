"""TorchRL's ReplayBuffer, on a table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from async_loader import tree
from async_loader.compat.saved_table import SavedTable, column_of, go_on
from async_loader.compat.torchrl.arguments import (
    capacity_of,
    checked_transform,
    refuse,
    sampler_of,
)
from async_loader.compat.torchrl.samplers import Key, SamplerWithoutReplacement, dotted
from async_loader.errors import ConfigError, NotEnoughData, of_extra
from async_loader.replay import ReplayBuffer as Table
from async_loader.replay.array_types import Array, Ids
from async_loader.replay.buffer import shared_table
from async_loader.validation import path_of

_VALUE = "value"
"""The field of steps that are no dicts."""
_TABLE = "table"


class ReplayBuffer:
    """As ``torchrl.data.ReplayBuffer``, in shared memory.

    Steps are tensors, (nested) dicts of them, or TensorDicts; batches are what the steps were.
    ``index`` is an id that is never reused, where TorchRL's is a place: an update of a step that
    was overwritten since changes no other step.

    Threads: as `async_loader.ReplayBuffer`.

    Parameters
    ----------
    storage : int | Storage
        How many steps; of a storage of TorchRL its ``max_size``.
    sampler : Sampler, optional
        `SamplerWithoutReplacement`, `SliceSampler`, `PrioritizedSampler`, `RandomSampler`, which is
        the default: those of this module or TorchRL's own. Or a sampler of this package, as
        `Prioritized`.
    batch_size : int, optional
        Of `sample`, where that is not told.
    transform : callable, optional
        A function of each batch.
    collate_fn : callable, optional
        Another one, which comes first.
    pin_memory : bool
        Whether batches lie in pinned memory.
    seed : int, optional
    **others
        ``prefetch`` and others of speed alone change nothing. Arguments of TorchRL's that mean
        something else here are refused with the name of what does it.

    Attributes
    ----------
    table : async_loader.ReplayBuffer
        For a loader, a feeder.

    Raises
    ------
    ConfigError
    """

    def __init__(
        self,
        *,
        storage: Any = 1000,
        sampler: Any = None,
        batch_size: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        seed: int | None = None,
        **others: Any,
    ) -> None:
        refuse(others)
        self._transforms = [
            checked_transform(one) for one in (collate_fn, transform) if one is not None
        ]
        self._pin_memory = pin_memory
        self.batch_size = batch_size
        order, self._slices = sampler_of(sampler)
        self._random = np.random.default_rng(seed)
        self.table = Table(capacity_of(storage), sampler=order, seed=seed)
        self._before = 0  # steps that count in `write_count` beside the table's

    _kind = "dict"
    """What the last steps were that came through `add` or `extend`: batches are that too."""

    # -- writing -----------------------------------------------------------------------------------

    def add(self, data: Any) -> int:
        """Add one step. Return its index."""
        return self.table.add(self._step(data), priority=self._priority(data, False))

    def extend(self, data: Any, *, update_priority: bool | None = None) -> torch.Tensor:
        """Add many steps: ``[steps, ...]``, or a list of them. Return their indices.

        ``update_priority``: whether priorities that come with the data are used.
        """
        if isinstance(data, list):
            data = self._stacked(data)
        given = None if update_priority is False else self._priority(data, True)
        return torch.from_numpy(self.table.extend(self._step(data), priority=given, stream=0))

    def update_priority(self, index: Any, priority: Any) -> None:
        """Change the priorities of steps. Nothing is done for steps that are gone, and where the
        sampler uses none.
        """
        if not self.table.sampler.prioritized:
            return
        ids = torch.as_tensor(index).reshape(-1)
        values = torch.as_tensor(priority).detach().abs().reshape(-1)
        self.table.update_priorities(ids, values.expand(len(ids)))

    def empty(self, empty_write_count: bool = True) -> None:
        """Remove all steps. Indices go on; `write_count` does with ``empty_write_count=False``."""
        before = 0 if empty_write_count else self.write_count
        self.table.clear()
        self._before = before

    # -- reading -----------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw steps.

        Parameters
        ----------
        batch_size : int, optional
            That of the constructor by default.
        return_info : bool
            Whether to return ``(batch, info)``: ``index``, and ``priority_weight`` where the
            sampler has weights; of slices where they begin and end.

        Raises
        ------
        ConfigError
            Without a batch size. With slices: if no trajectory is long enough.
        NotEnoughData
            If the buffer is empty.
        """
        batch, info = self._draw(batch_size)
        for one in self._transforms:
            batch = one(batch)
        return (batch, info) if return_info else batch

    def _draw(self, batch_size: int | None) -> tuple[Any, dict[Key, torch.Tensor]]:
        count = self.batch_size if batch_size is None else batch_size
        if count is None:
            raise ConfigError("no batch_size: give it to the constructor, or to sample()")
        marks: dict[Key, torch.Tensor] = {}
        if self._slices is not None:
            batch, marks = self._sliced(count)
        else:
            with self._passes() as order:
                count = count if order is None else order.most(count)
            batch = self.table.sample(count, batch_format="torch")
        if self._pin_memory:
            batch = tree.transform(batch, torch.Tensor.pin_memory)
        info: dict[Key, torch.Tensor] = {"index": batch.pop("index"), **marks}
        if "weight" in batch:
            info["priority_weight"] = batch.pop("weight")
        return self._delivered(batch, (len(info["index"]),)), info

    def _sliced(self, count: int) -> tuple[dict[str, Any], dict[Key, torch.Tensor]]:
        """Return the steps of slices, and the entries that say where these begin and end."""
        slices, every = self._slices, self._all_ids()
        assert slices is not None
        if not len(every):
            raise NotEnoughData("cannot draw slices, the buffer is empty: add steps", count, 0)
        schema = self.table.schema
        stored = {field.name for field in schema.fields} if schema is not None else set()

        def column(name: str, ids: Ids) -> Array | None:
            return column_of(self.table, name, ids) if name in stored else None

        version = self.table.stats().inserted, len(every), int(every[0])
        ids, lengths = slices.draw(count, every, version, column, self._random)
        marks = slices.marks(lengths, lambda key: column(dotted(key), ids))
        batch = {**self._steps(ids), "index": torch.from_numpy(ids)}
        return batch, {key: torch.from_numpy(value) for key, value in marks.items()}

    @contextlib.contextmanager
    def _passes(self) -> Iterator[SamplerWithoutReplacement | None]:
        """Hold the sampler that draws in passes still, if there is one and steps."""
        order, state = self.table.sampler, shared_table(self.table)
        if not isinstance(order, SamplerWithoutReplacement) or not state.ready:
            yield None
            return
        with state.lock:
            state.own()
            yield order

    def __getitem__(self, index: Any) -> Any:
        """Return steps: by index as `sample` and `extend` tell it, of any shape; or out of all,
        the oldest first: by a slice, a mask or a negative number.

        Raises
        ------
        IndexError
            For a step that is gone, and for what is no index.
        """
        ids = self._ids(index)
        batch = self._steps(ids.reshape(-1))
        shaped = tree.transform(batch, lambda one: one.reshape((*ids.shape, *one.shape[1:])))
        return self._delivered(shaped, ids.shape)

    def _steps(self, ids: Ids) -> dict[str, Any]:
        """Return steps by id, as tensors. Raises IndexError for those that are gone."""
        found = self.table.get(ids)
        if len(found["index"]) < ids.size:
            raise IndexError(f"{ids.size - len(found['index'])} of {ids.size} steps are gone")
        del found["index"]
        steps: dict[str, Any] = tree.transform(found, torch.from_numpy)
        return steps

    def _ids(self, index: Any) -> Ids:
        if isinstance(index, slice):
            part: Ids = self._all_ids()[index]
            return part
        ids = np.asarray(index)
        if not ids.size and ids.dtype.kind == "f":  # an empty list
            ids = ids.astype(np.int64)
        if ids.dtype.kind == "b":
            masked: Ids = self._all_ids()[ids]
            return masked
        if ids.dtype.kind not in "iu":
            raise IndexError(f"an index is whole numbers, a mask or a slice, not {ids.dtype}")
        ids = ids.astype(np.int64)
        if (ids < 0).any():
            ids = np.where(ids < 0, self._all_ids()[np.minimum(ids, -1)], ids)
        return ids

    def _all_ids(self) -> Ids:
        """Return the ids of all steps that can be drawn, the oldest first."""
        state = shared_table(self.table)
        if not state.ready:
            return np.empty(0, np.int64)
        with state.lock:
            table = state.own()
            return np.sort(table.ids[table.items.alive != 0])

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Any]:
        """Draw batches: without an end, or without replacement those of a pass."""
        over = False
        while not over:
            yield self.sample()
            with self._passes() as order:
                over = order is not None and order.is_over(self.batch_size or 1)

    @property
    def write_count(self) -> int:
        """Steps that were added, from the last `empty` on."""
        return self._before + self.table.stats().inserted

    def append_transform(self, transform: Callable[[Any], Any]) -> ReplayBuffer:
        """Have a function change each batch, after those that do."""
        self._transforms.append(checked_transform(transform))
        return self

    # -- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything, for ``torch.save``."""
        files = {} if self.table.schema is None else SavedTable.of(self.table, None).files
        tensors = {
            path: torch.frombuffer(bytearray(content), dtype=torch.uint8)
            for path, content in files.items()
            if content
        }
        return {"files": tensors, "before": self._before, "kind": self._kind}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Become what was saved, within this buffer's capacity."""
        files = {path: one.numpy().tobytes() for path, one in state_dict["files"].items()}
        self._before, self._kind = state_dict.get("before", 0), state_dict["kind"]
        if files:
            SavedTable(files, None).into(self.table.load)
            go_on(self.table)
        elif self.table.schema is not None:
            self.table.clear()

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save the whole buffer to a folder. The save before stays until this one is complete."""
        folder = Path(path_of("path", path))
        if self.table.schema is None:
            raise ConfigError("nothing was added yet: there is nothing to save")
        self.table.save(folder / _TABLE)
        (folder / "kind").write_text(f"{self._kind} {self._before}")

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Become what `dumps` saved, within this buffer's capacity."""
        folder = Path(path_of("path", path))
        self.table.load(folder / _TABLE)
        go_on(self.table)
        self._kind, before = (folder / "kind").read_text().split()
        self._before = int(before)

    # -- steps as a table has them -----------------------------------------------------------------

    def _step(self, data: Any) -> dict[str, Any]:
        if isinstance(data, dict):
            self._kind = "dict"
            return data
        if hasattr(data, "to_dict"):
            self._kind = "tensordict"
            step: dict[str, Any] = data.exclude("index", "priority_weight").to_dict()
            return step
        self._kind = "value"
        return {_VALUE: data}

    def _priority(self, data: Any, many: bool) -> Any:
        return None

    def _stacked(self, steps: list[Any]) -> Any:
        if hasattr(steps[0], "to_dict"):
            return torch.stack(steps)
        if isinstance(steps[0], dict):
            return {key: self._stacked([one[key] for one in steps]) for key in steps[0]}
        return torch.stack([torch.as_tensor(one) for one in steps])

    def _delivered(self, batch: dict[str, Any], shape: tuple[int, ...]) -> Any:
        if self._kind == "tensordict":
            return of_extra("tensordict", "torchrl").TensorDict(batch, batch_size=shape)
        return batch[_VALUE] if self._kind == "value" else batch

    def __repr__(self) -> str:
        return f"{type(self).__name__}(table={self.table!r}, batch_size={self.batch_size})"
