"""Whether the workers of an iterable dataset all give the same items: the mistake that doubles a
data set without a word. Holds no batch.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings

from async_loader.dataset.batch_order import Batches
from async_loader.names import describe, stacklevel


class ShareCheck:
    """Sees the batches of one epoch, and warns once; also of a length that is too small.

    Parameters
    ----------
    dataset : object
    batches : Batches | None
        Of a length, where the dataset has one, that shares do not exceed; ``None``: it does not
        matter.
    batch_size : int | None
    streams : int
        Workers that iterate over copies of the dataset, whose batches come in turn; 0: the
        consumer does.
    in_order : bool
    """

    def __init__(
        self,
        dataset: object,
        batches: Batches | None,
        batch_size: int | None,
        streams: int,
        *,
        in_order: bool,
    ) -> None:
        self._dataset, self._streams = dataset, streams
        self._first: object = None
        self._looks = streams > 1 and in_order
        self._length = self._most = -1
        try:
            if batches is not None:
                self._length = len(batches)
                # each worker but one may have an incomplete batch more
                self._most = self._length + (0 if batch_size in (None, 1) else max(0, streams - 1))
        except (TypeError, NotImplementedError):
            return

    def see(self, number: int, batch: object) -> None:
        """Look at the batch with this number, counted from 1."""
        if self._looks and number <= 2:
            seen = _fingerprint(batch)
            if number == 1:
                self._first = seen
            elif seen is not None and seen == self._first:
                self._warn("two workers began with the same batch")
        if 0 <= self._most < number:
            self._warn(f"{number} batches have come, and len(loader) is {self._length}")

    def _warn(self, seen: str) -> None:
        self._looks, self._most = False, -1
        dataset = describe(self._dataset)
        if self._streams > 1:
            seen += (
                f": does each of the {self._streams} workers iterate over all of {dataset}? Then "
                f"each item comes {self._streams} times. Give each worker a share by "
                "torch.utils.data.get_worker_info(), or use num_workers=1"
            )
        else:
            seen += f": __len__ of {dataset} says too little"
        warnings.warn(seen, stacklevel=stacklevel())


def _fingerprint(batch: object) -> object:
    """What equal batches have in common; ``None`` where that is not known."""
    try:
        return hashlib.blake2b(pickle.dumps(batch)).digest()
    except Exception:  # any __reduce__ may run here
        return None
