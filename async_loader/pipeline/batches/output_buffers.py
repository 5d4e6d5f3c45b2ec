"""The caller's own tensors as the memory of batches: checks them, and copies each batch into them.

# NOTE [when a buffer is overwritten]
By the call of `next` that returns its tensors again, and by nothing else: batches that are made
ahead lie in slots, or in blocks on the device. On a device the copy is enqueued on the consumer's
current stream, behind the wait for the batch's upload. So it runs after all that this stream was
given before, such as the kernels that read the buffer's last batch, and before what it is given
next. Where the consumer has changed to another stream since, that one first waits for the former.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader import tensors, tree
from async_loader.batch_layout import BatchLayout
from async_loader.errors import ConfigError, SchemaError
from async_loader.names import nearest
from async_loader.pipeline.batches.collate import is_ignored
from async_loader.schema import Schema

_MAX_WORK = 10_000
"""Of the exact search for a byte that two tensors share; beyond it they count as overlapping."""

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

    def write(self, target: Any, values: Any) -> None:
        """Copy ``values`` into ``target``, of the same shape and dtype, on the current stream.

        On a `StagingBackend` they may be a tensor on the CPU, of `STAGED_BYTES` at most, which may
        change as soon as this returns.
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

    def write(self, target: Any, values: Any) -> None:
        tensors.copy_on_cpu(target, values)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A tensor of the caller's.

    Attributes
    ----------
    path : tuple
        The keys that lead to it in its dict.
    label : str
        As in ``into[0]['obs']['pixels']``.
    dtype : torch.dtype | numpy.dtype
    numpy_dtype : numpy.dtype | None
        The same; ``None`` for those that numpy lacks.
    """

    path: tuple[Any, ...]
    label: str
    array: Any
    shape: tuple[int, ...]
    dtype: Any
    numpy_dtype: np.dtype[Any] | None
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
        shape, dtype = tuple(value.shape), value.dtype
        if isinstance(self.dtype, np.dtype) and tensors.is_tensor(value):
            dtype = tensors.numpy_dtype(dtype)
        own = self.numpy_dtype if isinstance(dtype, np.dtype) else self.dtype
        if shape != self.shape or dtype != own:
            kind = str(dtype).removeprefix("torch.")
            device = "" if type(self.writer) is HostWriter else f", device={str(self.writer)!r}"
            raise SchemaError(
                f"{self.label} is {list(self.shape)} {str(self.dtype).removeprefix('torch.')}, and "
                f"the batch has {list(shape)} {kind} there: make it "
                f"torch.empty({list(shape)}, dtype=torch.{kind}{device})"
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
    device : object | None
        The backend of the loader's device; ``None`` is the CPU.
    host_fields : collection of str
        Top-level fields that are delivered on the CPU on any device.

    Raises
    ------
    ConfigError
        Naming the tensor that cannot be written into, and why.
    """

    def __init__(
        self, into: object, device: object | None = None, host_fields: Sequence[str] = ("index",)
    ) -> None:
        host = HostWriter()
        writer = host if device is None else device
        if not isinstance(writer, BufferWriter):
            raise ConfigError(
                f"into= is not possible on the device {device}: its backend lacks holds, current, "
                "follow or write (see BufferWriter)"
            )
        self._writer = writer
        self._on_host = device is None
        self._host_fields = {} if device is None else dict.fromkeys(host_fields, host)
        self._buffers = self._planned(into)
        _refuse_differences(self._buffers)
        _refuse_overlaps([target for buffer in self._buffers for target in _leaves(buffer)])
        # what made the tensors may still be at work on this stream
        self._streams = [writer.current()] * len(self._buffers)
        self._covered: tuple[BatchLayout, bool] | None = None
        self._write_each: Callable[[Pairs], None] | None = getattr(writer, "write_each", None)

    def _planned(self, into: object) -> list[dict[Any, Targets]]:
        several = isinstance(into, list | tuple)
        dicts: Sequence[Any] = into if isinstance(into, list | tuple) else [into]
        if not dicts or not all(isinstance(one, Mapping) for one in dicts):
            given = "an empty list" if several and not dicts else f"{type(into).__name__}"
            if several and dicts:
                odd = next(one for one in dicts if not isinstance(one, Mapping))
                given = f"a {given} with a {type(odd).__name__} in it"
            raise ConfigError(
                f"into= is {given}: give a dict of tensors [batch_size, ...], or a list of such "
                "dicts, which are used in turn"
            )
        buffers: list[dict[Any, Targets]] = []
        for number, one in enumerate(dicts):
            label = f"into[{number}]" if several else "into"
            planned = self._plan(one, (), label)
            assert isinstance(planned, dict)
            buffers.append(planned)
        return buffers

    def _plan(self, value: Any, path: tuple[Any, ...], label: str) -> Targets:
        items: Any = None
        if isinstance(value, Mapping):
            items = value.items()
        elif isinstance(value, list | tuple):
            items = enumerate(value)
        if items is None:
            writer = self._host_fields.get(path[0], self._writer) if len(path) == 1 else None
            return _target(value, path, label, writer or self._writer)
        made = {k: self._plan(v, (*path, k), f"{label}[{k!r}]") for k, v in items}
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
        """Whether the batch is a flat dict, and each field has a tensor of the caller's, or is
        delivered on the CPU.
        """
        known = self._covered
        if known is None or known[0] is not layout:
            given, root = self._buffers[0], layout.structure
            covered = False
            if isinstance(root, tree.Node) and not any(root.children):
                names = set(root.keys).difference(self._host_fields)
                covered = all(type(given.get(name)) is Target for name in names)
            known = self._covered = (layout, covered)
        return known[1]

    def fill(self, batch: Any, number: int) -> dict[Any, Any]:
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
        made: dict[Any, Any] = self._match(batch, self._buffers[turn], pairs)
        writer = self._writer
        stream, former = writer.current(), self._streams[turn]
        if stream != former:
            writer.follow(former)
            self._streams[turn] = stream
        if self._write_each is not None:
            self._write_each(
                [(target.array, values) for target, values in pairs if target.writer is writer]
            )
        for target, values in pairs:
            if self._write_each is None or target.writer is not writer:
                target.writer.write(target.array, values)
        return made

    def _match(self, value: Any, buffer: Targets, pairs: list[tuple[Target, Any]]) -> Any:
        """What is returned of ``value``; ``pairs`` gets what is to be copied."""
        if type(buffer) is Target:
            buffer.check(value)
            pairs.append((buffer, value))
            return buffer.array
        if type(buffer) is list:
            if not isinstance(value, list | tuple) or len(value) != len(buffer):
                raise SchemaError(_unlike(buffer, value))
            return [self._match(v, b, pairs) for v, b in zip(value, buffer, strict=True)]
        assert type(buffer) is dict
        if not isinstance(value, Mapping):
            raise SchemaError(_unlike(buffer, value))
        if not buffer.keys() <= value.keys():
            raise SchemaError(_missing(buffer, value))
        made = {}
        for key, item in value.items():
            below = buffer.get(key)
            if below is not None:
                made[key] = self._match(item, below, pairs)
            else:
                made[key] = item if is_ignored(key) or not self._on_host else _own(item)
        return made


