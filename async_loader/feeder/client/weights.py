"""Weights of a network, there and back, in parts. Keeps none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from async_loader import tensors as torch_tensors
from async_loader.errors import Broken, ConfigError, SchemaError
from async_loader.feeder.client.connection import Connection
from async_loader.feeder.wire import Latest, Publish, TensorSpec, Weights, bytes_of, specs_of, tensors_of
from async_loader.lifecycle import Deadline

PART_BYTES = 4 << 20
"""Of a message: other control messages wait no longer than it takes."""
_RESTARTS = 16


@dataclass(frozen=True, slots=True)
class Published:
    """What a learner published.

    Attributes
    ----------
    version : int
    tensors : dict of arrays or torch tensors
        This caller's own.
    """

    version: int
    tensors: dict[str, Any]


def publish(connection: Connection, name: str, tensors: Mapping[str, Any], version: int, deadline: Deadline) -> None:
    """See `Client.publish`."""
    arrays = {key: _array(key, value) for key, value in tensors.items()}
    specs, whole = specs_of(arrays), memoryview(bytes_of(arrays))
    if not whole.nbytes:
        raise ConfigError(f"weights {name!r} hold no bytes: give at least one tensor that is not empty")
    most = connection.limits.control_bytes  # what any frame on the control plane may have
    for _ in range(_RESTARTS):
        session = connection.session.opened
        try:
            for at in range(0, whole.nbytes, most):
                body = Publish(
                    name=name, version=version, total_bytes=whole.nbytes, offset=at, specs=specs if not at else ()
                )  # fmt: skip
                connection.call(body, deadline, data=whole[at : at + most])
            return
        except Exception:
            # A server that was started anew has no first parts: from the beginning, then.
            if connection.session.opened == session or deadline.expired:
                raise
    raise Broken(f"weights {name!r} could not be published: the connection was lost {_RESTARTS} times meanwhile")


def latest(
    connection: Connection, name: str, newer_than: int | None, wait_s: float, deadline: Deadline, as_torch: bool
) -> Published | None:
    """See `Client.latest`."""
    most = min(PART_BYTES, connection.limits.message_bytes // 2)
    first = Latest(name=name, newer_than=newer_than, most=most, timeout_s=wait_s if wait_s > 0 else None)
    reply = connection.call(first, deadline)
    whole, version = bytearray(), None
    specs: tuple[TensorSpec, ...] = ()
    while True:
        body = reply.body
        assert isinstance(body, Weights)
        if reply.data is None:
            return None
        if not body.offset:  # the first part; or another version, since that one is forgotten
            whole, specs, version = bytearray(), body.specs, body.version
        elif body.version != version or body.offset != len(whole):
            raise Broken(f"weights {name!r} came in parts that do not fit: byte {body.offset} after byte {len(whole)}")
        whole += reply.data
        if len(whole) >= body.total_bytes:
            break
        more = Latest(name=name, version=version, offset=len(whole), most=most)
        reply = connection.call(more, deadline)
    assert version is not None
    found: dict[str, Any] = dict(tensors_of(specs, whole))
    if as_torch:
        found = {key: torch_tensors.to_tensor(value) for key, value in found.items()}
    return Published(version, found)


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    array = torch_tensors.as_array(value)
    if array is None:
        kind = getattr(value, "dtype", type(value).__name__)
        raise SchemaError(f"tensor {name!r} is {kind}, which cannot travel: give an array or tensor of a dtype that numpy has")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.asarray(array)
