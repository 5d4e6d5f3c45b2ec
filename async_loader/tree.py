"""The structure of nested samples: dicts, lists, tuples and namedtuples with leaves of any type."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from async_loader.errors import MissingField
from async_loader.name_hints import explain_wrong_attributes, missing_field


class Misfit(Exception):
    """A sample that is nested differently from the first one. Never raised to users."""


@dataclass(frozen=True, slots=True)
class Node:
    """One container; children are nodes, or ``None`` for a leaf.

    Attributes
    ----------
    kind : type
        ``dict``, ``list``, ``tuple`` or a namedtuple's class: what `rebuild` makes.
    keys : tuple
        Keys of a dict; field names or positions otherwise.
    """

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]


Structure = Node | None


@explain_wrong_attributes
class Fields(dict[str, Any]):
    """A batch: a dict whose KeyError says how to get the field. Pickled as an OrderedDict, which
    `torch.load` reads.
    """

    __slots__ = ()

    def __missing__(self, name: object) -> Any:
        raise MissingField(missing_field(str(name), self))

    def __reduce__(self) -> Any:
        return OrderedDict, (), None, None, iter(self.items())


def _register_at_torch(pytree: Any) -> None:
    pytree.register_pytree_node(
        Fields,
        lambda batch: (list(batch.values()), list(batch)),
        lambda values, keys: Fields(zip(keys, values, strict=True)),
        serialized_type_name="async_loader.tree.Fields",
    )


def _register_at_jax(pytree: Any) -> None:
    pytree.register_pytree_node(
        Fields,
        lambda batch: (tuple(batch.values()), tuple(batch)),
        lambda keys, values: Fields(zip(keys, values, strict=True)),
    )


_unregistered: dict[str, Callable[[Any], None]] = {
    "torch.utils._pytree": _register_at_torch,
    "jax.tree_util": _register_at_jax,
}
"""Libraries whose functions over trees know exact types only, while they are not imported."""
_registering = threading.Lock()


def loaded(name: str) -> Any:
    """Return the module if this process has fully imported it, else ``None``. Imports nothing.

    A module that another thread is importing is already in `sys.modules` but incomplete: it counts
    as absent. There can be no instances of its classes yet.
    """
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


def _register() -> None:
    """Make `Fields` known to the libraries that have been imported meanwhile."""
    with _registering:
        for name, register in list(_unregistered.items()):
            if (module := loaded(name)) is not None:
                register(module)
                del _unregistered[name]


def fields(keys: Iterable[str], values: Iterable[Any]) -> Fields:
    """Return a flat batch."""
    if not sys.modules.keys().isdisjoint(_unregistered):
        _register()
    return Fields(zip(keys, values, strict=True))


def is_namedtuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def structure_of(value: Any, *, collated: bool = False) -> Structure:
    """Return the structure of ``value``.

    With ``collated``, plain tuples become lists, as collation makes them.
    """
    if isinstance(value, Mapping):
        kind: type = dict
        keys: tuple[Any, ...] = tuple(value)
        items: Iterable[Any] = (value[key] for key in keys)
    elif is_namedtuple(value):
        kind, keys, items = type(value), value._fields, value
    elif isinstance(value, list | tuple):
        kind = list if collated or isinstance(value, list) else tuple
        keys, items = tuple(range(len(value))), value
    else:
        return None
    return Node(kind, keys, tuple(structure_of(item, collated=collated) for item in items))


def names(structure: Structure, prefix: str = "") -> Iterator[str]:
    """Yield dotted names of the leaves, in order; a bare leaf is called ``value``."""
    if structure is None:
        yield prefix or "value"
        return
    for key, child in zip(structure.keys, structure.children, strict=True):
        yield from names(child, f"{prefix}.{key}" if prefix else str(key))


def paths(structure: Structure, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each leaf, in order."""
    if structure is None:
        yield above
        return
    for key, child in zip(structure.keys, structure.children, strict=True):
        yield from paths(child, (*above, key))


def leaves(value: object, structure: Structure) -> Iterator[Any]:
    """Yield the leaves of ``value`` in the order of ``structure``.

    Raises
    ------
    Misfit
        If ``value`` is nested differently.
    """
    for column in columns(structure, [value]):
        yield column[0]


