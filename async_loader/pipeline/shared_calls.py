"""Jobs that call one function with arguments of their own, as they are sent to a worker process.

Most jobs are ``functools.partial(load, index)``. To pickle and to read a list of them takes three
to four times as long as the function once and the tuples of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import MethodType
from typing import Any, NamedTuple


class SharedCalls(NamedTuple):
    """One call for each tuple of arguments.

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
    if type(first) is not partial:
        return None
    function, arguments = first.func, []
    for call in calls:
        if type(call) is not partial or call.keywords:
            return None
        if call.func is not function and not _same_method(call.func, function):
            return None
        arguments.append(call.args)
    return SharedCalls(function, arguments)


def _same_method(one: object, other: object) -> bool:
    """Without ``==``, which may run code of the user's."""
    return (
        type(one) is MethodType
        and type(other) is MethodType
        and one.__self__ is other.__self__
        and one.__func__ is other.__func__
    )
