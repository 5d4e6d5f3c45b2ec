"""Methods of a loader that may be given as keywords. Calls none of them."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

from async_loader.names import nearest

NOTHING_BY_DEFAULT = ("wif", "before_iter", "after_item", "before_batch", "after_batch", "after_iter")
NAMES = (
    *NOTHING_BY_DEFAULT,
    *("create_batches", "create_item", "create_batch", "retain", "get_idxs", "sample", "shuffle_fn", "do_batch"),
)


def take(loader: Any, keywords: dict[str, Any], others: Iterable[str]) -> None:
    """Put the callbacks among ``keywords`` in the place of the methods.

    A function replaces the method as it stands, and so gets no ``self``. A bound method, of whatever object, is bound to
    the loader instead. None leaves the method as it is.

    Parameters
    ----------
    others : iterable of str
        What else the loader may be given, for the message.

    Raises
    ------
    TypeError
        For a keyword that is no callback, with the nearest name.
    """
    for name in keywords:
        if name not in NAMES:
            raise TypeError(f"{type(loader).__name__} takes no argument {name!r}: {nearest(name, [*NAMES, *others])}")
    for name, function in keywords.items():
        if function is not None:
            setattr(loader, name, MethodType(function.__func__, loader) if isinstance(function, MethodType) else function)


def given(loader: Any) -> dict[str, Any]:
    """The callbacks that are not methods of the loader's class, for another loader like it."""
    found = {}
    for name in NAMES:
        value = getattr(loader, name)
        if name in vars(loader) or not isinstance(value, MethodType):
            found[name] = value
    return found
