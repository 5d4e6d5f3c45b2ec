"""Memory of clients of this host: rows of writers are read there, batches of readers written."""

from __future__ import annotations

from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.server.producer_streams import InsertSlots
from async_loader.feeder.server.sessions import Session, Sessions
from async_loader.feeder.server.weights import WeightStore
from async_loader.feeder.shared import Listener, Offer, Owner, SharedBatchRing, WeightsRequest
from async_loader.shm.segment import Segment


class SharedMemoryAcceptor:
    """Takes clients' offers of memory. Poll `listener`, and call its `handle`.

    Parameters
    ----------
    path : str
        Of the unix socket.
    sessions : Sessions
        Whose readers and writers may be offered memory.
    weights : WeightStore
        Whose memory sessions may map.

    Raises
    ------
    ConfigError
        If nothing can listen there.
    """

    def __init__(self, path: str, sessions: Sessions, weights: WeightStore) -> None:
        self._sessions, self._weights = sessions, weights
        weights.shared = True
        try:
            self.listener = Listener(path, self._take, self._give)
        except OSError as error:
            raise ConfigError(
                f"{path} (shared memory) cannot be bound: {error.strerror}: name another address"
            ) from None

    def _session(self, number: int) -> Session:
        session = self._sessions.get(number)
        if session is None:
            raise Malformed("this session is not known here: begin again with HELLO")
        return session

    def _give(self, wanted: WeightsRequest) -> int:
        self._session(wanted.session)
        return self._weights.memory_of(wanted.name, wanted.version, wanted.run)

    def _take(self, offer: Offer, fd: int) -> None:
        segment = Segment.attach(fd, offer.nbytes)
        try:
            session, number = self._session(offer.session), offer.number
            if offer.owner is Owner.WRITER:
                writer = session.writers.get(number)
                if writer is None or writer.slots is not None:
                    raise Malformed(f"there is no writer {number} that takes memory: open it first")
                writer.slots = InsertSlots(segment, offer)
                return
            reader = session.readers.get(number)
            if reader is None or not reader.shared or reader.batch_ring is not None:
                raise Malformed(f"there is no reader {number} that takes memory: open it first")
            rows = reader.batch_size
            reader.batch_ring = SharedBatchRing(segment, offer, reader.schema, rows)
        except BaseException:
            segment.close()
            raise
