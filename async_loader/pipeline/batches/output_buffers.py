"""The caller's own tensors as the memory of batches: checks them, and copies each batch into them.

# NOTE [when a buffer is overwritten]
By the call of `next` that returns its tensors again, and by nothing else: batches that are made
ahead lie in slots, or in blocks on the device. On a device the copy is enqueued on the consumer's
current stream, behind the wait for the batch's upload. So it runs after all that this stream was
given before, such as the kernels that read the buffer's last batch, and before what it is given
next. Where the consumer has changed to another stream since, that one first waits for the former.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError, SchemaError
from async_loader.name_hints import nearest
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.schema import Schema

Pairs: TypeAlias = list[tuple[Any, Any]]


@runtime_checkable
class BufferWriter(Protocol):
    """Writes into arrays of one device, in the order of the consumer's stream. The consumer's
    thread.
    """

    def holds(self, value: Any) -> bool:
        """Whether ``value`` is an array on this device."""

    def current(self) -> Any:
        """This thread's current stream."""

    def follow(self, stream: Any) -> None:
        """Let this thread's current stream wait for all that ``stream`` was given so far."""

    def write(self, pairs: Pairs) -> None:
        """Copy (target, values) each, of the same shape and dtype, on the current stream."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A tensor of the caller's.

    Attributes
    ----------
    label : str
        As in ``into[0]['obs']['pixels']``.
    """

    label: str
    array: Any
    shape: tuple[int, ...]
    dtype: Any
    writer: BufferWriter

    def check(self, value: Any) -> None:
        """Raise SchemaError unless a batch's field fits. ``value`` may be an `_Expected` one."""
        if getattr(value, "shape", None) == self.shape and value.dtype == self.dtype:
            return
        if type(value) is not _Expected and not hasattr(value, "data_ptr"):
            raise SchemaError(
                f"{self.label} is a tensor, and the batch has {_said(value)} there: leave the "
                "field out of into=, then it is delivered beside"
            )
        shape, kind, own = list(value.shape), _kind(value.dtype), _kind(self.dtype)
        if shape != list(self.shape) or kind != own:
            device = "" if type(self.writer) is HostWriter else f", device={str(self.writer)!r}"
            raise SchemaError(
                f"{self.label} is {list(self.shape)} {own}, and the batch has {shape} {kind} "
                f"there: make it torch.empty({shape}, dtype=torch.{kind}{device})"
            )


