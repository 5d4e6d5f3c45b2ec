"""Making of a DataLoader's batches, in any process: the share, the items, the batch,
and a callback at every step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.utils.data import default_convert

from async_loader import tree
from async_loader.compat.fastai.parts import GetAttrProxy, SkipItemException
from async_loader.dataset import torch_collate
from async_loader.pipeline.batches import arena


def fa_collate(batch: Sequence[Any]) -> Any:
    """Collate samples.

    ==========================  ==========================================================
    samples                     batch
    ==========================  ==========================================================
    tensors, arrays             stacked ``[B, ...]``, dtypes kept
    int, bool, float            int64, bool, float64 ``[B]``
    str, bytes                  a list
    mappings                    field by field; tuples within them become lists, as in torch
    tuples, namedtuples, lists  the same type, position by position
    ==========================  ==========================================================

    Raises
    ------
    TypeError
        For types without a rule.
    RuntimeError
        For different shapes, and for sequences of different lengths, which the original cuts to the
        shortest.
    """
    with arena.within(None):
        return collate_in_slot(batch)


def collate_in_slot(batch: Sequence[Any]) -> Any:
    """`fa_collate` into memory that later batches reuse, for batches that are delivered at once."""
    first = batch[0]
    if not _is_sequence(first):
        return torch_collate.collate(batch)
    lengths = sorted(set(map(len, batch)))
    if len(lengths) > 1:
        raise RuntimeError(
            f"the samples of one batch have lengths {lengths}: give all of them the same fields"
        )
    return _like(first, [collate_in_slot(column) for column in zip(*batch, strict=True)])


def fa_convert(value: Any) -> Any:
    """Convert one ready batch: arrays and numpy scalars become tensors,
    containers keep their type, the rest stays.
    """
    if _is_sequence(value):
        return _like(value, [fa_convert(item) for item in value])
    return default_convert(value)  # type: ignore[no-untyped-call]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def _like(first: Any, items: list[Any]) -> Any:
    """Put items into the container type of ``first``; a list if that cannot be built from items,
    such as a range.
    """
    kind = type(first)
    try:
        return kind(*items) if tree.is_namedtuple(first) else kind(items)
    except TypeError:
        return items


def collate_error(e: BaseException, batch: Sequence[Any]) -> NoReturn:
    """Raise ``e`` again; its text names the field that cannot be collated, and both samples."""
    found = torch_collate.misfit(batch, "")
    if found is not None:
        e.args = (
            f"{e}\n{found}: make them equal in after_item, for example by resizing or padding them "
            "there",
        )
    raise e


def retain_types(new: Any, like: Any) -> Any:
    """Convert ``new`` to the type of ``like`` if that is a subclass of its own type; lists and
    tuples also item by item.

    A batch with more parts than a sample repeats the sample's types.
    """
    if new is None or like is None:
        return new
    if isinstance(new, list | tuple) and isinstance(like, list | tuple) and len(like):
        items = [retain_types(item, like[number % len(like)]) for number, item in enumerate(new)]
        new = _like(new, items)
    return _cast(new, like)


def _cast(new: Any, like: Any) -> Any:
    kind = type(like)
    if isinstance(new, kind) or not issubclass(kind, type(new)):
        return new
    if isinstance(new, torch.Tensor):
        result = new.as_subclass(kind)
    else:
        try:
            result = kind(*new) if tree.is_namedtuple(like) else kind(new)
        except TypeError:
            return new
    set_meta = getattr(result, "set_meta", None)
    if callable(set_meta):
        set_meta(like)
    return result


class BatchMaker(GetAttrProxy):
    """The part of a DataLoader that runs in the workers,
    or in the learner's process if there are none.
    """

    dataset: Any
    bs: int | None
    drop_last: bool
    indexed: bool
    num_workers: int
    offs: int
    _idxs: Any = ()

    def sample(self) -> Iterator[Any]:
        """Return this worker's share of the indices: whole chunks,
        in turn with the other workers.
        """
        size = self.bs or 1
        mine = [i // size == self.offs for i in range(self.num_workers * size)]
        return itertools.compress(self._idxs, itertools.cycle(mine))

    def create_batches(self, samps: Iterable[Any]) -> Iterator[Any]:
        """Yield batches of the items of ``samps``. StopIteration in any callback ends them."""
        chunks = iter(self.chunkify(self._items(samps)))
        while True:
            try:
                yield self.do_batch(next(chunks))
            except StopIteration:
                return

    def _items(self, samps: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of ``samps`` that are not skipped."""
        if self.indexed and self._is_untouched("do_item", "create_item", "after_item"):
            get: Callable[[Any], Any] = self.create_item
            source = None
        else:
            get, source = self.do_item, self._source()
        for sample in samps:
            if source is not None:
                self.it = source  # a nested loop has set its own iterator
            try:
                item = get(sample)
            except StopIteration:
                return
            except SkipItemException:
                continue
            if item is not None:
                yield item

    def _is_untouched(self, *names: str) -> bool:
        """Whether these methods are those of this class."""
        return all(
            name not in vars(self) and getattr(type(self), name) is getattr(BatchMaker, name)
            for name in names
        )

    def _source(self) -> Iterator[Any] | None:
        """Return an iterator over the dataset, from which create_item may take items."""
        try:
            return iter(self.dataset) if self.dataset is not None else None
        except TypeError:
            if self.indexed:
                return None
            raise

    def do_item(self, s: Any) -> Any:
        """Return one item, or ``None`` if it is to be skipped."""
        try:
            return self.after_item(self.create_item(s))
        except SkipItemException:
            return None

    def create_item(self, s: Any) -> Any:
        if self.indexed:
            return self.dataset[s or 0]
        if s is not None:
            raise IndexError(
                f"item {s} of an iterable dataset was asked for, which gives items in turn only: "
                "ask for None"
            )
        return next(self.it)

    @property
    def prebatched(self) -> bool:
        """Whether items are batches already."""
        return self.bs is None

    def chunkify(self, b: Iterable[Any]) -> Iterable[Any]:
        return b if self.bs is None else chunks(iter(b), self.bs, self.drop_last)

    def do_batch(self, b: Any) -> Any:
        return self.retain(self.create_batch(self.before_batch(b)), b)

    def create_batch(self, b: Any) -> Any:
        if self.prebatched:
            return fa_convert(b)
        try:
            return collate_in_slot(b)
        except Exception as error:
            collate_error(error, b)

    def retain(self, res: Any, b: Any) -> Any:
        """Convert ``res`` to the type that the first item of ``b`` had."""
        return retain_types(res, b[0] if isinstance(b, list | tuple) and len(b) else b)

    # -- callbacks that do nothing -----------------------------------------------------------------

    def noop(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return ``x``."""
        return x

    wif = noop  # runs in each worker before its first sample
    before_iter = noop
    after_item = noop
    before_batch = noop
    after_batch = noop
    after_iter = noop


def chunks(items: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Yield lists of ``size`` items; the last one has the rest."""
    while chunk := list(itertools.islice(items, size)):
        if len(chunk) == size or not drop_last:
            yield chunk
