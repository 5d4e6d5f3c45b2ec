"""A table's settings as JSON, and back. Imports and unpickles nothing that a checkpoint names."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from async_loader.errors import ConfigError
from async_loader.replay import samplers
from async_loader.replay.hindsight_view import Hindsight
from async_loader.replay.rate_limiter import Queue, RateLimiter
from async_loader.replay.views import Sequences, Transitions, View

if TYPE_CHECKING:
    from async_loader.replay.table.table_state import TableState

_CLASS = "$class"


def lasting_json(table_state: TableState) -> dict[str, Any]:
    """Convert the fixed settings of a table to JSON."""
    return {
        "capacity": table_state.capacity,
        "max_bytes": None if table_state.ready else table_state.max_bytes,
        "max_times_sampled": table_state.max_times_sampled,
        "sampler": sampler_json(table_state.sampler),
        "remover": sampler_json(table_state.remover),
        "view": view_json(table_state.view),
    }


def view_json(view: View | None) -> Any:
    """Convert a view's settings to JSON."""
    if view is None:
        return None
    if isinstance(view, Hindsight):
        return {"hindsight": _hindsight_text(view)}
    if isinstance(view, Sequences):
        settings = dataclasses.asdict(view)
        if view.whole:
            del settings["stride"]
        return {"sequences": settings}
    return {"n_steps": view.n_steps, "gamma": float(view.gamma), "reward": view.reward}


def view_of(saved: Mapping[str, Any] | None) -> View | None:
    """Make the view of `view_json`.

    Raises
    ------
    ConfigError
        For one that has functions: then a view has to be passed.
    """
    if saved is None:
        return None
    if "hindsight" in saved:
        raise ConfigError(
            "the checkpoint's table shows hindsight goals, whose functions are not saved: pass "
            f"view={saved['hindsight']}, or another view"
        )
    if "sequences" in saved:
        return Sequences(**saved["sequences"])
    return Transitions(saved["n_steps"], saved["gamma"], reward=saved["reward"])


def _hindsight_text(view: Hindsight) -> str:
    """Return the call that makes the view, with its functions by their names."""
    settings = []
    for field in dataclasses.fields(view):
        value = getattr(view, field.name)
        text = getattr(value, "__name__", type(value).__name__) if callable(value) else repr(value)
        settings.append(f"{field.name}={text}")
    return f"Hindsight({', '.join(settings)})"


def sampler_json(sampler: object) -> dict[str, Any]:
    """Convert the class of a sampler and its settings to JSON; ``None`` for settings that cannot
    be.
    """
    try:
        made: dict[str, Any] = _encoded(sampler)
        return made
    except ConfigError as error:
        kind = type(sampler)
        return {
            _CLASS: f"{kind.__module__}.{kind.__qualname__}",
            "settings": None,
            "why": str(error),
        }


def sampler_of(saved: dict[str, Any], role: str) -> Any:
    """Make a new sampler of the saved class and settings.

    Raises
    ------
    ConfigError
        If the class is not one of the package: then a sampler has to be passed.
    """
    if saved["settings"] is None:
        raise ConfigError(
            f"the checkpoint was saved with the {role} {saved[_CLASS]}, and {saved['why']}: pass "
            f"{role}=..., made as it was then"
        )
    return _decoded(saved)


def _encoded(value: object) -> Any:
    """Convert a value to JSON. Objects of the package become the settings
    that make an equal one.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encoded(one) for one in value]
    kind = type(value)
    if getattr(samplers, kind.__name__, None) is not kind:
        raise ConfigError(f"{kind.__qualname__} is no class of async_loader.replay.samplers")
    settings = {}
    for name in inspect.signature(kind).parameters:
        if not hasattr(value, name):
            raise ConfigError(f"a {kind.__qualname__} does not say what its {name} was")
        settings[name] = _encoded(getattr(value, name))
    return {_CLASS: kind.__name__, "settings": settings}


def _decoded(value: object) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind = getattr(samplers, value[_CLASS], None)
    if not inspect.isclass(kind) or value[_CLASS] not in samplers.__all__:
        raise ConfigError(
            f"the checkpoint names the class {value[_CLASS]!r}, and this version has none of that "
            "name"
        )
    return kind(**{name: _decoded(one) for name, one in value["settings"].items()})


def limiter_json(limiter: RateLimiter | None) -> Any:
    """Convert a limiter's three numbers to JSON."""
    if limiter is None:
        return None
    return [limiter.min_size_to_sample, limiter.samples_per_insert, limiter.error_buffer]


def limiter_of(saved: Sequence[Any] | None) -> RateLimiter | None:
    """Make the limiter of `limiter_json`."""
    if saved is None:
        return None
    least, ratio, buffer = saved
    if (least, ratio) == (1, 1.0) and isinstance(buffer, list) and buffer[0] == 0.0:
        return Queue(int(buffer[1]))
    with warnings.catch_warnings():  # it was warned about when the saved one was made
        warnings.simplefilter("ignore", UserWarning)
        return RateLimiter(
            min_size_to_sample=least,
            samples_per_insert=ratio,
            error_buffer=tuple(buffer) if isinstance(buffer, list) else buffer,
        )
