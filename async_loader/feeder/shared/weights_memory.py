"""A server's weights in memory that its clients on the same host map: all of them share one copy.

A client that knows from WEIGHTS which version there is asks for it over the server's unix socket,
and is sent a descriptor. The server never changes a version that is whole, and each client maps it
privately: what one writes into its arrays the others do not see.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
from dataclasses import dataclass

from async_loader.errors import Broken, Malformed, Timeout
from async_loader.feeder.shared.offer import TEXT_BYTES, connected
from async_loader.lifecycle import readable

SHARED_FROM = 1 << 20
"""Bytes of weights from which on they are shared: fewer are sent sooner than mapped."""
MAGIC = b"ALW1"
_RECORD = struct.Struct("<4sQQ16s")
_NAME_BYTES = 1024


@dataclass(frozen=True, slots=True)
class WeightsRequest:
    """A version of weights that a session wants to map."""

    session: int
    name: str
    version: int
    run: bytes

    def pack(self) -> bytes:
        return _RECORD.pack(MAGIC, self.session, self.version, self.run) + self.name.encode()

    @classmethod
    def unpack(cls, record: bytes) -> WeightsRequest:
        """Decode a request. Raises Malformed if it is not one."""
        name = record[_RECORD.size :]
        if not 1 <= len(name) <= _NAME_BYTES:
            raise Malformed(f"a request for weights has {len(record)} bytes: it ends with the name")
        magic, session, version, run = _RECORD.unpack(record[: _RECORD.size])
        if magic != MAGIC:
            raise Malformed(f"a request for weights begins with {MAGIC!r}, not with {magic!r}")
        try:
            return cls(session, name.decode(), version, run)
        except UnicodeDecodeError:
            raise Malformed("the name of weights is no UTF-8") from None


def map_weights(path: str, request: WeightsRequest, nbytes: int, timeout_s: float) -> mmap.mmap:
    """Map a server's weights privately: pages that are not written to are shared by all clients.

    Raises
    ------
    Unsupported
        No server listens there: it is on another host, or in another container.
    Malformed
        It refuses, with its reason: the version was replaced, or it is an older server.
    Broken
        It is gone, or sends something else.
    Timeout
        It does not answer in time.
    """
    with connected(path, timeout_s) as channel:
        try:
            channel.send(request.pack())
            heard = readable([channel.fileno()], timeout_s)
            answer, fds, _, _ = (
                socket.recv_fds(channel, TEXT_BYTES, 8) if heard else (b"", [], 0, 0)
            )
        except OSError as error:
            raise Broken(
                f"the server went away while weights were asked for: {error.strerror}"
            ) from None
    if not heard:
        raise Timeout(f"the server sent no weights in shared memory for {timeout_s:g} s")
    try:
        if not answer:
            raise Broken("the server went away while weights were asked for")
        if answer != b"\0":
            raise Malformed(answer[1:].decode("utf-8", "replace"))
        if len(fds) != 1 or (found := os.fstat(fds[0]).st_size) != nbytes:
            text = f"{len(fds)} descriptors" if len(fds) != 1 else f"{found} bytes"
            raise Broken(f"weights in shared memory came as {text}, they have {nbytes} bytes")
        return mmap.mmap(
            fds[0], nbytes, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
