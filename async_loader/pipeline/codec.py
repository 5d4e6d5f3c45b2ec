"""Objects as bytes between a loader and its own worker processes. Never used on anything that comes
from a network.

Pickle protocol 5 with out-of-band buffers. By reference first, as the standard library does it;
what that cannot pickle (lambdas, closures, classes of functions) goes by value with cloudpickle.
Shared segments travel as descriptors beside the bytes, tensors as the arrays on their memory.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from async_loader import tensors
from async_loader.errors import CannotSend, missing_requirement
from async_loader.name_hints import describe
from async_loader.shm.segment import Segment, close_all

try:
    import cloudpickle
except ImportError as error:
    raise missing_requirement("cloudpickle") from error

if TYPE_CHECKING:
    from typing_extensions import Buffer

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


def encode(
    obj: object, *, by_value: bool = False, out_of_band: bool = False, at_birth: bool = False
) -> Encoded:
    """Pickle ``obj``.

    Parameters
    ----------
    by_value : bool
        Send functions and classes of ``__main__`` by value.
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
        with contextlib.suppress(Exception):
            # any __reduce__ may run here; by value is the second try, and that one reports
            return _dump(_ForResults if out_of_band else _by_reference, obj, out_of_band, at_birth)
    try:
        return _dump(_ByValue, obj, out_of_band, at_birth)
    except Exception as error:
        raise CannotSend(f"{describe(obj)} cannot be sent to a worker process: {error}") from error


def decode(head: Buffer, buffers: Sequence[Any] = (), fds: Sequence[int] = ()) -> Any:
    """The object again, on the memory of ``buffers``.

    Takes ownership of ``fds``: those of which no segment was made are closed, also when the pickle
    cannot be loaded.
    """
    left = dict(enumerate(fds))
    try:
        return _Unpickler(head, buffers, left).load()
    finally:
        close_all(left.values())


def of_session(encoded: Encoded) -> bool:
    """Whether this pickle refers by name to what was defined in an interactive session, where
    workers may know another object of that name, or none.
    """
    return b"__main__" in encoded.head and not hasattr(sys.modules["__main__"], "__file__")


def _dump(
    kind: Callable[..., pickle.Pickler], obj: object, out_of_band: bool, at_birth: bool
) -> Encoded:
    sink = io.BytesIO()
    encoded = Encoded(b"")

    def keep(buffer: pickle.PickleBuffer) -> bool:
        encoded.buffers.append(buffer.raw())
        return False

    special = _Special(encoded.fds, at_birth)
    kind(sink, keep if out_of_band else None, special).dump(obj)
    encoded.head = sink.getvalue()
    return encoded


class _Special:
    """How types are reduced that pickle would copy, or could not send.

    Attributes
    ----------
    table : dict
        At a birth: how multiprocessing pickles connections, memory maps, shared values.
    """

    def __init__(self, fds: list[int], at_birth: bool) -> None:
        self._fds = fds
        known: dict[type, Any] = getattr(reduction.ForkingPickler, "_extra_reducers", {})
        # torch's own reductions put the storage in the pickle, or in a file of shared memory
        self.table = {
            kind: reduce
            for kind, reduce in (known if at_birth else {}).items()
            if not kind.__module__.startswith("torch")
        }

    def __call__(self, obj: object) -> Any:
        kind = type(obj)
        if kind in self.table:
            return self.table[kind](obj)
        if kind is Segment and not self.table:
            self._fds.append(cast(Segment, obj).fileno())
            return _segment, (len(self._fds) - 1, cast(Segment, obj).nbytes)
        return tensors.reduced(obj)


def _segment(number: int, nbytes: int) -> Segment:
    raise AssertionError("only the unpickler resolves segments")


def _by_reference(sink: io.BytesIO, keep: _Keep, special: _Special) -> pickle.Pickler:
    """A pickler with a table of the special types: unlike reducer_override it costs nothing for
    all other objects.
    """
    pickler = pickle.Pickler(sink, protocol=5, buffer_callback=keep)
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        **special.table,
        **dict.fromkeys((*tensors.tensor_types(), *(() if special.table else [Segment])), special),
    }
    return pickler


class _Pickler:
    """A pickler that asks for each object whether its type is special."""

    def __init__(self, sink: io.BytesIO, keep: _Keep, special: _Special) -> None:
        super().__init__(sink, protocol=5, buffer_callback=keep)  # type: ignore[call-arg]
        self._special = special


class _ForResults(_Pickler, pickle.Pickler):
    """Their tensors may be of any subclass, which a table of types cannot know."""

    def reducer_override(self, obj: object) -> Any:
        return NotImplemented if type(obj) is np.ndarray else self._special(obj)


class _ByValue(_Pickler, cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: object) -> Any:
        found = self._special(obj)
        return super().reducer_override(obj) if found is NotImplemented else found


class _Unpickler(pickle.Unpickler):
    """What `find_class` returns stays in the unpickler's memo, which the collector of Python 3.11.2
    does not look into. So it must not lead back to the unpickler, or that, and every object that
    was loaded, would stay for good.
    """

    def __init__(self, head: Buffer, buffers: Sequence[Any], fds: dict[int, int]) -> None:
        super().__init__(io.BytesIO(head), buffers=buffers)
        self._fds = fds

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == "_segment":
            fds = self._fds  # the segment owns its descriptor from there on
            return lambda number, nbytes: Segment.attach(fds.pop(number), nbytes)
        return super().find_class(module, name)


# -- jobs that call one function -------------------------------------------------------------------


class SharedCalls(NamedTuple):
    """One call for each tuple of arguments: most jobs are ``functools.partial(load, index)``. To
    pickle and to read a list of them takes three to four times as long.

    Attributes
    ----------
    function : callable
    arguments : list of tuple
    """

    function: Callable[..., Any]
    arguments: list[tuple[Any, ...]]


def shared(calls: Sequence[Callable[[], Any]]) -> SharedCalls | None:
    """The jobs in the short form; ``None`` unless all are partials, without keywords, of one
    function or of one method of one object.
    """
    first = calls[0]
    if type(first) is not functools.partial:
        return None
    function, arguments = first.func, []
    for call in calls:
        if type(call) is not functools.partial or call.keywords:
            return None
        if call.func is not function and not _same_method(call.func, function):
            return None
        arguments.append(call.args)
    return SharedCalls(function, arguments)


def _same_method(one: object, other: object) -> bool:
    """Without ``==``, which may run code of the user's."""
    return (
        type(one) is types.MethodType
        and type(other) is types.MethodType
        and one.__self__ is other.__self__
        and one.__func__ is other.__func__
    )