def columns(structure: Structure, samples: Sequence[Any], prefix: str = "") -> Iterator[list[Any]]:
    """Yield one list per leaf with that leaf of every sample. No Python call per sample and leaf.

    Raises
    ------
    Misfit
        At the first container that differs from ``structure``.
    """
    if structure is None:
        yield list(samples)
        return
    _check_containers(structure, samples, prefix)
    mapping = structure.kind is dict
    for position, (key, child) in enumerate(zip(structure.keys, structure.children, strict=True)):
        try:
            column = list(map(itemgetter(key if mapping else position), samples))
        except (KeyError, IndexError) as error:
            raise Misfit(f"a sample has no {prefix + str(key)!r}") from error
        if child is None:
            yield column
        else:
            yield from columns(child, column, f"{prefix}{key}.")


def _check_containers(structure: Node, samples: Sequence[Any], prefix: str) -> None:
    what = prefix.removesuffix(".") or "a sample"
    for kind in set(map(type, samples)):
        if kind is not structure.kind and not _alike(structure, kind):
            raise Misfit(f"{what} is {kind.__name__} where the first was {structure.kind.__name__}")
    others = set(map(len, samples)) - {len(structure.keys)}
    if others:
        raise Misfit(
            f"{what} has {max(others)} entries where the first had "
            f"{len(structure.keys)}{_apart(structure, samples)}"
        )


def _apart(structure: Node, samples: Sequence[Any]) -> str:
    """Describe which keys of a dict differ, for the first sample of a different length."""
    if structure.kind is not dict:
        return ""
    odd = next(sample for sample in samples if len(sample) != len(structure.keys))
    lacks = [key for key in structure.keys if key not in odd]
    beside = [key for key in odd if key not in structure.keys]
    said = [
        f"{word} {', '.join(map(repr, keys))}"
        for word, keys in (("lacks", lacks), ("has also", beside))
        if keys
    ]
    return f": it {' and '.join(said)}"


def _alike(structure: Node, kind: type) -> bool:
    """Whether values of ``kind`` match ``structure``.

    Namedtuples are compared by their field names.
    """
    if structure.kind is dict:
        return issubclass(kind, Mapping)
    names = getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
    if structure.kind in (list, tuple):
        return issubclass(kind, list | tuple) and names is None
    return names == structure.keys


def _plain(keys: Iterable[Any], values: Iterable[Any]) -> dict[Any, Any]:
    return dict(zip(keys, values, strict=True))


def rebuild(
    structure: Structure,
    values: Iterable[Any],
    mapping: Callable[[Iterable[Any], Iterable[Any]], dict[Any, Any]] = _plain,
) -> Any:
    """Build the nested value from its leaves; the inverse of `leaves`.

    Parameters
    ----------
    mapping : callable
        Makes a dict of its keys and values.
    """
    rest = iter(values)
    if structure is None:
        return next(rest)
    children = [rebuild(child, rest, mapping) for child in structure.children]
    if structure.kind is dict:
        return mapping(structure.keys, children)
    if structure.kind in (list, tuple):
        return structure.kind(children)
    return structure.kind(*children)


rebuild_batch = partial(rebuild, mapping=fields)
"""As `rebuild`, with `Fields` for dicts."""


def transform(
    value: object,
    function: Callable[[Any], Any],
    *,
    leave: Callable[[Any], bool] = lambda key: False,
) -> Any:
    """Return ``value`` with ``function`` applied to every leaf; containers keep their kind.

    Parameters
    ----------
    leave : callable
        Called with the key of a dict's entry; True leaves the entry unchanged.
    """
    if isinstance(value, Mapping):
        made = {k: v if leave(k) else transform(v, function, leave=leave) for k, v in value.items()}
        return fields(made, made.values()) if type(value) is Fields else made
    if not isinstance(value, list | tuple):
        return function(value)
    items = [transform(item, function, leave=leave) for item in value]
    if is_namedtuple(value):
        return type(value)(*items)
    return items if isinstance(value, list) else tuple(items)
