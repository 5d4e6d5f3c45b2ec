"""Objects as bytes between a loader and its own worker processes. Never used on anything that comes
from a network.

Pickle protocol 5 with out-of-band buffers. By reference first, as the standard library does it;
what that cannot pickle (lambdas, closures, classes of functions) goes by value with cloudpickle.
Shared segments travel as descriptors beside the bytes, tensors as the arrays on their memory.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
import types
import weakref
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from async_loader import tensors
from async_loader.errors import CannotSend, missing_requirement
from async_loader.names import describe
from async_loader.shm.segment import Segment, close_all

try:
    import cloudpickle
except ImportError as error:
    raise missing_requirement("cloudpickle") from error

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ALIGN = 64
_Keep = Callable[[pickle.PickleBuffer], bool] | None


@dataclass(slots=True)
class Encoded:
    """A pickled object.

    Attributes
    ----------
    head : bytes
        The pickle itself.
    buffers : list of memoryview
        Large memory that it refers to, not copied.
    fds : list of int
        Descriptors it refers to; still owned by their segments.
    """

    head: bytes
    buffers: list[memoryview] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)

    def table(self, start: int) -> tuple[list[tuple[int, int]], int]:
        """(offset, nbytes) of every buffer when they are laid one behind the other from
        ``start``, and the end.
        """
        table = []
        for buffer in self.buffers:
            start = -(-start // _ALIGN) * _ALIGN
            table.append((start, buffer.nbytes))
            start += buffer.nbytes
        return table, start

    def write(self, into: memoryview, table: list[tuple[int, int]]) -> None:
        """Copy the buffers to their places."""
        for buffer, (offset, nbytes) in zip(self.buffers, table, strict=True):
            into[offset : offset + nbytes] = buffer


def encode(
    obj: object, *, by_value: bool = False, out_of_band: bool = False, at_birth: bool = False
) -> Encoded:
    """Pickle ``obj``.

    Parameters
    ----------
    by_value : bool
        Send functions and classes of ``__main__`` by value: they were defined after the worker
        started.
    out_of_band : bool
        Leave large buffers outside the pickle.
    at_birth : bool
        A process is being spawned: what multiprocessing can send at that moment alone may be in it.

    Raises
    ------
    CannotSend
        With the reason.
    """
    if not by_value:
        try:
            by_reference: Any = _at_start if at_birth else _by_reference
            return _dump(_Batch if out_of_band else by_reference, obj, out_of_band)
        except Exception:
            # any __reduce__ may run here; by value is the second try, and that one reports
            pass
    try:
        return _dump(_ByValueAtStart if at_birth else _ByValue, obj, out_of_band)
    except Exception as error:
        raise CannotSend(f"{describe(obj)} cannot be sent to a worker process: {error}") from error


def decode(head: Buffer, buffers: Sequence[Any] = (), fds: Sequence[int] = ()) -> Any:
    """The object again, on the memory of ``buffers``.

    Takes ownership of ``fds``: those of which no segment was made are closed, also when the pickle
    cannot be loaded.
    """
    if not fds:
        return _Unpickler(io.BytesIO(head), buffers=buffers, attach=_segment).load()
    left = dict(enumerate(fds))
    try:
        return _Unpickler(
            io.BytesIO(head), buffers=buffers, attach=functools.partial(_attached, left)
        ).load()
    finally:
        close_all(left.values())


class MainModule:
    """The functions and classes of ``__main__`` as workers know them from their birth.

    A function that is defined anew afterwards (a notebook's cell that is run again) has a name that
    workers resolve to the old one. So as soon as one of them is another object, what refers to
    ``__main__`` travels by value.
    """

    def __init__(self) -> None:
        self._known = {name: weakref.ref(value) for name, value in _defined_in_main()}
        self._changed = False

    def changed_for(self, encoded: Encoded) -> bool:
        """Whether this pickle refers to ``__main__`` by name, and workers know another one."""
        return b"__main__" in encoded.head and self.changed

    @property
    def changed(self) -> bool:
        """Whether one of them was defined anew. It stays so: what refers to it may come by any
        name.
        """
        if not self._changed:
            module = vars(sys.modules["__main__"])
            self._changed = any(
                module.get(name) is not known() for name, known in self._known.items()
            )
        return self._changed


def _defined_in_main() -> list[tuple[str, Any]]:
    module: Any = sys.modules.get("__main__")
    found = list(vars(module).items()) if module is not None else []
    return [(name, value) for name, value in found if isinstance(value, types.FunctionType | type)]


def _dump(kind: Callable[..., pickle.Pickler], obj: object, out_of_band: bool) -> Encoded:
    sink = io.BytesIO()
    encoded = Encoded(b"")

    def keep(buffer: pickle.PickleBuffer) -> bool:
        encoded.buffers.append(buffer.raw())
        return False

    kind(sink, keep if out_of_band else None, encoded.fds).dump(obj)
    encoded.head = sink.getvalue()
    return encoded


def _special(obj: object, fds: list[int]) -> Any:
    if type(obj) is Segment:
        fds.append(obj.fileno())
        return _segment, (len(fds) - 1, obj.nbytes)
    # torch's own reduction puts the storage in the pickle, byte by byte, under every protocol.
    return tensors.reduced(obj)


def _segment(number: int, nbytes: int) -> Segment:
    raise AssertionError("only the unpickler resolves segments")


def _by_reference(sink: io.BytesIO, keep: _Keep, fds: list[int]) -> pickle.Pickler:
    """A pickler with a table of the special types: unlike reducer_override it costs nothing for
    all other objects.
    """
    pickler = pickle.Pickler(sink, protocol=5, buffer_callback=keep)
    special = functools.partial(_special, fds=fds)
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        Segment: special,
        **dict.fromkeys(tensors.tensor_types(), special),
    }
    return pickler


def _at_start(sink: io.BytesIO, keep: _Keep, fds: list[int]) -> pickle.Pickler:
    pickler: Any = _by_reference(sink, keep, fds)
    pickler.dispatch_table = {**_shared_at_start(), **pickler.dispatch_table}
    return pickler  # type: ignore[no-any-return]


def _shared_at_start() -> dict[type, Any]:
    """How multiprocessing pickles connections, memory maps, shared values. Those of tensors are
    left out: see `_special`.
    """
    known: dict[type, Any] = getattr(reduction.ForkingPickler, "_extra_reducers", {})
    return {
        kind: reduce for kind, reduce in known.items() if not kind.__module__.startswith("torch")
    }


class _Batch(pickle.Pickler):
    """For results: their tensors may be of any subclass, which a table of types cannot know."""

    def __init__(self, sink: io.BytesIO, keep: _Keep, fds: list[int]) -> None:
        super().__init__(sink, protocol=5, buffer_callback=keep)
        self._fds = fds

    def reducer_override(self, obj: object) -> Any:
        return NotImplemented if type(obj) is np.ndarray else _special(obj, self._fds)


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, sink: io.BytesIO, keep: _Keep, fds: list[int]) -> None:
        super().__init__(sink, protocol=5, buffer_callback=keep)
        self._fds = fds

    def reducer_override(self, obj: object) -> Any:
        special = _special(obj, self._fds)
        return super().reducer_override(obj) if special is NotImplemented else special


class _ByValueAtStart(_ByValue):
    @property
    def dispatch_table(self) -> Any:
        """Read once, while the pickler is made: an attribute that is set afterwards is not seen."""
        return ChainMap(_shared_at_start(), super().dispatch_table)


def _attached(left: dict[int, int], number: int, nbytes: int) -> Segment:
    """The segment, which owns its descriptor from here on."""
    return Segment.attach(left.pop(number), nbytes)


class _Unpickler(pickle.Unpickler):
    """What `find_class` returns stays in the unpickler's memo, which the collector of Python 3.11.2
    does not look into. So it must not lead back to the unpickler, or that, and every object that
    was loaded, would stay for good.
    """

    def __init__(
        self, file: io.BytesIO, *, buffers: Sequence[Any], attach: Callable[[int, int], Segment]
    ) -> None:
        super().__init__(file, buffers=buffers)
        self._attach = attach

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == "_segment":
            return self._attach
        return super().find_class(module, name)
