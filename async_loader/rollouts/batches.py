"""Batches of groups: packed values and offsets; and micro-batches, padding, jagged tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from async_loader import tensors
from async_loader.errors import SchemaError
from async_loader.public_names import set_public_names
from async_loader.rollouts.schema import Array, GroupSchema, Ragged
from async_loader.rollouts.states import MEMBER_BITS, Group
from async_loader.shm.array_pool import ArrayPool
from async_loader.table import Batch

__all__ = ["jagged", "micro_batches", "padded"]
set_public_names(globals())

_OF_MEMBERS = ("group", "index", "lag", "redelivered")


def pack(
    schema: GroupSchema,
    groups: Sequence[Group],
    order: Sequence[int] | None,
    micro: Sequence[int],
    fields: Sequence[str],
    version: int,
    max_lag: int | None = None,
) -> Pieces:
    """Return a batch of members, counted through all groups; ``None``: all, as they are.

    With ``max_lag`` it has ``mask``: which values are not older, by the
    field ``version`` if it is ragged, or else by the lag of the group.
    """
    sizes = np.array([len(one) for one in groups])
    which = np.repeat(np.arange(len(groups)), sizes)
    member = np.arange(len(which)) - (np.cumsum(sizes) - sizes)[which]
    lengths = np.concatenate([one.lengths for one in groups])
    if order is not None:
        which, member, lengths = which[order], member[order], lengths[order]
    found: dict[str, list[Array]] = {}
    for name in fields:
        columns = [one.columns[name] for one in groups]
        if name in schema.group:
            if isinstance(schema.fields[name], Ragged):
                found[f"{name}_offsets"] = [_offsets([len(one) for one in columns])]
            else:
                columns = [one[None] for one in columns]
        elif order is None:
            pass
        elif name in schema.ragged:
            columns = [
                columns[i][groups[i].starts[m] : groups[i].starts[m + 1]]
                for i, m in zip(which.tolist(), member.tolist(), strict=True)
            ]
        else:
            columns = [np.concatenate(columns)[order]]
        found[name] = columns
    ids = np.array([one.id for one in groups], np.int64)
    lags = version - np.array([one.version for one in groups], np.int64)
    again = np.array([one.redelivered for one in groups], np.bool_)
    made = {
        "offsets": _offsets(lengths),
        "group": which,
        "index": (ids[which] << MEMBER_BITS) + member,
        "lag": lags[which],
        "redelivered": again[which],
        "micro": np.array(micro, np.int32),
        "prompt_index": np.array([one.prompt.number for one in groups], np.int64),
    }
    if max_lag is not None and "version" in found and "version" in schema.ragged:
        made["mask"] = np.concatenate(found["version"]) >= version - max_lag
    elif max_lag is not None:
        made["mask"] = np.repeat(made["lag"] <= max_lag, lengths)
    return Pieces(found | {name: [one] for name, one in made.items()})


class Pieces(dict[str, list[Array]]):
    """Arrays that are not `joined` yet."""

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for ones in self.values() for one in ones)


def joined(pieces: Pieces, into: Array | None = None) -> tuple[dict[str, Array], Array]:
    """Return arrays, each joined of its pieces, and the bytes in which they lie one behind the
    other, those of large items first. Each piece is copied once, ``into`` given bytes.
    """
    ordered = sorted(pieces.items(), key=lambda one: -one[1][0].dtype.itemsize)
    sizes = [sum(one.nbytes for one in pieces) for _, pieces in ordered]
    block = memory(sum(sizes)) if into is None else into[: sum(sizes)]
    found, begin = {}, 0
    for (name, ones), size in zip(ordered, sizes, strict=True):
        first, rows = ones[0], sum(map(len, ones))
        array = block[begin : begin + size].view(first.dtype).reshape(rows, *first.shape[1:])
        np.concatenate(ones, out=array)
        found[name], begin = array, begin + size
    return found, block


_pool = ArrayPool(spare_bytes=8 << 20)  # the groups of a step end together


def memory(nbytes: int) -> Array:
    """Return bytes in memory that is used again when no array in it is referenced."""
    unit = max(64, 1 << max(0, nbytes.bit_length() - 4))  # so that there are few sizes
    return _pool.array((-(-nbytes // unit) * unit,), np.dtype(np.uint8))[:nbytes]


def _offsets(lengths: Any) -> Array:
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return ends.astype(np.int32) if ends[-1] < 2**31 else ends


def schema_of(schema: Any) -> GroupSchema:
    """Return the schema of a table, or of what makes one."""
    return GroupSchema.of(getattr(schema, "group_schema", schema))


def micro_batches(batch: Batch, schema: Any) -> Iterator[Batch]:
    """Yield the micro-batches of a batch, in order: see ``tokens`` of `Rollouts.source`.

    Parameters
    ----------
    batch : dict
        Of `Rollouts.source`, in arrays or tensors.
    schema : Rollouts | dict
        The table, or its schema.

    Yields
    ------
    dict
        Views. ``offsets`` begin at 0; fields of groups are those of the whole batch, where
        ``group`` says the place of each member's.
    """
    known, offsets = schema_of(schema), batch["offsets"]
    cuts = [int(one) for one in batch["micro"]]
    for first, last in itertools.pairwise(cuts):
        begin, end = int(offsets[first]), int(offsets[last])
        part = dict(batch)
        for name in batch:
            if name in known.ragged or name == "mask":
                part[name] = batch[name][begin:end]
            elif name in known.small or name in _OF_MEMBERS:
                part[name] = batch[name][first:last]
        part["offsets"] = offsets[first : last + 1] - offsets[first]
        part["micro"] = part["micro"][:2] * 0
        part["micro"][1] = last - first
        yield part


def padded(
    batch: Batch, schema: Any, value: Any = 0, multiple: int = 1, length: int | None = None
) -> Batch:
    """Return a batch whose ragged fields are ``[members, length]``, as a loader's ``transform``:
    ``transform=partial(padded, schema=SCHEMA)``.

    Parameters
    ----------
    batch : dict of arrays
    schema : Rollouts | dict
    value : number | dict of str to number
        Behind the end of each member; ``mask`` is False there.
    multiple : int
        The length is a multiple of it, so that fewer shapes are compiled.
    length : int, optional
        Rather than that of the longest member.

    Returns
    -------
    dict
        With ``length`` int64 ``[members]`` in place of ``offsets``.
    """
    known, offsets = schema_of(schema), np.asarray(batch["offsets"])
    lengths = np.diff(offsets).astype(np.int64)
    longest = int(lengths.max(initial=0))
    wide = -(-longest // multiple) * multiple if length is None else length
    if wide < longest:
        raise SchemaError(f"length={wide}: the longest member has {longest}, raise it")
    inside = np.arange(wide) < lengths[:, None]
    made = dict(batch)
    fillers = value if isinstance(value, Mapping) else dict.fromkeys(known.ragged, value)
    for name in (*known.ragged, "mask"):
        if name in batch:
            values, filler = np.asarray(batch[name]), fillers.get(name, 0)
            one = np.full((len(lengths), wide, *values.shape[1:]), filler, values.dtype)
            one[inside] = values
            made[name] = one
    del made["offsets"]
    return made | {"length": lengths}


def jagged(batch: Batch, schema: Any) -> Batch:
    """Return a batch of tensors whose ragged fields are torch's nested tensors of layout jagged."""
    torch, known = tensors.loaded_torch(), schema_of(schema)
    offsets = torch.as_tensor(batch["offsets"]).long()
    return {
        name: torch.nested.nested_tensor_from_jagged(torch.as_tensor(one), offsets)
        if name in known.ragged or name == "mask"
        else one
        for name, one in batch.items()
    }
