"""The arrays of a table's rows in the memory of a device, and how they are saved."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader import tensors
from async_loader.errors import ConfigError, OutOfMemory, require
from async_loader.replay.array_types import Array, Bytes, Ids
from async_loader.replay.base.row_format import HEAD_BYTES, ID
from async_loader.replay.table.storage import Storage, StorageLayout
from async_loader.schema import Field, Schema
from async_loader.shm.limits import human

if TYPE_CHECKING:
    import torch

_ALIGNMENT = 16
_STAND_INS = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Dtypes that torch stores and does not gather, and those of as many bytes that it does."""


def device_of(device: Any) -> torch.device:
    """Return a device that is here, with its number. Raises ConfigError."""
    require("torch")
    import torch

    tensors.check_device(device)
    try:
        found = torch.empty(0, device=device).device
        if found.type == "meta":
            raise NotImplementedError("it holds no values")
        return found
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"device={str(device)!r}: {said}: say device='cpu'") from None


def is_array(field: Field) -> bool:
    """Return whether a field lies on the device. Numbers do not: rules read them."""
    return math.prod(field.shape) != 1


class DeviceRows:
    """Tensors ``[rows + 1, *shape]`` of a device, for each field that is an array.

    Reads and writes come in the order of the calls, on whichever streams they are made.

    Parameters
    ----------
    schema : Schema
        Of a step.
    count : int
        Rows. That of an id is ``id % count + 1``: row 0 is zeros.
    device : torch.device

    Attributes
    ----------
    fields : dict of int to tensor
        By the positions of the fields in the schema.

    Raises
    ------
    OutOfMemory
    """

    def __init__(self, schema: Schema, count: int, device: torch.device) -> None:
        import torch

        self.schema, self.count, self.device = schema, count, device
        self.fields: dict[int, Any] = {}
        nbytes = [(count + 1) * one.nbytes for one in schema.fields if is_array(one)]
        self.nbytes = sum(nbytes)
        try:
            for i, field in enumerate(schema.fields):
                if is_array(field):
                    dtype = getattr(torch, _STAND_INS.get(field.dtype.name, field.dtype.name))
                    rows = torch.empty((count + 1, *field.shape), dtype=dtype, device=device)
                    rows[0] = 0
                    self.fields[i] = rows
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            raise OutOfMemory(
                f"{count:,} steps take {human(self.nbytes)} on {device}: lower the capacity "
                f"({str(error).splitlines()[0]})"
            ) from None
        self._on_device = device.type != "cpu"
        self._last: Any = None  # the stream of the last read or write
        self._done: Any = torch.Event(device) if self._on_device else None

    @contextlib.contextmanager
    def _in_order(self) -> Iterator[None]:
        """Begin after the last read or write, on this thread's stream."""
        if not self._on_device:
            yield
            return
        import torch

        stream = torch.accelerator.current_stream(self.device)
        if self._last not in (None, stream):
            stream.wait_event(self._done)
        yield
        stream.record_event(self._done)
        self._last = stream

    def put(self, ids: Ids, values: Mapping[int, Any], stop: int | None = None) -> None:
        """Write the rows of these ids, which rise.

        Parameters
        ----------
        values : dict of int to tensor [ids, *shape]
        stop : int, optional
            The next id: rows that those before it have taken are not written.
        """
        if not values or not len(ids):
            return
        gone = 0 if stop is None else int(np.searchsorted(ids, stop - self.count))
        rows = ids[gone:] % self.count + 1
        if not len(rows):
            return
        together = bool((np.diff(rows) == 1).all())
        first, end = int(rows[0]), int(rows[-1]) + 1
        with self._in_order():
            for i, given in values.items():
                into = self.fields[i]
                value = _as(into.dtype, given[gone:] if gone else given)
                if together:
                    into[first:end].copy_(value)
                else:
                    where = tensors.as_tensor(rows).to(self.device)
                    into.index_copy_(0, where, value.to(self.device))

    def gather(self, i: int, slots: Any) -> Any:
        """Return the values ``[*slots.shape, *shape]`` of a field."""
        with self._in_order():
            found = self.fields[i].index_select(0, slots.reshape(-1))
        field = self.schema.fields[i]
        made = found.reshape(*slots.shape, *field.shape)
        return made.view(_dtype(field.dtype)) if field.dtype.name in _STAND_INS else made

    def sent(self, arrays: Sequence[Array]) -> list[Any]:
        """Return arrays as tensors of the device, by one copy of page-locked memory."""
        if not self._on_device:
            return list(map(tensors.as_tensor, arrays))
        import torch

        places, end = [], 0
        for one in arrays:
            places.append(end)
            end += -(-one.nbytes // _ALIGNMENT) * _ALIGNMENT
        block = torch.empty(max(1, end), dtype=torch.uint8, pin_memory=True)
        raw = block.numpy()
        for place, one in zip(places, arrays, strict=True):
            into = raw[place : place + one.nbytes].view(one.dtype).reshape(one.shape)
            np.copyto(into, one)
        there = block.to(self.device, non_blocking=True)
        return [
            there[place : place + one.nbytes].view(_dtype(one.dtype)).view(one.shape)
            for place, one in zip(places, arrays, strict=True)
        ]

    def read(self, i: int, ids: Ids) -> Bytes:
        """Return the bytes ``[ids, bytes of a value]`` of a field, here."""
        slots = tensors.as_tensor(np.where(ids >= 0, ids % self.count + 1, 0))
        values = tensors.to_numpy(self.gather(i, slots.to(self.device)))
        return np.ascontiguousarray(values).reshape(len(ids), -1).view(np.uint8)


class ResidentRows:
    """The rows of a table on a device as those of one here: the parts of a save.

    Parameters
    ----------
    storage : Storage
        With slots in place of arrays.
    rows : DeviceRows
    """

    def __init__(self, storage: Storage, rows: DeviceRows) -> None:
        self._storage, self._rows = storage, rows
        layout = storage.layout
        self._layout = whole = StorageLayout.of(rows.schema, layout.capacity, layout.spare)
        beside = whole.rows * whole.stride
        self._large = [i for i, (at, _) in enumerate(whole.places) if at >= beside]
        self.widths = [whole.stride, *(rows.schema.fields[i].nbytes for i in self._large)]

    def copy(self, rows: Ids, into: Sequence[Bytes]) -> None:
        """Copy these rows, part after part."""
        packed, *large = into
        heads = self._storage.row_parts()[0][rows]
        packed[:] = 0
        packed[:, :HEAD_BYTES] = heads[:, :HEAD_BYTES]
        ids = np.ascontiguousarray(heads[:, ID : ID + 8]).view(np.int64)[:, 0] - 1
        for i, field in enumerate(self._rows.schema.fields):
            if i in self._large:
                large[self._large.index(i)][:] = self._rows.read(i, ids)
                continue
            at, width = self._layout.places[i][0], field.nbytes
            inner = self._storage.layout.places[i][0]
            here = heads[:, inner : inner + width]
            there = i in self._rows.fields
            packed[:, at : at + width] = self._rows.read(i, ids) if there else here

    def put(self, rows: Ids, ids: Ids, values: Sequence[Bytes]) -> None:
        """Write these rows, of these ids, part after part."""
        packed, *large = values
        part = self._storage.row_parts()[0]
        inner = np.zeros((len(rows), part.shape[1]), np.uint8)
        inner[:, :HEAD_BYTES] = packed[:, :HEAD_BYTES]
        arrays: dict[int, Any] = {}
        for i, field in enumerate(self._rows.schema.fields):
            at, width = self._layout.places[i][0], field.nbytes
            place = self._storage.layout.places[i][0]
            if i not in self._rows.fields:
                inner[:, place : place + width] = packed[:, at : at + width]
                continue
            raw = large[self._large.index(i)] if i in self._large else packed[:, at : at + width]
            value = np.ascontiguousarray(raw).view(field.dtype).reshape(len(rows), *field.shape)
            arrays[i] = tensors.as_tensor(value)
            slots = (ids % self._rows.count + 1).astype(np.int32)
            inner[:, place : place + 4] = slots[:, np.newaxis].view(np.uint8)
        part[rows] = inner
        self._rows.put(ids, arrays)


def _dtype(dtype: np.dtype[Any]) -> Any:
    return tensors.as_tensor(np.empty(0, dtype)).dtype


def _as(dtype: Any, value: Any) -> Any:
    """Return a tensor's bytes as those of the dtype that it is stored as."""
    return value if value.dtype == dtype else value.view(dtype)
