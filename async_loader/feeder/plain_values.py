"""Objects of tables as plain values, as in a configuration and on the wire, and back.

An object is a map of its ``kind``, which is the name of its class in snake case, and of its
constructor's arguments, as in ``{"kind": "prioritized", "alpha": 0.6}``. The constructor checks
them.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from async_loader.errors import AsyncLoaderError, ConfigError
from async_loader.name_hints import hint
from async_loader.replay import samplers
from async_loader.replay.hindsight_view import Hindsight, HindsightParts
from async_loader.replay.rate_limiter import RateLimiter
from async_loader.replay.samplers.binding import Binding
from async_loader.replay.samplers.sampler import Sampler, check_sampler
from async_loader.replay.views import Sequences, Transitions, View, checked_view


class Mistake(ConfigError):
    """What is wrong with a value, and the keys that lead to it."""

    def __init__(self, text: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(": ".join(filter(None, (".".join(path), text))))
        self.text, self.path = text, path


@contextlib.contextmanager
def at(key: str) -> Iterator[None]:
    """Name the key whose value is read in a mistake of it."""
    try:
        yield
    except (AsyncLoaderError, TypeError) as error:
        inner = error if isinstance(error, Mistake) else Mistake(str(error))
        raise Mistake(inner.text, (key, *inner.path)) from error


def _by_kind(classes: Iterable[Any]) -> dict[str, Any]:
    names = ((re.sub(r"(?<!^)(?=[A-Z])", "_", one.__name__).lower(), one) for one in classes)
    return dict(names)


SAMPLERS = _by_kind(
    one
    for one in map(vars(samplers).get, samplers.__all__)
    if isinstance(one, type) and issubclass(one, Binding)
)
KINDS = SAMPLERS | _by_kind((samplers.Linear, RateLimiter, Transitions, Sequences))


def plain(value: object, name: str) -> Any:
    """Return an object as plain values; plain values as they are.

    Raises
    ------
    ConfigError
        For an object of another class: a feeder makes objects of its own classes alone.
    """
    kind = next((kind for kind, one in KINDS.items() if type(value) is one), None)
    if kind is not None:
        given = inspect.signature(KINDS[kind]).parameters
        return {"kind": kind, **{one: plain(getattr(value, one), one) for one in given}}
    if isinstance(value, Mapping):
        return {key: plain(one, str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, name) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    known = ", ".join(sorted(one.__name__ for one in KINDS.values()))
    raise ConfigError(
        f"{value!r}: a feeder makes objects of {known} alone, give one of these or their settings"
    )


def object_of(value: object, kinds: Sequence[str]) -> Any:
    """Return the object of plain values. Raises ConfigError.

    Parameters
    ----------
    kinds : sequence of str
        What it may be. A map that names no kind is of the only one.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"expected a map, got {value_text(value)}")
    given = dict(value)
    kind = given.pop("kind", kinds[0] if len(kinds) == 1 else None)
    if kind is None:
        inside = next((key for key in given if key in kinds), None)  # {prioritized: {alpha: 0.6}}
        form = "" if inside is None else f", as in {{kind: {inside}, ...}}"
        raise ConfigError(f"it needs a 'kind'{form}: one of {', '.join(kinds)}")
    if kind not in kinds:
        raise ConfigError(f"there is no kind {kind!r}: {hint(str(kind), kinds)}")
    return made(KINDS[kind], arguments(given, KINDS[kind], example=f"kind: {kind}, "))


def arguments(given: Mapping[Any, Any], kind: Any, example: str = "") -> dict[str, Any]:
    """Return the arguments of a constructor, with an object in place of each map of its values."""
    known, found = inspect.signature(kind).parameters, {}
    for key, value in given.items():
        with at(str(key)):
            if key not in known:
                raise ConfigError(f"there is no such setting: {hint(str(key), known)}")
            found[key] = object_of(value, ("linear",)) if isinstance(value, Mapping) else value
    missing = [
        name for name, one in known.items() if one.default is one.empty and name not in given
    ]
    if missing:
        text = ", ".join(f"{name}: ..." for name in missing)
        names = ", ".join(map(repr, missing))
        raise ConfigError(f"it needs {names}, as in {{{example}{text}}}")
    return found


def made(make: Any, given: Mapping[str, Any]) -> Any:
    """Return ``make(**given)``. Raises ConfigError."""
    try:
        with warnings.catch_warnings():  # the object that is used will warn
            warnings.simplefilter("ignore", UserWarning)
            return make(**given)
    except TypeError as error:
        raise ConfigError(str(error)) from error


def value_text(value: object) -> str:
    """Return a value of a file for a message."""
    return {list: "a list", dict: "a map", type(None): "nothing"}.get(
        type(value), repr(value)[:100]
    )


def plain_of(sampler: object) -> dict[str, Any]:
    """Convert a sampler to plain values.

    Raises
    ------
    ConfigError
        If it is not a sampler, or of a class that a feeder does not have.
    """
    converted: dict[str, Any] = plain(check_sampler("sampler", sampler), "sampler")
    return converted


def sampler_said(sampler: object) -> dict[str, Any] | None:
    """As `plain_of`; ``None`` for a class that a feeder does not have."""
    try:
        return plain_of(sampler)
    except ConfigError:
        return None


def sampler_from(said: dict[str, Any]) -> Sampler:
    """Return a new sampler from plain values. Raises ConfigError."""
    with at("sampler"):
        return cast("Sampler", object_of(said, tuple(SAMPLERS)))


_BOUND = 1 << 20
"""Of the numbers of a view that a client sends."""
_GOALS = ("strategy", "relabel_fraction", "goal", "achieved", "n_steps", "gamma", "reward", "info")


def plain_view(view: View | None) -> dict[str, Any] | None:
    """Convert a view to plain values. The functions of hindsight goals stay: see `HindsightParts`.

    Raises ConfigError for what is no view.
    """
    known = checked_view(view)
    if isinstance(known, Hindsight):
        given = {name: plain(getattr(known, name), name) for name in _GOALS}
        return {"kind": "hindsight", **given, "ends": known.compute_terminated is not None}
    found: dict[str, Any] | None = plain(known, "view")
    if found is not None and isinstance(known, Sequences):
        found["whole"] = bool(known.whole)  # padding is taken out where batches arrive
    return found


def view_from(plain: Mapping[str, Any]) -> View:
    """Return the view of `plain_view`. Raises ConfigError."""
    given = dict(plain)
    for name, value in given.items():
        if isinstance(value, int) and value > _BOUND:
            raise ConfigError(f"{name}: {value} is more than {_BOUND}")
    with at("view"):
        if given.get("kind") == "hindsight":
            del given["kind"]
            return cast("View", made(HindsightParts.of, given))
        return cast("View", object_of(given, ("transitions", "sequences")))
