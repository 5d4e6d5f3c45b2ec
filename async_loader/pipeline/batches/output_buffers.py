"""The caller's own tensors as the memory of batches: checks them, and copies each batch into them.

# NOTE [when a buffer is overwritten]
By the call of `next` that returns its tensors again, and by nothing else: batches that are made
ahead lie in slots, or in blocks on the device. On a device the copy is enqueued on the consumer's
current stream, behind the wait for the batch's upload. So it runs after all that this stream was
given before, such as the kernels that read the buffer's last batch, and before what it is given
next. Where the consumer has changed to another stream since, that one first waits for the former.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import nearest
from async_loader.pipeline.batches.collate import is_ignored

Pairs: TypeAlias = list[tuple[Any, Any]]


Writer: TypeAlias = Any
"""A HostWriter or a CudaBackend: writes into arrays of one device, in the order of the consumer's
stream. The consumer's thread.
"""


class HostWriter:
    """Tensors on the CPU; it has no streams."""

    def __str__(self) -> str:
        return "cpu"

    def holds(self, value: Any) -> bool:
        return tensors.is_tensor(value) and value.device.type == "cpu"

    def current(self) -> None:
        return None

    def follow(self, stream: Any) -> None:
        """There is nothing to wait for."""

    def write(self, pairs: Pairs) -> None:
        for target, values in pairs:
            tensors.copy_on_cpu(target, values)


Path: TypeAlias = tuple[Any, ...]
"""The keys that lead to a field of a nested batch."""


class OutputBuffers:
    """See the module. The consumer's thread.

    Parameters
    ----------
    into : dict of tensors | sequence of dicts of tensors
        As the caller gave it.
    device : Writer | None
        The backend of the loader's device; ``None`` is the CPU.
    host_fields : collection of str
        Top-level fields that are delivered on the CPU on any device.

    Raises
    ------
    ConfigError
        Naming the tensor that cannot be written into, and why.
    """

    def __init__(
        self,
        into: object,
        device: Writer | None = None,
        host_fields: Sequence[str] = ("index",),
    ) -> None:
        self._host = HostWriter()
        self._writer: Writer = self._host if device is None else device
        self._host_fields = host_fields
        several = isinstance(into, list | tuple)
        dicts: Sequence[Any] = into if isinstance(into, list | tuple) else [into]
        if not dicts or not all(isinstance(one, Mapping) for one in dicts):
            raise ConfigError(
                f"into= is {_said(into) if dicts else 'empty'}: give a dict of tensors "
                "[batch_size, ...], or a list of such dicts, which are used in turn"
            )
        self._buffers: list[dict[Path, Any]] = [{} for _ in dicts]
        self._labels = [f"into[{n}]" if several else "into" for n in range(len(dicts))]
        known: dict[int, str] = {}
        for number, one in enumerate(dicts):
            self._plan(one, (), number, known)
        # what made the tensors may still be at work on this stream
        self._streams = [self._writer.current()] * len(self._buffers)

    def _plan(self, value: Any, path: Path, number: int, known: dict[int, str]) -> None:
        """Note the tensors of a part of a dict; ``known``: where which memory is."""
        label = self._label(number, path)
        if isinstance(value, Mapping):
            if not value:
                raise ConfigError(f"{label} is empty: give tensors [batch_size, ...] by field")
            for key, one in value.items():
                self._plan(one, (*path, key), number, known)
            return
        _refuse_unfit(value, label, self._writer_of(path))
        self._buffers[number][path] = value
        other = known.setdefault(value.data_ptr(), label) if all(value.shape) else label
        if other != label:
            raise ConfigError(
                f"{other} and {label} are the same memory: one would overwrite the other; give "
                "each a memory of its own, such as torch.empty_like(tensor)"
            )

    def _label(self, number: int, path: Path) -> str:
        return self._labels[number] + "".join(f"[{key!r}]" for key in path)

    def _writer_of(self, path: Path) -> Writer:
        return self._host if len(path) == 1 and path[0] in self._host_fields else self._writer

    def covers(self, layout: BatchLayout) -> bool:
        """Whether the caller gave a tensor for each field that goes to the device."""
        names = {one.name for one in layout.regions}.difference(self._host_fields)
        return all((name,) in given for given in self._buffers for name in names)

    def fill(self, batch: Any, number: int) -> Any:
        """Copy a batch into the buffer whose turn it is. May be repeated with the same number.

        Parameters
        ----------
        batch : (nested) dict
        number : int
            Batches that were handed out before it.

        Returns
        -------
        dict
            A new one, nested as the batch: the caller's tensors, and beside them what these lack,
            on memory of its own.

        Raises
        ------
        SchemaError
            The batch does not fit. Nothing was written then.
        """
        turn = number % len(self._buffers)
        pairs: dict[Path, Any] = {}
        made = self._match(batch, (), turn, pairs)
        targets = self._buffers[turn]
        for path in targets.keys() - pairs.keys():
            remedy = nearest(str(path[-1]), map(str, batch)).replace("it takes", "it has")
            raise SchemaError(f"{self._label(turn, path)}: the batch has none: {remedy}")
        writer = self._writer
        stream, former = writer.current(), self._streams[turn]
        if stream != former:
            writer.follow(former)
            self._streams[turn] = stream
        for one in {writer, self._host}:
            those = [(targets[p], v) for p, v in pairs.items() if self._writer_of(p) is one]
            one.write(those)
        return made

    def _match(self, value: Any, path: Path, turn: int, pairs: dict[Path, Any]) -> Any:
        """Return what is handed out of ``value``; ``pairs`` gets what is to be copied."""
        target = self._buffers[turn].get(path)
        if target is not None:
            _check(value, target, self._label(turn, path), self._writer_of(path))
            pairs[path] = value
            return target
        if isinstance(value, Mapping):
            return {key: self._match(v, (*path, key), turn, pairs) for key, v in value.items()}
        if not path:
            raise SchemaError(
                f"the batch is {_said(value)}: what is no dict, as a collate_fn may return, "
                "cannot be delivered into tensors"
            )
        if self._writer is not self._host or any(map(is_ignored, path)):
            return value
        # on memory of its own, so that the batch's slot is free
        return tree.transform(value, tensors.copied)


def _check(value: Any, target: Any, label: str, writer: Writer) -> None:
    """Raise SchemaError unless a field of a batch fits a tensor."""
    if getattr(value, "shape", None) == target.shape and value.dtype == target.dtype:
        return
    if not hasattr(value, "data_ptr"):
        raise SchemaError(
            f"{label} is a tensor, and the batch has {_said(value)} there: leave the field out of "
            "into=, then it is delivered beside"
        )
    shape, kind, own = list(value.shape), _kind(value.dtype), _kind(target.dtype)
    if (shape, kind) == (list(target.shape), own):  # from the host, of a backend's own arrays
        return
    device = "" if type(writer) is HostWriter else f", device={str(writer)!r}"
    raise SchemaError(
        f"{label} is {list(target.shape)} {own}, and the batch has {shape} {kind} "
        f"there: make it torch.empty({shape}, dtype=torch.{kind}{device})"
    )


def _refuse_unfit(value: Any, label: str, writer: Writer) -> None:
    """Raise ConfigError for what is no tensor that `writer` can write into."""
    if writer.holds(value) and tensors.is_tensor(value):
        if value.requires_grad or not tensors.is_dense(value):
            raise ConfigError(
                f"{label} is {tensors.said(value)}{' with a gradient' * value.requires_grad}: give "
                "a dense tensor without one, such as tensor.detach()"
            )
    elif not writer.holds(value):
        remedy = f"make a tensor with device={str(writer)!r}"
        if isinstance(value, np.ndarray):
            remedy = "give torch.from_numpy(array)"
        given = tensors.said(value) if tensors.is_tensor(value) else _said(value)
        raise ConfigError(f"{label} is {given}, and this field is delivered on {writer}: {remedy}")


def _kind(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _said(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
