"""The metrics of loaders, tables and clients, from the fields of their stats."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from async_loader.errors import AsyncLoaderError
from async_loader.observe.families import Family, Histogram
from async_loader.stats import DURATIONS, LoaderStats, Stats

_BOUNDS = tuple(2.0**i / 1e6 for i in range(DURATIONS - 1))
_UNITS = {"nbytes": "memory_bytes", "bytes_sent": "sent_bytes", "bytes_kept": "kept_bytes"}
_DERIVED = {
    "wait_fraction": "The share of the learner's time that it waited for a batch: 0 to 1.",
    "samples_per_insert": "Items sampled per item inserted.",
    "waiting": "Calls and writers that wait for the table.",
}


def known(one: Any) -> bool:
    """Return whether an object's ``stats()`` can be exported."""
    stats = getattr(one, "stats", None)
    return callable(stats) and isinstance(stats(), Stats)


def families_of(objects: Mapping[str, Any]) -> list[Family]:
    """Return the metrics of objects by name. Objects that are closed are left out."""
    families: dict[str, Family] = {}
    for name, one in objects.items():
        try:
            stats: Stats = one.stats()
        except AsyncLoaderError:
            continue
        labels = {"name": name}
        for family in _of(stats, stats.KIND, labels):
            same = families.setdefault(family.name, family)
            if same is not family:
                same.samples += family.samples
    return list(families.values())


def _of(stats: Stats, prefix: str, labels: Mapping[str, str]) -> Iterator[Family]:
    for field, value in stats.numbers().items():
        counts = field in stats.COUNTERS
        named = _UNITS.get(field, re.sub(r"_s$", "_seconds", field))
        family = Family(
            f"{prefix}_{named}", "counter" if counts else "gauge", _help(type(stats), field)
        )
        family.add(value, **labels)
        yield family
    for name, part in stats.parts():
        yield from _of(part, f"{prefix}_stage", {**labels, "stage": name})
    if isinstance(stats, LoaderStats) and stats.durations:
        text = "Calls of next() by duration."
        latency = Family(f"{prefix}_batch_latency_seconds", "histogram", text)
        waited_s = stats.learner.wait_s
        latency.add(Histogram(_BOUNDS, stats.durations, waited_s), **labels)
        yield latency


def _help(kind: type[Stats], field: str) -> str:
    """Return the text of a field in the docstring of its class."""
    doc = (inspect.getdoc(kind) or "") + "\n"
    found = re.search(rf"^(?:\w+, )*{field}(?:, \w+)* : .*\n((?:    .*\n|\n)*)", doc, re.MULTILINE)
    text = "" if found is None else " ".join(found[1].split()).replace("`", "")
    return _DERIVED.get(field) or text or f"{field} of {kind.__name__}."
