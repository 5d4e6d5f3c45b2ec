"""Publishing and fetching weights, in parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from async_loader import tensors as torch_tensors
from async_loader.errors import Broken, ConfigError, Malformed, SchemaError
from async_loader.feeder.client.calls import Call
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.wire import (
    BFLOAT16,
    Latest,
    Message,
    Publish,
    TensorSpec,
    Weights,
    bytes_of,
    encode,
    name_fault,
    specs_of,
    tensors_of,
)
from async_loader.feeder.wire import Published as WirePublished
from async_loader.lifecycle import LONGEST_S, Deadline

PART_BYTES = 4 << 20
"""Bytes of one message: other control messages wait no longer than it takes."""
_MOST = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Published:
    """Weights that a learner published.

    Attributes
    ----------
    version : int
    tensors : dict of arrays or torch tensors
        Copies: what is written to them stays in this process. numpy has no bfloat16: such tensors
        are uint16 arrays of the bits, which
        ``(bits.astype("u4") << np.uint32(16)).view("f4")`` turns into float32.
    run : str
        The client that published them: versions count within a run. A restarted training script
        begins another run.
    """

    version: int
    tensors: dict[str, Any]
    run: str = ""


class Packed(NamedTuple):
    """Weights as they are sent, to any number of feeders."""

    specs: tuple[TensorSpec, ...]
    whole: memoryview


def packed(name: str, tensors: Mapping[str, Any]) -> Packed:
    """Copy weights. Raises SchemaError, ConfigError."""
    arrays, bfloat16 = dict[str, npt.NDArray[Any]](), set[str]()
    for key, value in tensors.items():
        if (fault := name_fault(key)) is not None:
            raise SchemaError(f"the name of tensor {fault}")
        key = str.__str__(key)
        if torch_tensors.is_bfloat16(value) and torch_tensors.is_dense(value):
            bfloat16.add(key)
            value = torch_tensors.to_bits(value)
        arrays[key] = _array(key, value)
    whole = memoryview(bytes_of(arrays))
    if not whole.nbytes:
        raise ConfigError(
            f"weights {name!r} hold no bytes: give at least one tensor that is not empty"
        )
    specs = specs_of(arrays, bfloat16)
    body = Publish(name=name, version=_MOST, total_bytes=whole.nbytes, specs=specs)
    try:
        encode(Message(body, data=whole[:1]))
    except Malformed as error:
        raise SchemaError(
            f"{len(specs):,} tensors of weights {name!r} cannot be sent ({error}): join or reshape "
            "some, or shorten names"
        ) from None
    return Packed(specs, whole)


def publish(
    connection: Connection,
    name: str,
    weights: Packed,
    version: int,
    deadline: Deadline,
    known: int,
) -> WirePublished:
    """See `Client.publish`; return the feeder's last answer.

    ``known``: the newest version that this client published so far.
    """
    first = connection.session.opened
    while True:
        session = connection.session.opened
        most = _part_bytes(connection)
        try:
            for at in range(0, weights.whole.nbytes, most):  # there is one at least
                body = Publish(
                    name=name,
                    version=version,
                    total_bytes=weights.whole.nbytes,
                    offset=at,
                    specs=weights.specs if not at else (),
                )
                part = weights.whole[at : at + most]
                reply = connection.call(Call(body, data=part), deadline).body
                assert isinstance(reply, WirePublished)
                said = reply
                if not said.newest:
                    break
        except Exception:
            # A restarted server does not have the first parts: begin again.
            if connection.session.opened == session or deadline.expired:
                raise
            continue
        again = version > known and connection.session.opened != first
        if again and (said.run, said.version) == (connection.client, version):
            return WirePublished(newest=True)  # the answer to its last part was lost
        return said


def latest(
    connection: Connection,
    name: str,
    newer_than: int | None,
    run: bytes | None,
    wait_s: float,
    deadline: Deadline,
    as_torch: bool,
) -> Published | None:
    """See `Client.latest`."""
    most, limit = _part_bytes(connection), min(wait_s, LONGEST_S) if wait_s > 0 else None
    body = Latest(name=name, newer_than=newer_than, run=run, most=most, timeout_s=limit)
    first: Weights | None = None
    whole = bytearray()
    at = 0
    while first is None or at < len(whole):
        reply = connection.call(Call(body), deadline)
        said = reply.body
        assert isinstance(said, Weights)
        if first is None and reply.data is None:
            return None
        if first is None or (said.version, said.run) != (first.version, first.run):
            first, at, whole = said, 0, bytearray(said.total_bytes)  # another, from its beginning
        part = memoryview(b"" if reply.data is None else reply.data)
        if said.offset != at or not 0 < part.nbytes <= len(whole) - at:
            raise Broken(
                f"weights {name!r} came in parts that do not fit: {part.nbytes} bytes from byte "
                f"{said.offset} of version {said.version}, byte {at} of {first.version} was next"
            )
        whole[at : at + part.nbytes] = part
        at += part.nbytes
        body = Latest(
            name=name, version=first.version, run=first.run, offset=at, most=_part_bytes(connection)
        )
    assert first.version is not None
    found: dict[str, Any] = dict(tensors_of(first.specs, whole))
    if as_torch:
        bfloat16 = {spec.name for spec in first.specs if spec.dtype == BFLOAT16}
        make = {True: torch_tensors.from_bits, False: torch_tensors.to_tensor}
        found = {key: make[key in bfloat16](value) for key, value in found.items()}
    return Published(first.version, found, (first.run or b"").hex())


def _part_bytes(connection: Connection) -> int:
    return max(1, min(PART_BYTES, connection.limits.message_bytes // 2))


def _array(name: str, value: object) -> npt.NDArray[Any]:
    array = torch_tensors.as_array(value)
    if array is None:
        text = f"{type(value).__name__}, which cannot travel: give an array or tensor"
        raise SchemaError(f"tensor {name!r} is {torch_tensors.unheld(value) or text}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.asarray(array)
