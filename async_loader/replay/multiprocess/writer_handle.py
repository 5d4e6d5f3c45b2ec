"""The handle that is sent to a process that writes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable
from multiprocessing import reduction
from typing import Any

from async_loader.errors import Closed, ConfigError
from async_loader.names import explain_wrong_attributes
from async_loader.replay.multiprocess.publish_ring import PublishRing
from async_loader.replay.multiprocess.terms import Terms
from async_loader.replay.multiprocess.writer import ProcessWriter
from async_loader.replay.table.storage import Storage
from async_loader.shm.fd_channel import from_fd
from async_loader.shm.segment import Segment, close_all


@explain_wrong_attributes
class WriterHandle:
    """The right of one process to write into a table. Made by `ReplayBuffer.writer_handle`.

    Hand it to a process as an argument, under any start method. The first process that calls `open`
    has it: each handle is opened once. One that is dropped unopened gives its place to another.

    Threads: any, in any process; `open` once.
    """

    def __init__(
        self,
        sock_fd: int,
        owner_fd: int,
        lane: Segment,
        clock: Segment,
        storage: Storage,
        terms: Terms,
    ) -> None:
        self._fds = [sock_fd, owner_fd]
        self._ring, self._clock, self._storage = lane, clock, storage
        self._terms = terms

    def open(self, stream: Hashable | None = None) -> ProcessWriter:
        """Begin to write, in this process.

        Parameters
        ----------
        stream : hashable, optional
            Whose steps `append` adds; by default a stream of its own. It has to pickle. Only one
            writer at a time may write to a stream.

        Raises
        ------
        ConfigError
            If the handle has been opened, here or in another process.
        Closed, Broken
            If the table was closed, or its process is gone.
        """
        if not self._fds:
            raise ConfigError(
                "this handle was opened or closed already: get a writer_handle() for each writer"
            )
        lane = PublishRing(self._ring)
        other = lane.claim(os.getpid())
        if other:
            raise ConfigError(
                f"process {other} has opened this handle: get a writer_handle() for each writer"
            )
        (sock_fd, owner_fd), self._fds = self._fds, []
        channel = from_fd(sock_fd)
        channel.set_blocking(False)
        writer = ProcessWriter(channel, owner_fd, lane, self._clock, self._storage, self._terms)
        try:
            writer._begin(
                ("writer", self._terms.owner, self._terms.number) if stream is None else stream
            )
        except BaseException:
            writer.close()
            raise
        return writer

    def __repr__(self) -> str:
        state, terms = "unopened" if self._fds else "used", self._terms
        return f"<WriterHandle number={terms.number} of process {terms.owner} {state}>"

    def close(self) -> None:
        """Give up the handle unopened."""
        fds, self._fds = self._fds, []
        close_all(fds)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # then modules are being torn down, and descriptors close with the process
        if not finalizing():
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._fds:
            raise Closed(
                "this handle was opened or closed already: get a writer_handle() for each writer"
            )
        return _arrived, (
            *map(reduction.DupFd, self._fds),
            self._ring,
            self._clock,
            self._storage,
            self._terms,
        )


def _arrived(
    sock: Any, owner: Any, lane: Segment, clock: Segment, storage: Storage, terms: Terms
) -> WriterHandle:
    return WriterHandle(sock.detach(), owner.detach(), lane, clock, storage, terms)
