"""Memory of clients of this host: rows of writers are read there, batches of readers written."""

from __future__ import annotations

from async_loader.errors import ConfigError, Malformed
from async_loader.feeder.server.sessions import Session, Sessions
from async_loader.feeder.server.weights import WeightStore
from async_loader.feeder.shared import Listener, Offer, SharedBatchRing, WeightsRequest
from async_loader.feeder.wire import Insert, RowLayout, SlotInsert
from async_loader.shm.segment import Segment


class InsertSlots:
    """Slots that the writer fills. It fills one again when the INSERT in it is acknowledged.

    Parameters
    ----------
    segment : Segment
        Closed with the slots. Rows that wait for their table keep the memory.
    offer : Offer
    """

    def __init__(self, segment: Segment, offer: Offer) -> None:
        self._segment, self._offer = segment, offer

    def insert(self, body: SlotInsert, layout: RowLayout) -> Insert:
        """Return the INSERT with its frames: the large ones as views of the slot.

        What is checked before it is used, small fields and bools, is copied: the writer's process
        could change it in between.

        Raises
        ------
        Malformed
            If there is no such slot, or the rows do not fit into one.
        """
        slots, slot_bytes = self._offer.slots, self._offer.slot_bytes
        if body.slot >= slots:
            raise Malformed(f"INSERT names slot {body.slot}, this writer has {slots}")
        places, nbytes = layout.slot_places(body.capacity)
        if nbytes > slot_bytes:
            raise Malformed(
                f"{body.capacity} rows take {nbytes} bytes, a slot of this writer has {slot_bytes}"
            )
        begin = body.slot * slot_bytes
        frames = [
            self._segment.view(begin + place, size)
            for place, size in zip(places, layout.sizes(body.rows), strict=True)
        ]
        frames[0] = memoryview(bytes(frames[0]))
        for frame, i in enumerate(layout.large, 1):
            if i in layout.bools:
                frames[frame] = memoryview(bytes(frames[frame]))
        return Insert(body.rows, frames)

    def close(self) -> None:
        """Unmap the memory, once no row in it waits. May be called again."""
        self._segment.close()


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
            if offer.owner == "writer":
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