@dataclass(frozen=True, slots=True)
class _Expected:
    """A field of a batch that is not drawn yet."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Targets: TypeAlias = Target | dict[Any, "Targets"] | list["Targets"]


class OutputBuffers:
    """See the module. The consumer's thread.

    Parameters
    ----------
    into : dict of tensors | sequence of dicts of tensors
        As the caller gave it.
    device : BufferWriter | None
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
        device: BufferWriter | None = None,
        host_fields: Sequence[str] = ("index",),
    ) -> None:
        self._host = HostWriter()
        self._writer: BufferWriter = self._host if device is None else device
        self._host_fields = host_fields
        several = isinstance(into, list | tuple)
        dicts: Sequence[Any] = into if isinstance(into, list | tuple) else [into]
        if not dicts or not all(isinstance(one, Mapping) for one in dicts):
            raise ConfigError(
                f"into= is {_said(into) if dicts else 'empty'}: give a dict of tensors "
                "[batch_size, ...], or a list of such dicts, which are used in turn"
            )
        self._buffers = [
            self._plan(one, None, f"into[{number}]" if several else "into")
            for number, one in enumerate(dicts)
        ]
        _refuse_same_memory(target for buffer in self._buffers for target in _leaves(buffer))
        # what made the tensors may still be at work on this stream
        self._streams = [self._writer.current()] * len(self._buffers)

    def _plan(self, value: Any, top: object, label: str) -> Targets:
        """The targets of a part of a dict; ``top`` is the key of a top-level field."""
        if not isinstance(value, Mapping | list | tuple):
            writer = self._host if top in self._host_fields else self._writer
            _refuse_unfit(value, label, writer)
            return Target(label, value, tuple(value.shape), value.dtype, writer)
        items: Mapping[Any, Any] = value if isinstance(value, Mapping) else dict(enumerate(value))
        made = {
            key: self._plan(one, key if top is None else (), f"{label}[{key!r}]")
            for key, one in items.items()
        }
        if not made:
            raise ConfigError(f"{label} is empty: give tensors [batch_size, ...] by field")
        return made if isinstance(value, Mapping) else list(made.values())

    def check(self, schema: Schema, rows: int) -> None:
        """Raise ConfigError unless batches of ``rows`` rows of this schema fit."""
        fields = [_Expected((rows, *f.shape), f.dtype) for f in schema.fields]
        try:
            for buffer in self._buffers:
                self._match(schema.rebuild(fields), buffer, [])
        except SchemaError as error:
            raise ConfigError(*error.args) from None

    def covers(self, layout: BatchLayout) -> bool:
        """Whether the caller gave a tensor for each field that goes to the device."""
        names = {one.name for one in layout.regions}.difference(self._host_fields)
        return all(
            isinstance(given, dict) and all(type(given.get(name)) is Target for name in names)
            for given in self._buffers
        )

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
        pairs: list[tuple[Target, Any]] = []
        made = self._match(batch, self._buffers[turn], pairs)
        writer = self._writer
        stream, former = writer.current(), self._streams[turn]
        if stream != former:
            writer.follow(former)
            self._streams[turn] = stream
        for one in {target.writer for target, _ in pairs}:
            one.write([(target.array, values) for target, values in pairs if target.writer is one])
        return made

    def _match(self, value: Any, buffer: Targets, pairs: list[tuple[Target, Any]]) -> Any:
        """What is returned of ``value``; ``pairs`` gets what is to be copied."""
        if isinstance(buffer, Target):
            buffer.check(value)
            pairs.append((buffer, value))
            return buffer.array
        kinds = Mapping if isinstance(buffer, dict) else (list, tuple)
        if not isinstance(value, kinds) or (isinstance(buffer, list) and len(value) != len(buffer)):
            raise SchemaError(
                f"{_label(buffer)} has no counterpart in the batch, which has {_said(value)} "
                "there: nest into= as the batch is; a batch that is no dict, as a collate_fn may "
                "return, cannot be delivered into tensors"
            )
        if isinstance(buffer, list):
            return [self._match(v, b, pairs) for v, b in zip(value, buffer, strict=True)]
        assert isinstance(value, Mapping)
        for key in buffer:
            if key not in value:
                remedy = nearest(str(key), map(str, value)).replace("it takes", "it has")
                raise SchemaError(f"{_label(buffer[key])}: the batch has no {key!r}: {remedy}")
        made = {}
        for key, item in value.items():
            if key in buffer:
                made[key] = self._match(item, buffer[key], pairs)
            else:
                host = self._writer is self._host and not is_ignored(key)
                # on memory of its own, so that the batch's slot is free
                made[key] = tree.transform(item, tensors.copied) if host else item
        return made


def _refuse_unfit(value: Any, label: str, writer: BufferWriter) -> None:
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


def _refuse_same_memory(targets: Iterator[Target]) -> None:
    known: dict[int, str] = {}
    for target in targets:
        if not all(target.shape):
            continue
        other = known.setdefault(target.array.data_ptr(), target.label)
        if other != target.label:
            raise ConfigError(
                f"{other} and {target.label} are the same memory: one would overwrite the other; "
                "give each a memory of its own, such as torch.empty_like(tensor)"
            )


def _leaves(buffer: Targets) -> Iterator[Target]:
    if isinstance(buffer, Target):
        yield buffer
        return
    for below in buffer.values() if isinstance(buffer, dict) else buffer:
        yield from _leaves(below)


def _label(buffer: Targets) -> str:
    return next(_leaves(buffer)).label


def _kind(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _said(value: object) -> str:
    if isinstance(value, np.ndarray | _Expected):
        return f"an array of {value.dtype}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
