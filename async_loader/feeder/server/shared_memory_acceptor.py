"""Memory that learners offer goes to their readers. Draws nothing, and sends no message."""

from __future__ import annotations

import os

from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.server.batch_scheduler import ReaderState
from async_loader.feeder.server.sessions import Sessions
from async_loader.feeder.shared import Listener, Offer, SharedBatchRing
from async_loader.shm.segment import Segment


class SharedMemoryAcceptor:
    """Listens for offers. Poll `filenos`, and call `handle` with what is readable.

    Parameters
    ----------
    path : str
        Of the unix socket.
    sessions : Sessions
        Whose readers may be offered memory.

    Raises
    ------
    ConfigError
        If nothing can listen there.
    """

    def __init__(self, path: str, sessions: Sessions) -> None:
        self._sessions = sessions
        try:
            self._listener = Listener(path, self._take)
        except OSError as error:
            raise ConfigError(f"{path} (shared memory) cannot be bound: {error.strerror}: name another address") from None
        self.path = path
        self.filenos, self.handle, self.close = self._listener.filenos, self._listener.handle, self._listener.close

    def _take(self, offer: Offer, fd: int) -> None:
        try:
            reader = self._reader(offer)
        except Malformed:
            os.close(fd)
            raise
        segment = Segment.attach(fd, offer.nbytes)
        try:
            reader.batch_ring = SharedBatchRing(segment, offer, reader.schema, reader.batch_size)
        except BaseException:
            segment.close()
            raise

    def _reader(self, offer: Offer) -> ReaderState:
        session = self._sessions.get(offer.session)
        reader = None if session is None else session.readers.get(offer.number)
        if reader is None or not reader.takes_memory:
            raise Malformed(f"there is no reader {offer.number} of this session that takes memory: open it first")
        if reader.batch_ring is not None:
            raise Malformed(f"reader {offer.number} has its memory: open it again to offer another")
        return reader
