"""Methods of a loader that may be given as keywords."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

from async_loader.names import nearest

NOTHING_BY_DEFAULT = (
    "wif",
    "before_iter",
    "after_item",
    "before_batch",
    "after_batch",
    "after_iter",
)
NAMES = (
    *NOTHING_BY_DEFAULT,
    *(
        "create_batches",
        "create_item",
        "create_batch",
        "retain",
        "get_idxs",
        "sample",
        "shuffle_fn",
        "do_batch",
    ),
)


def take(loader: Any, keywords: dict[str, Any], others: Iterable[str]) -> None:
    """Replace methods by the callbacks among ``keywords``.

    A function replaces the method as it is, without ``self``. A bound method, of any object, is
    bound to the loader instead. None leaves the method as it is.

    Parameters
    ----------
    others : iterable of str
        Other valid keywords of the loader, for the message.

    Raises
    ------
    TypeError
        For a keyword that is not a callback, with the nearest name.
    """
    for name in keywords:
        if name not in NAMES:
            raise TypeError(
                f"{type(loader).__name__} takes no argument {name!r}: "
                f"{nearest(name, [*NAMES, *others])}"
            )
    for name, function in keywords.items():
        if function is not None:
            setattr(
                loader,
                name,
                MethodType(function.__func__, loader)
                if isinstance(function, MethodType)
                else function,
            )


def given(loader: Any) -> dict[str, Any]:
    """Return the callbacks that are not methods of the loader's class,
    for another loader like it.
    """
    found = {}
    for name in NAMES:
        value = getattr(loader, name)
        if name in vars(loader) or not isinstance(value, MethodType):
            found[name] = value
    return found