def _own(value: object) -> Any:
    """On memory of its own, so that the batch's slot is free."""
    return tree.transform(value, _copy, leave=is_ignored)


def _copy(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.clone() if tensors.is_tensor(value) else value


def _target(value: Any, path: tuple[Any, ...], label: str, writer: BufferWriter) -> Target:
    if not tensors.is_tensor(value) and not writer.holds(value):
        remedy = ": give torch.from_numpy(array)" if isinstance(value, np.ndarray) else ""
        raise ConfigError(f"{label} is {_said(value)}, no tensor on {writer}{remedy}")
    if tensors.is_tensor(value):
        if not writer.holds(value):
            raise ConfigError(
                f"{label} is {tensors.said(value)}, and this field is delivered on {writer}: "
                f"make it with device={str(writer)!r}"
            )
        if value.is_nested or str(value.layout) != "torch.strided":
            raise ConfigError(f"{label} is {tensors.said(value)}: give a dense one, torch.empty()")
        if value.requires_grad:
            raise ConfigError(
                f"{label} requires a gradient, and batches are written into it: give "
                "tensor.detach(), which has the same memory"
            )
        if value.is_inference():
            raise ConfigError(
                f"{label} was made under torch.inference_mode(), and torch refuses to write into "
                "it elsewhere: make it before"
            )
    shape = tuple(value.shape)
    if any(n > 1 and step == 0 for n, step in zip(shape, value.stride(), strict=True)):
        raise ConfigError(
            f"{label} has several elements on the same memory (expand): give tensor.contiguous()"
        )
    kind = value.dtype if isinstance(value.dtype, np.dtype) else tensors.numpy_dtype(value.dtype)
    return Target(path, label, value, shape, value.dtype, kind, writer)


def _leaves(buffer: Targets) -> Iterator[Target]:
    if isinstance(buffer, Target):
        yield buffer
        return
    for below in buffer.values() if isinstance(buffer, dict) else buffer:
        yield from _leaves(below)


def _refuse_differences(buffers: Sequence[dict[Any, Targets]]) -> None:
    first = {target.path: target for target in _leaves(buffers[0])}
    for number, buffer in enumerate(buffers[1:], 1):
        other = {target.path: target for target in _leaves(buffer)}
        for path in (*first, *other):
            a, b = first.get(path), other.get(path)
            if a is None or b is None:
                name = ".".join(map(str, path))
                raise ConfigError(
                    f"field {name!r} is in into[{0 if b is None else number}] and not in "
                    f"into[{number if b is None else 0}]: give both the same fields"
                )
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                raise ConfigError(
                    f"{a.label} is {list(a.shape)} {a.dtype}, and {b.label} is {list(b.shape)} "
                    f"{b.dtype}: make them alike"
                )


def _refuse_overlaps(targets: Sequence[Target]) -> None:
    memory = [(target, _Memory(target)) for target in targets]
    for i, (a, of_a) in enumerate(memory):
        for b, of_b in memory[:i]:
            if a.writer is b.writer and of_a.meets(of_b):
                raise ConfigError(
                    f"{b.label} and {a.label} overlap in memory: one would overwrite the other; "
                    "give each a memory of its own, such as torch.empty_like(tensor)"
                )


class _Memory:
    """The bytes of a tensor on any device: addresses, which are not read."""

    def __init__(self, target: Target) -> None:
        array, item = target.array, target.array.element_size()
        self._array: npt.NDArray[Any] | None = None
        if all(target.shape):
            self.__array_interface__ = {
                "version": 3,
                "typestr": f"|V{item}",
                "shape": target.shape,
                "strides": tuple(step * item for step in array.stride()),
                "data": (array.data_ptr(), True),
            }
            self._array = np.asarray(self)

    def meets(self, other: _Memory) -> bool:
        a, b = self._array, other._array
        if a is None or b is None or not np.may_share_memory(a, b):
            return False
        try:
            return np.shares_memory(a, b, max_work=_MAX_WORK)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True


def _said(value: object) -> str:
    if isinstance(value, np.ndarray | _Expected):
        return f"an array of {value.dtype}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _unlike(buffer: Targets, value: object) -> str:
    label = next(_leaves(buffer)).label
    size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
    return (
        f"{label} has no counterpart in the batch, which has {_said(value)}{size} above it: nest "
        "into= as the batch is; a batch that is no dict, as a collate_fn may return, cannot be "
        "delivered into tensors"
    )


def _missing(buffer: dict[Any, Targets], value: Mapping[Any, Any]) -> str:
    key = next(key for key in buffer if key not in value)
    label = next(_leaves(buffer[key])).label
    remedy = nearest(str(key), map(str, value))  # "did you mean", or "it takes"
    return f"{label}: the batch has no {key!r}: {remedy.replace('it takes', 'it has')}"
