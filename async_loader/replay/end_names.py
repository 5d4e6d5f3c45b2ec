"""Names that other libraries give to the ends of episodes, which would be plain fields here."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from async_loader.errors import ConfigError
from async_loader.replay.views import View
from async_loader.schema import END_FIELDS, Field, Schema

_SURE = {
    **dict.fromkeys(("done", "terminal", "termination", "terminate", "terminated"), "terminated"),
    **dict.fromkeys(("truncation", "truncate", "truncated"), "truncated"),
}
_IF_BOOL = {
    **dict.fromkeys(("end", "ended", "ending", "last", "final", "over", "finished"), "terminated"),
    **dict.fromkeys(("timeout", "timelimit", "timedout"), "truncated"),
}
"""Words that may mean something else, such as a duration."""
_BESIDE = {"i", "wa", "ha", "of", "the", "episode", "ep", "step", "flag", "by", "at"}
"""Without an "s" at the end, as of "is" and "flags"."""


def end_meant(name: str, dtype: np.dtype[np.generic] | None = None) -> str | None:
    """Return the field that ``name`` seems to stand for: "terminated" for "dones", "is_terminal" or
    "episode_end", "truncated" for "truncations"; ``None`` for any other name, and for ours.

    ``dtype``: words that often mean something else count for bools only; by default they count.
    """
    if name in END_FIELDS:
        return None
    words = re.findall(r"[A-Z]*[a-z]+|[A-Z]+", name)
    if "".join(words) != name.replace("_", "").replace("-", ""):
        return None
    lower = [word.lower() for word in words]
    left = "".join(one.removesuffix("s") for one in lower if one.removesuffix("s") not in _BESIDE)
    found = _SURE.get(left)
    if found is None and (dtype is None or dtype == np.bool_):
        found = _IF_BOOL.get(left)
    return found


def mistaken_ends(fields: Iterable[Field]) -> dict[str, str]:
    """Return the fields of a step that look like ends of episodes, with the names that end them;
    none if others do.
    """
    listed = [field for field in fields if "." not in field.name]
    if any(field.name in END_FIELDS for field in listed):
        return {}
    return {
        field.name: meant
        for field in listed
        if field.dtype.kind in "biuf"
        and np.prod(field.shape) == 1
        and (meant := end_meant(field.name, field.dtype)) is not None
    }


def check_end_names(schema: Schema, view: View | None) -> None:
    """Raise ConfigError for a field that looks like the end of an episode but is not, where steps
    are shown with those beside them: all episodes would be one.
    """
    linked = [field.name for field in schema.fields if field.linked]
    if view is None and not linked:
        return
    for name, meant in mistaken_ends(schema.fields).items():
        how = type(view).__name__ if view is not None else f"field {linked[0]!r}"
        raise ConfigError(
            f"field {name!r} ends no episode, and {how} shows steps with those beside them: name "
            f"it {meant!r}{' (or done)' * (meant == 'terminated')}, or add that field beside it"
        )
