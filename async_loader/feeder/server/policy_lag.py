"""Which policy versions made the received steps, and how far they are behind the newest.

A step names its weights by an integer field: ``policy_version`` for weights that are published as
``policy``. A table whose steps have no such field has no lag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from async_loader.schema import Schema

SUFFIX = "_version"


def versions_in(schema: Schema) -> dict[str, int]:
    """Return, by name of weights, which field of the steps has their version."""
    return {
        field.name.removesuffix(SUFFIX): i
        for i, field in enumerate(schema.fields)
        if field.name.endswith(SUFFIX) and not field.shape and field.dtype.kind in "iu"
    }


def lags(
    made: Iterable[Mapping[str, int]],
    published: Mapping[str, int],
    given: Mapping[str, int] | None = None,
) -> dict[str, dict[str, int]]:
    """Return, by name of weights, the writers' newest and oldest versions, and the lag.

    ``published``: the newest versions. ``given``: the oldest in the last batch of a queue.
    """
    found: dict[str, dict[str, int]] = {}
    for versions in made:
        for name, version in versions.items():
            one = found.setdefault(name, {"newest": version, "oldest": version})
            one["newest"], one["oldest"] = max(one["newest"], version), min(one["oldest"], version)
            if name in published:
                one["lag"] = max(0, published[name] - one["oldest"])
    for name, version in (given or {}).items():
        one = found.setdefault(name, {"newest": version, "oldest": version})
        if name in published:
            one["batch_lag"] = max(0, published[name] - version)
    return found
