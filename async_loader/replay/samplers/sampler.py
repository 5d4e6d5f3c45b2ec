"""The Protocol of samplers and removers.

An item is one drawable step. It is known by its row, ``0 <= row < rows``; a row holds one item at
most. Samplers choose the items of a batch, removers the item that makes room for a new one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from async_loader.errors import Broken, ConfigError

Rows = npt.NDArray[np.int64]
Priorities = npt.NDArray[np.float64]


@dataclass(slots=True)
class Items:
    """Which rows hold an item. The table updates it before it tells samplers, which only read it.

    Attributes
    ----------
    alive : uint8 array [rows]
        1 where there is an item.
    count : int
        Items.
    top : int
        Rows that were ever used: every row with an item is below.
    column : callable | None
        Returns a field of the steps by its name, ``[rows, *shape]``, as it is now and will be.
        Raises ConfigError for an unknown name. ``None``: these items have no fields.
    """

    rows: int
    alive: npt.NDArray[np.uint8] = field(init=False)
    count: int = 0
    top: int = 0
    column: Callable[[str], npt.NDArray[Any]] | None = None

    def __post_init__(self) -> None:
        self.alive = np.zeros(self.rows, np.uint8)


@dataclass(frozen=True, slots=True)
class Draw:
    """The items that a sampler has chosen.

    Attributes
    ----------
    rows : int64 array [count]
    weight : float32 array [count] | None
        Importance weights, where the sampler has any.
    scale : callable | None
        Returns the logarithm of what the weights were divided by, where that depends on the draw.
        The pieces of one batch are brought to the largest, see `one_scale`.
    """

    rows: Rows
    weight: npt.NDArray[np.float32] | None = None
    scale: Callable[[], float] | None = None


def one_scale(
    pieces: Sequence[tuple[npt.NDArray[np.float32], Callable[[], float] | None]],
) -> tuple[npt.NDArray[np.float32], Callable[[], float] | None]:
    """Divide the weights of the parts of one batch by one number: the largest that a part was
    divided by.
    """
    if len(pieces) == 1:
        return pieces[0]
    scales = [None if scale is None else scale() for _, scale in pieces]
    largest = max((one for one in scales if one is not None), default=0.0)
    same = [
        weight if scale is None else (weight * math.exp(scale - largest)).astype(np.float32)
        for (weight, _), scale in zip(pieces, scales, strict=True)
    ]
    return np.concatenate(same), lambda: largest


class Reading(NamedTuple):
    """A batch to be drawn and read by one kernel.

    Attributes
    ----------
    geometry : int64 array
        Of the table. See row_format.py.
    fields : int64 array [fields, 10]
        What is copied where. See field_table.py.
    links : int64 array
        What items show beside their own rows. See field_table.py.
    rows : int64 array [count]
        Scratch.
    ids : int64 array [count]
    weight : float32 array [count] | None
        Where the ids go, and the weights, if the sampler has any.
    """

    geometry: npt.NDArray[np.int64]
    fields: npt.NDArray[np.int64]
    links: npt.NDArray[np.int64]
    rows: Rows
    ids: npt.NDArray[np.int64]
    weight: npt.NDArray[np.float32] | None


@runtime_checkable
class Sampler(Protocol):
    """Chooses among items.

    Threads: every method is called under the table's lock. Cost: each sampler states its own per
    item; nothing may be O(items) on every call. A sampler belongs to one table for its life: `bind`
    raises ConfigError the second time.

    # NOTE [shortcuts]
    Each call from Python to a kernel costs about as much as the work on some dozens of items. So a
    sampler may have more methods, which do in one call what a table otherwise does in several,
    with the same outcome (see `shortcut`):

    ``draw_into(reading: Reading) -> bool``: as `draw`, and the items are read. False: nothing was
    done, call `draw`.

    ``update_by_id(geometry, ids, priority) -> int``: finds steps, notes their priorities, and does
    what `update` does for those that are items; how many steps were there. Called where no other
    sampler wants to know.

    ``reset() -> None``: forgets all items, where a table otherwise removes each of its rows.

    # NOTE [fields of steps]
    A sampler may choose by a field of the steps, see ``Items.column``. It has one more method then,
    ``changed(rows)``, which is called after fields of these rows were overwritten: some may hold no
    item.
    """

    prioritized: bool
    """Whether `insert` and `update` take priorities. If not, ``update`` is not called."""

    weighted: bool
    """Whether draws carry weights."""

    repeats: bool
    """Whether one draw may hold an item more than once.

    If not, a draw of more items than there are returns fewer.
    """

    def bind(self, items: Items, seed: np.random.SeedSequence) -> None:
        """Attach the sampler to a table, and allocate memory per row.

        Called once, before all other methods.
        """

    def insert(self, rows: Rows, priority: Priorities) -> None:
        """Add new items, in the order of their insertion. NaN: no priority was given; what the
        sampler puts in its place is what `insert` gets when the table tells it of the item again,
        as after a load.
        """

    def remove(self, rows: Rows) -> None:
        """Remove items. Rows that hold none may be among them: after an interrupted call (Ctrl-C)
        all rows are removed, and the items that there are are inserted again.
        """

    def update(self, rows: Rows, priority: Priorities) -> None:
        """Change the priorities of items. Of a row that occurs twice the last value counts."""

    def draw(self, count: int) -> Draw:
        """Choose ``count`` items; there is at least one.

        Return fewer only if ``repeats`` is false and there are no more.
        """

    def check(self, priority: Priorities) -> None:
        """Raise ConfigError for a priority that is not allowed, naming it.

        Called outside the lock, before any change.
        """

    def state(self) -> dict[str, Any]:
        """Return what decides the next draws and does not follow from the items: random numbers,
        counts of draws. JSON values.
        """

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`, after `bind` with equal settings. Items are inserted later."""


def wrong_counts(fact: str) -> Broken:
    """Return the error for a sampler that does not find what is counted."""
    return Broken(
        f"{fact}: the counts of this table are wrong, save it, and load it again, which counts anew"
    )


def check_sampler(name: str, value: object) -> Sampler:
    """Return ``value`` if it is a sampler.

    Raises ConfigError, with ``name``, for a class of samplers and for anything else.
    """
    if isinstance(value, type):  # which has the methods too
        raise ConfigError(
            f"{name} is the class {value.__name__}: give an instance, as in "
            f"{name}={value.__name__}()"
        )
    if not isinstance(value, Sampler):
        raise ConfigError(f"{name}={value!r}: give a sampler, as in {name}=Uniform()")
    return value


@cache
def _has(kind: type, name: str, of: str) -> bool:
    first = next((one for one in kind.__mro__ if name in vars(one) or of in vars(one)), None)
    return first is not None and name in vars(first)


def shortcut(sampler: Sampler, name: str, of: str) -> Callable[..., Any] | None:
    """Return the method ``name`` that does more than the method ``of``, if there is one.

    See NOTE [shortcuts].

    A class that overrides ``of`` alone has no such method: its base's would bypass the override.
    """
    return getattr(sampler, name) if _has(type(sampler), name, of) else None
