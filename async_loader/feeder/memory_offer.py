"""Rows in shared memory on one host: a client owns it. The server writes a learner's batches into
it, and reads an actor's rows from it.

::

    learner                                        server
      │ OPEN_READER transport "shm"                  │
      │─────────────────────────────────────────────▶│ control
      │ offer: session, reader, slots, [memfd]       │
      │─────────────────────────────────────────────▶│ a unix socket: size and seals?
      │◀──────────────────────────────────────── yes │
      │ PULL granted 4, returned 0 1 2 3 4 5         │
      │─────────────────────────────────────────────▶│ pull
      │◀─────────────── BATCH slots 0, 1             │ 16 bytes each; the rows are in the slots

    actor                                          server
      │ OPEN_WRITER                                  │
      │─────────────────────────────────────────────▶│ control
      │ offer: session, writer, slots, [memfd]       │
      │─────────────────────────────────────────────▶│ a unix socket
      │◀──────────────────────────────────────── yes │
      │ INSERT 0 in slot 3                           │ 8 bytes; the rows are in the slot
      │─────────────────────────────────────────────▶│ insert
      │◀────────────────────────────────────── ACK 1 │ slot 3 may be filled again

The memory has no name, so that no process that dies leaves it behind: it is freed with the last
process that maps it. It is sealed before it is sent: a client that shrinks it would kill the
server.
"""

from __future__ import annotations

import os
import socket
import stat
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from async_loader.errors import Broken, Malformed
from async_loader.feeder.wire.codes import U32, U64

TEXT_BYTES = 512
ANSWER_S = 1.0
"""How long a client waits for the answer to an offer: a server gives it within milliseconds, unless
it is stopped or out of file descriptors.
"""
SEALS = 2 | 4  # F_SEAL_SHRINK and F_SEAL_GROW: Windows has no fcntl to name them


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer"):
    """Memory for the batches of a reader, the rows of a writer, or the arrays of calls: ``slots``
    of ``slot_bytes`` each, one after the other.
    """

    session: U64
    number: U32
    slots: Annotated[int, Meta(ge=1, le=4096)]
    slot_bytes: Annotated[int, Meta(ge=4096, le=1 << 40, multiple_of=4096)]
    owner: Literal["reader", "writer", "calls"] = "reader"

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes

    def send(self, path: str, fd: int) -> None:
        """Send this and its memory to a server's memory socket; return when it has taken it.

        Raises
        ------
        Malformed
            The server refuses, with its reason.
        Broken
            It cannot be reached from here, is gone, or does not answer.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.settimeout(ANSWER_S)
            try:
                channel.connect(path)
                socket.send_fds(channel, [msgspec.msgpack.encode(self)], [fd])
                answer = channel.recv(TEXT_BYTES)
            except OSError as error:
                text = f"the feeder's memory socket {path} does not answer"
                raise Broken(f"{text}: {error}") from None
        if answer != b"\0":
            raise Malformed(answer[1:].decode("utf-8", "replace") or "the feeder went away")

    def check(self, fd: int) -> None:
        """Raise Malformed unless the descriptor is sealed memory of that size."""
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != self.nbytes:
            raise Malformed(
                f"the memory offered has {found.st_size} bytes, {self.nbytes} were announced"
            )
        try:
            import fcntl

            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except (OSError, AttributeError):
            raise Malformed("the memory offered cannot be sealed: offer a memfd") from None
        if seals & SEALS != SEALS:
            raise Malformed(
                "the memory offered is not sealed against being cut short: seal it before it is "
                "sent"
            )


_decoder = msgspec.msgpack.Decoder(Offer)


def read_record(record: bytes) -> Offer:
    """Decode what a client has sent. Raises Malformed."""
    try:
        return _decoder.decode(record)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Malformed(f"an offer of memory cannot be read: {error}") from None


def answered(reason: str | None) -> bytes:
    """The record that a server sends back: whether it took the memory, or why not."""
    return b"\0" if reason is None else b"\1" + reason.encode()[: TEXT_BYTES - 1]
