"""A table of rollouts as plain values and arrays, and as a file.

::

    magic, bytes of the head, CRC-32 of the head, CRC-32 of the values
    head: JSON: counts, prompts, groups, and where each array lies
    values

# NOTE [one cut]
What is saved belongs together: groups, prompts under way, cursors, version, step. Groups that a
learner has are saved as ready, since its own checkpoint does not have them; those that it has used
are trained. Prompts of groups that are being made are saved in front of the queue: after a load
they are made again, so that long ones are not left out, and commits from before are too late.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from async_loader.errors import ConfigError, CorruptCheckpoint, SchemaError
from async_loader.replay.checkpoint.writing import durable, sync_folder
from async_loader.rollouts.prompts import Counts
from async_loader.rollouts.requests import Requests
from async_loader.rollouts.schema import Array
from async_loader.rollouts.states import Cursor, Group, Prompt, State

FILE = "rollouts.save"
_HEAD = struct.Struct("<8sQII")
_MAGIC = b"al-roll1"


def state_of(calls: Requests) -> dict[str, Any]:
    """Return the state of a table: ``meta``, plain values, and ``arrays``, which are not copied."""
    table = calls.table
    groups, arrays = [], {}
    prompts = [
        [one.prompt.name, one.prompt.number, one.prompt.value, one.prompt.tries - 1]
        for one in table.groups.values()
        if one.state is State.RESERVED
    ]
    prompts += [[one.name, one.number, one.value, one.tries] for one in table.waiting]
    for one in table.groups.values():
        if one.state is State.RESERVED:
            continue
        prompt = one.prompt
        groups.append(
            {
                "id": one.id, "version": one.version, "times": one.times,
                "redelivered": one.redelivered or one.state is State.DELIVERED,
                "judged": one.judged, "lacks": dict(one.lacks), "size": one.size,
                "priority": None if one.priority != one.priority else one.priority,
                "prompt": [prompt.name, prompt.number, prompt.value, prompt.tries],
            }
        )  # fmt: skip
        arrays[f"{one.id}/lengths"] = one.lengths
        for column in one.columns.values():
            column.flags.writeable = False  # a later update copies it: see `Group.set`
        arrays |= {f"{one.id}/column/{name}": column for name, column in one.columns.items()}
        arrays |= {f"{one.id}/missing/{name}": mask.copy() for name, mask in one.missing.items()}
    meta = {
        "schema": table.schema.plain(), "version": table.version, "step": calls.steps.number,
        "next_id": table.next_id, "groups": groups, "prompts": prompts,
        "cursors": {name: [one.next, one.limit] for name, one in table.cursors.items()},
        "skipped": sorted(table.skipped),
        "counts": {name: copy(getattr(table.counts, name)) for name in Counts.__slots__},
    }  # fmt: skip
    return {"meta": meta, "arrays": arrays}


def restore(calls: Requests, state: Mapping[str, Any]) -> None:
    """Replace what a table has by a state; requests that wait go on.

    Raises SchemaError for the state of a table with other fields.
    """
    if not {"meta", "arrays"} <= state.keys():
        raise ConfigError("the state is no state_dict of Rollouts: give what state_dict() returned")
    meta, arrays = state["meta"], state["arrays"]
    if meta["schema"] != calls.settings.schema.plain():
        raise SchemaError(
            f"the save has the fields {', '.join(meta['schema'])}, this table "
            f"{', '.join(calls.settings.schema.fields)}, or of another dtype or shape"
        )
    calls.begin_anew()
    table = calls.table
    table.version, table.next_id = meta["version"], meta["next_id"]
    table.pass_over()
    calls.steps.number = meta["step"]
    table.cursors = {name: Cursor(*one) for name, one in meta["cursors"].items()}
    table.waiting.extend(Prompt(*one) for one in meta["prompts"])
    table.skipped = {(name, number) for name, number in meta["skipped"]}
    counts = meta["counts"]
    by_reason = {name: Counter(counts[name]) for name in ("ended", "given_back")}
    table.counts = Counts(**{**counts, **by_reason})
    deadline = calls.clock() + calls.settings.deadline_s
    for one in meta["groups"]:
        group = Group(
            one["id"], Prompt(*one["prompt"]), one["version"], deadline, None, 0, one["size"]
        )
        group.lengths = np.array(arrays[f"{group.id}/lengths"], np.int64)
        group.starts = np.concatenate(([0], np.cumsum(group.lengths)))
        group.lacks, group.times = dict(one["lacks"]), one["times"]
        group.redelivered, group.judged = one["redelivered"], one["judged"]
        if one["priority"] is not None:
            group.priority = one["priority"]
        for kind, fields in (("column", group.columns), ("missing", group.missing)):
            for name in table.schema.fields:
                value = arrays.get(f"{group.id}/{kind}/{name}")
                if value is not None:
                    fields[name] = np.array(value)
        table.groups[group.id] = group
        table.move(group, State.READY)
        if group.times:
            group.state = State.TRAINED
            calls.steps.kept[group.id] = group
        table.end_if_stale(group)  # a learner had it, while versions went on
    calls.advance()


# -- the file --------------------------------------------------------------------------------------


def write(folder: Path, state: Mapping[str, Any]) -> int:
    """Write a state to a folder, in place of an earlier one, or not at all; return the bytes."""
    specs, size, checksum = [], 0, 0
    arrays: dict[str, Array] = {}
    for name, given in state["arrays"].items():
        one = np.ascontiguousarray(given)
        arrays[name] = one.reshape(given.shape)
        specs.append([name, one.dtype.str, list(given.shape), size])
        size += one.nbytes
        checksum = zlib.crc32(one.reshape(-1).view(np.uint8).data, checksum)
    try:
        head = json.dumps({**state["meta"], "arrays": specs}, default=_plain).encode()
    except (TypeError, ValueError) as error:
        text = f"a prompt cannot be saved ({error}): give numbers, text, bytes, lists or dicts"
        raise ConfigError(text) from None
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{FILE}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    try:
        with durable(beside) as file:
            file.write(_HEAD.pack(_MAGIC, len(head), zlib.crc32(head), checksum))
            file.write(head)
            for one in arrays.values():
                file.write(one.reshape(-1).view(np.uint8).data)
        beside.replace(folder / FILE)
        sync_folder(folder)
    finally:
        beside.unlink(missing_ok=True)
    return _HEAD.size + len(head) + size


def read(folder: Path) -> dict[str, Any]:
    """Return the state in a folder.

    Raises CorruptCheckpoint, which names the file and the damage; OSError without a save.
    """
    path = folder / FILE
    whole = path.read_bytes()
    if len(whole) < _HEAD.size or whole[:8] != _MAGIC:
        raise CorruptCheckpoint(f"{path}: it is no save of rollouts: load another one")
    _, length, of_head, of_values = _HEAD.unpack_from(whole)
    head, values = whole[_HEAD.size : _HEAD.size + length], whole[_HEAD.size + length :]
    if zlib.crc32(head) != of_head or zlib.crc32(values) != of_values:
        raise CorruptCheckpoint(f"{path}: its checksum is wrong: load another one")
    meta = json.loads(head, object_hook=_value)
    arrays = {}
    for name, dtype, shape, at in meta.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(values, np.dtype(dtype), count, at).reshape(shape)
    return {"meta": meta, "arrays": arrays}


def _plain(value: object) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain value")


def _value(found: dict[str, Any]) -> Any:
    text = found.get("__bytes__")
    return base64.b64decode(text) if text is not None and len(found) == 1 else found
